#!/bin/bash
# The keepers of two ranks on the loopback, with a stand-in for the rank: a script that reports phases
# and ends, hangs or refuses as told. What the real ranks do is in tests/e2e/test_pair.sh.
. "$(dirname "$0")/../e2e/lib.sh"
node=$out/tandem-node
[ -x "$node" ] || skip_all "tandem-node is not built"
port=$(free_port)
# Of this run alone: what other tests have on their command lines is not looked at.
secret=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
settings=$(printf '0c%.0s' {1..32})

# RANK STATUS DIR: what it does is the word in DIR/modeN: ready, refuse, crash (until DIR/modeN
# changes it is the same again), hang, stubborn (ready, hears neither TERM nor the other rank).
cat >"$work/rank.sh" <<'END'
#!/bin/bash
rank=$1 status=$2 dir=$3
read -r line || exit 20
echo "${line% *}" >>"$dir/secrets$rank"
echo "${line#* }" >>"$dir/ids$rank"
ls /proc/$$/fd | wc -l >"$dir/fds$rank"
env | grep -c '^NCCL_' >"$dir/nccl$rank"
[ ! -r /proc/self/oom_score_adj ] || cat /proc/self/oom_score_adj >"$dir/oom$rank"
say() { printf '{"pid":%d,"rank":%d,"phase":"%s","progress":%s,"failure":null}\n' $$ "$rank" "$1" "$2" >"$status.new" && mv "$status.new" "$status"; }
trap 'say stopped 1; rm -f "$dir/alive$rank"; exit 0' TERM
: >"$dir/alive$rank"
rm -f "$dir/up$rank"
say meeting 0
sleep 0.05
case $(cat "$dir/mode$rank" 2>/dev/null) in
refuse) echo "tandemd: this model is not for this program" >&2; rm -f "$dir/alive$rank"; exit 20 ;;
crash) say loading 0.5; echo "tandemd: device lost" >&2; rm -f "$dir/alive$rank"; exit 50 ;;
hang) say loading 0.5; while :; do sleep 0.1; done ;;
stubborn)
    trap '' TERM
    is_deaf=1
    ;;
esac
say loading 0.5
sleep 0.05
say ready 1
: >"$dir/up$rank"
while :; do
    sleep 0.05
    [ ! -e "$dir/kill$rank" ] || { rm -f "$dir/kill$rank" "$dir/alive$rank"; echo "tandemd: device lost" >&2; exit 50; }
    [ ! -e "$dir/shutdown" ] || { rm -f "$dir/alive$rank"; exit 0; }
    # A rank sees by itself that the other is gone, some time later. One of an earlier start is not meant:
    # its mark is taken away by the next one, which may be late.
    [ ! -e "$dir/up$((1 - rank))" ] || [ ! -e "$dir/alive$((1 - rank))" ] || has_met=1
    [ -n "${is_deaf-}" ] || [ -z "${has_met-}" ] || [ -e "$dir/alive$((1 - rank))" ] || {
        rm -f "$dir/alive$rank"
        [ ! -e "$dir/shutdown" ] || exit 0
        echo "tandemd: the other rank is lost" >&2
        exit 40
    }
done
END
chmod +x "$work/rank.sh"

# The keeper of rank $1, with a home of its own.
k() {
    local rank=$1
    shift
    env HOME="$work/h$rank" XDG_CONFIG_HOME= XDG_STATE_HOME= XDG_RUNTIME_DIR="$work/r$rank" NCCL_DEBUG=INFO \
        "$node" "$@"
}
order() { # RANK START-ID [MORE-JSON]
    printf '{"v":1,"rank":%d,"secret":"%s","start_id":"%s","settings":"%s","link_host":"127.0.0.1","link_port":%d,"words":["%s","%d","{status}","%s"],"env":[],"peer_s":60,"stop_s":30%s}' \
        "$1" "$secret" "$2" "$settings" "$port" "$work/rank.sh" "$1" "$work" "${3:-}"
}
state() { k "$1" keeper status 2>/dev/null | grep -o '"state":"[a-z]*"' | cut -d'"' -f4; }
state_is() { [ "$(state "$1")" = "$2" ]; }
both_are() { state_is 0 "$1" && state_is 1 "$1"; }
status_has_now() { has "$(k "$1" keeper status)" "$2"; }
status_has() { wait_for 20 status_has_now "$@"; }
none_alive() { [ ! -e "$work/alive0" ] && [ ! -e "$work/alive1" ]; }
start_both() { # START-ID [MORE]
    rm -f "$work"/kill* "$work/shutdown" "$work"/alive* "$work"/up*
    k 0 keep --detach && k 1 keep --detach && order 0 "$1" "${2:-}" | k 0 keeper start >/dev/null &&
        order 1 "$1" "${2:-}" | k 1 keeper start >/dev/null
}
modes() { echo "$1" >"$work/mode0" && echo "$2" >"$work/mode1"; }
pid_of() { k "$1" keeper status | grep -o '"pid":[0-9]*' | head -n 1 | cut -d: -f2; }
finish() {
    k 0 keeper quit >/dev/null 2>&1
    k 1 keeper quit >/dev/null 2>&1
    wait_for 20 none_alive
    rm -rf "$work"
}
mkdir -p "$work/r0" "$work/r1" "$work/h0" "$work/h1"
chmod 700 "$work/r0" "$work/r1"

check "no keeper: idle" state_is 0 idle
check "no keeper: nothing to sweep" has "$(k 0 keeper sweep)" 'nothing was left'

modes ready ready
check "both orders are taken" start_both 1111111111111111
check "both ranks are ready" wait_for 20 both_are ready
check "the secret came on standard input" is "$(sort -u "$work/secrets0" "$work/secrets1")" "$secret"
check "and the start id" is "$(cat "$work/ids0")" 1111111111111111
check "nothing inherited of NCCL" is "$(cat "$work/nccl0")" 0
check "the kernel would choose the rank first" is "$(cat "$work/oom0" 2>/dev/null || echo 1000)" 1000
check "the secret is in no file" is "$(grep -rl "$secret" "$work/h0" "$work/h1" "$work/r0" "$work/r1" 2>/dev/null)" ""
lines=$(cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n')
check "nor on a command line or in an environment" has_not "$lines" "$secret"
shown=$(order 0 2222222222222222 | k 0 keeper start 2>&1)
check "a second start is refused with the first one's id" has "$shown" 'has a start in hand.*1111111111111111'
check "a second keeper is refused" has "$(k 0 keep 2>&1)" 'a keeper runs here already'

# A rank that crashes while serving: both start again, with another secret and id.
: >"$work/kill1"
check "a crash of rank 1 starts both again" wait_for 30 eval 'both_are ready && status_has_now 0 "\"generation\":1" && status_has_now 1 "\"generation\":1"'
check "the first error is kept" status_has 1 '"first_error":{"code":50,"message":"device lost"'
check "the new start has another id" is "$(sort -u "$work/ids0" | wc -l)" 2
check "and another secret" is "$(sort -u "$work/secrets1" | wc -l)" 2
check "both ranks got the same" is "$(tail -n 1 "$work/ids0")" "$(tail -n 1 "$work/ids1")"

# Asked to stop.
k 0 keeper stop >/dev/null
check "a stop on the head stops both" wait_for 20 both_are stopped
check "no rank is left" none_alive

# Bounded tries.
start_both 3333333333333333 ',"restarts":1' && wait_for 20 both_are ready
: >"$work/kill0"
wait_for 30 eval 'both_are ready && status_has_now 0 "\"generation\":1"'
: >"$work/kill0"
check "the budget ends" wait_for 30 both_are failed
check "and says so" status_has 0 '1 new starts within six hours are used up'
check "the other knows why" status_has 1 'used up'
check "no rank is left" none_alive

# Refusals are for good, and a start that was never ready is not repeated.
modes ready refuse
start_both 4444444444444444
check "a refusal ends both" wait_for 30 both_are failed
check "the cause comes first" status_has 0 '"reason":"rank 1 \(worker\): this model is not for this program'
check "no rank is left" none_alive
modes crash ready
start_both 5555555555555555
check "a crash in the first loading ends both" wait_for 30 both_are failed
check "rank 0 first" status_has 1 '"reason":"rank 0 \(head\): device lost'
check "no rank is left" none_alive

# A hang.
modes ready hang
start_both 6666666666666666 ',"hang_s":10'
check "a hang ends both" wait_for 40 both_are failed
check "and is named with its phase" status_has 0 'rank 1 on the worker made no progress for 10 s in phase loading'
check "what its threads waited in is kept" test -s "$work/h1/.local/state/tandem/logs/rank1-6666666666666666.stacks"
check "no rank is left" none_alive

# Only one side got its order: half a start never becomes a rank.
modes ready ready
k 0 keep --detach && order 0 7777777777777777 ',"peer_s":1' | k 0 keeper start >/dev/null
check "one side alone gives up" wait_for 20 state_is 0 failed
check "and says who is missing" status_has 0 'did not meet'
check "no rank was started" none_alive
# Orders of two starts.
k 0 keep --detach && k 1 keep --detach
order 0 8888888888888888 ',"peer_s":2' | k 0 keeper start >/dev/null
order 1 9999999999999999 ',"peer_s":2' | k 1 keeper start >/dev/null
check "two different starts do not meet" wait_for 20 both_are failed
check "no rank was started" none_alive

# Not enough memory.
start_both aaaaaaaaaaaaaaaa ',"gate_mib":4000000,"gate_s":1'
check "the memory gate holds" wait_for 20 both_are failed
check "with both numbers" status_has 0 'MiB of memory available and needs 4000000'

# Killed keepers.
start_both bbbbbbbbbbbbbbbb ',"peer_s":10' && wait_for 20 both_are ready
kill -KILL "$(pid_of 1)"
check "without its keeper rank 1 ends" wait_for 20 test ! -e "$work/alive1"
check "and rank 0 too" wait_for 30 test ! -e "$work/alive0"
check "the head says what happened" wait_for 40 eval 'state_is 0 failed && status_has_now 0 "lost the keeper of the worker|did not meet"'
check "the killed one is seen as such" status_has 1 '"running":null'
# A rank that does not hear its keeper's end is swept up.
modes stubborn ready
start_both cccccccccccccccc ',"peer_s":10' && wait_for 20 both_are ready
kill -KILL "$(pid_of 0)"
check "the stubborn rank is still there" test -e "$work/alive0"
shown=$(k 0 keeper sweep 2>&1)
check "a sweep ends it" has "$shown" '"ended":true'
rm -f "$work/alive0"
check "the other side gives up" wait_for 40 state_is 1 failed
check "no rank is left" wait_for 20 none_alive

# The engine's own door: both end well, nobody starts them again.
modes ready ready
start_both dddddddddddddddd && wait_for 20 both_are ready
: >"$work/shutdown"
check "an engine that was shut down stays down" wait_for 20 both_are stopped
rm -f "$work/shutdown"

# Logs of earlier starts are packed, and only so many stay.
logs=$work/h0/.local/state/tandem/logs
if command -v gzip >/dev/null; then
    check "logs: packed" eval 'gzip -dc "$logs/rank0-cccccccccccccccc.log.gz" | grep -q "keeper: start of the rank"'
    check "logs: the newest is not" test -f "$logs/rank0-dddddddddddddddd.log"
else
    skip_one "gzip is not installed: old logs stay as they are"
fi
k 0 keep --detach && order 0 eeeeeeeeeeeeeeee ',"log_keep":2' | k 0 keeper start >/dev/null
k 1 keep --detach && order 1 eeeeeeeeeeeeeeee ',"log_keep":2' | k 1 keeper start >/dev/null
wait_for 20 both_are ready
check "logs: as many as were asked for" is "$(ls "$logs" | grep -c '^rank0-')" 2
# While a secret is held the process is in no core dump, and its memory is not its user's to read: the
# files in /proc are root's then. Seen as a user without rights, which root in a container can become.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    chmod 755 "$work"
    mkdir -p "$work/h9" "$work/r9" && chown 65534:65534 "$work/h9" "$work/r9" && chmod 700 "$work/r9"
    as_user() {
        env -u TANDEM_ALLOW_ROOT HOME="$work/h9" XDG_CONFIG_HOME= XDG_STATE_HOME= XDG_RUNTIME_DIR="$work/r9" \
            setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
    }
    memory_is_of() { [ "$(stat -c %u "/proc/$1/mem" 2>/dev/null)" = "$2" ]; }
    as_user "$node" keep --stay </dev/null >/dev/null 2>&1 &
    u() { as_user "$node" keeper "$1"; }
    waits() { u status | grep -q '"stays":true'; }
    check "dumps: a keeper of a user without rights" wait_for 20 waits
    pid=$(u status | grep -o '"pid":[0-9]*' | head -n 1 | cut -d: -f2)
    check "dumps: without an order like any process" memory_is_of "$pid" 65534
    order 0 abababababababab ',"peer_s":30' | u start >/dev/null
    check "dumps: none with the secret of a start" memory_is_of "$pid" 0
    u stop >/dev/null
    check "dumps: after the stop as before" wait_for 20 memory_is_of "$pid" 65534
    u quit >/dev/null
    printf '%s 0000000000000001\n' "$secret" | as_user "$out/tandemd" rank --ranks 2 --rank 1 \
        --meet "127.0.0.1:$port" --meet-timeout 120 --model "$model" >"$work/rank9.log" 2>&1 &
    rank=$!
    rank_of_user() { pgrep -P "$rank" -x tandemd; }
    is_held() { pid=$(rank_of_user) && memory_is_of "$pid" 0; }
    check "dumps: none of a rank that meets the other" wait_for 20 is_held
    pid=$(rank_of_user) && kill -TERM "$pid"
    wait "$rank"
else
    skip_one "no root or no setpriv: whether secrets stay out of core dumps is not seen here"
fi

# Whoever lets another machine in is no root.
if [ "$(id -u)" = 0 ]; then
    for verb in keep receive send prepare "probe 127.0.0.1" "wipe /nonexistent"; do
        # shellcheck disable=SC2086
        shown=$(env -u TANDEM_ALLOW_ROOT "$node" $verb 2>&1 </dev/null)
        check "root: tandem-node $verb is refused" is $? 20
        check "root: and says why: $verb" has "$shown" 'does not run as root; start it as your own user'
    done
    shown=$(echo x | env -u TANDEM_ALLOW_ROOT "$out/tandemd" rank --ranks 2 --rank 1 --meet 192.0.2.1:9 --model "$model" 2>&1)
    check "root: a rank of two machines is refused" has "$shown" 'a rank of two machines does not run as root'
fi
check "a port nobody holds" has "$("$node" port $port)" '"listening":false'

done_testing
