#!/bin/bash
# What can go wrong with a pair, over two fake nodes with a real sshd in each and two ranks of the demo
# model: something in the way, killed, without power, broken or standing still. Every fault is
# explained, never leaves one rank alone, and the next start mends it.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/fake_nodes.sh"
[ -x "$out/tandem-node" ] || skip_all "tandem-node is not built"
finish() { nodes_stop; }
nodes_start
nodes_trust
nodes_settings
# Where the model is not beside the program (a build folder elsewhere) the nodes share it by path.
[ -f "$out/../templates/demo-model/config.json" ] || [ -f "$out/../../templates/demo-model/config.json" ] ||
    node_env+=("TANDEM_MODEL_DIR=$model")
node_env+=("TANDEM_CONTEXT=4096" "TANDEM_PARALLEL=2" "TANDEM_STOP_TIMEOUT=5")

t() { on head "$tandem" "$@"; }
pair_state() { t status --json 2>/dev/null | grep -o '"pair":{"state":"[a-z-]*"' | cut -d'"' -f6; }
pair_is() { [ "$(pair_state)" = "$1" ]; }
daemons() { on "$1" pgrep -c -x tandemd; }
no_ranks() { [ "$(daemons head)" = 0 ] && [ "$(daemons worker)" = 0 ]; }
keeper_pid() { on "$1" pgrep -f 'tandem-node keep( |$)' | head -n 1; }
no_keepers() { [ -z "$(keeper_pid head)$(keeper_pid worker)" ]; }
rank_pid() { on "$1" pgrep -x tandemd | head -n 1; }
json_of() { printf '%s' "$shown" | grep -o "$1" | head -n 1; }

# A port in the way.
on head /usr/sbin/sshd -f "$work/head/sshd_config" -p 29620 -o "PidFile=$work/head/other.pid"
taken() { on head "$out/tandem-node" port 29620 | grep -q '"listening":true'; }
check "a port in use: it is taken" wait_for 20 taken
shown=$(t start 2>&1)
code=$?
check "a port in use: refused" is "$code" 20
check "a port in use: its owner is named" has "$shown" 'port 29620 on the head, which is where the ranks meet, is used by sshd \(process [0-9]+, user root\)'
check "a port in use: nothing was started" no_ranks
check "a port in use: status says foreign" wait_for 20 pair_is foreign
on head kill "$(cat "$work/head/other.pid")"
free() { ! taken; }
wait_for 20 free # it holds the port until it has ended

check "a start, whole" eval 't start >/dev/null 2>&1; wait_for 20 pair_is ready'

# A killed worker rank: both start again by themselves.
on worker kill -KILL "$(rank_pid worker)"
again() { shown=$(t status --json 2>/dev/null) && has "$shown" '"state":"(ready|serving)","reason":null,"start_id":"[0-9a-f]*","generation":1'; }
check "a killed rank: both start again" wait_for 60 again
check "a killed rank: the first error is kept" has "$shown" '"first_error":\{"code":137'
check "a chat after it" has "$(t ask 'What is 17 + 19?')" '36'

# Rail A is cut: both ranks end (neither serves alone), and when it is back both start again.
rail head A down
check "a cut rail: no rank stays" wait_for 90 no_ranks
rail head A up
again() { shown=$(t status --json 2>/dev/null) && has "$shown" '"state":"(ready|serving)","reason":null,"start_id":"[0-9a-f]*","generation":2'; }
check "a rail that is back: both start again" wait_for 120 again
check "a chat after it" has "$(t ask 'What is 17 + 19?')" '36'

# kill -9 of tandem in the middle of a start: the keepers finish or fail together; the next start
# goes on from there.
# The middle is where keepers are; those of an earlier start go some time after its stop. A start that
# was over before it was killed is no such start: then once more.
kill_start() {
    t stop >/dev/null
    wait_for 20 no_keepers || return 1
    at head env TANDEM_VERIFY_ON_START=off "$tandem" start
    wait_for 30 eval '[ -n "$(keeper_pid worker)" ]' && on head pkill -KILL -x tandem
}
check "kill -9 of tandem: in the middle of its start" wait_for 60 kill_start
shown=$(t start 2>&1)
code=$?
check "kill -9 of tandem: the next start is ready" test "$code" = 0 -o "$code" = 10
check "kill -9 of tandem: one rank on each" eval '[ "$(daemons head)" = 1 ] && [ "$(daemons worker)" = 1 ]'

# kill -9 of the worker's keeper: the pair goes down, whole, and a start mends it.
on worker kill -KILL "$(keeper_pid worker)"
check "a killed keeper: no rank stays" wait_for 60 no_ranks
status_says() { has "$(t status)" "$1"; }
check "a killed keeper: status says so" wait_for 20 status_says "keeper of the worker|keeper was killed|killed"
shown=$(t start 2>&1)
code=$?
check "a killed keeper: start mends it" test "$code" = 0 -o "$code" = 10

# The worker loses its power.
node_off worker
check "worker off: the head's rank ends, too" wait_for 60 eval '[ "$(daemons head)" = 0 ]'
shown=$(t start 2>&1)
check "worker off: start is refused" is "$?" 40
check "worker off: with the reason" has "$shown" 'worker.*cannot be reached'
check "worker off: the doctor says so" has "$(t doctor)" 'The worker cannot be reached by ssh. \(certain\)'
shown=$(t stop 2>&1)
check "worker off: stop says what it could not see" is "$?" 40
check "worker on again" node_on worker

# A rank that ends while loading: both end, both errors are shown.
echo 'not a model' >"$work/broken"
shown=$(on head env TANDEM_MODEL_DIR="$work/no-such-model" "$tandem" start 2>&1)
check "no model: refused before anything runs" eval 'has "$shown" "there is no model in" && no_ranks'
cp -r "$model" "$work/half-model"
truncate -s 1000 "$work"/half-model/*.safetensors
shown=$(on head env TANDEM_MODEL_DIR="$work/half-model" "$tandem" start 2>&1)
check "a broken model: the start fails" is "$?" 41
check "a broken model: the rank's own words" has "$shown" 'rank [01] \((head|worker)\): .*safetensors'
check "a broken model: no rank is left" wait_for 20 no_ranks
shown=$(t doctor)
check "doctor: the symptom" has "$shown" '^symptom: the pair is failed: rank [01]'
check "doctor: its cause comes first" has "$shown" '^ 1. A file of the model is missing, damaged or of another model. \(certain\)'
check "a broken model: the state keeps it" eval 'wait_for 20 pair_is failed && has "$(t status)" "first error: .*safetensors"'

# Both engines stand still while loading: found by the keepers, with the stacks kept.
shown=$(on head env TANDEM_HANG_SECONDS=10 "$tandem" start --dry-run | grep -c tandemd)
check "hang: dry run" test "$shown" -ge 2
stop_rank() {
    local pid
    pid=$(rank_pid worker) && [ -n "$pid" ] && on worker kill -STOP "$pid"
}
# A rank that was ready before it was stopped was not loading: then once more.
stop_loading() {
    at head env TANDEM_HANG_SECONDS=10 TANDEM_VERIFY_ON_START=off "$tandem" start
    wait_for 60 stop_rank || return 1
    ! grep -qs '"phase":"ready"' "$worker_home/.local/state/tandem/keeper/rank1.json" && return 0
    on worker pkill -CONT -x tandemd
    t stop >/dev/null 2>&1
    wait_for 20 no_keepers
    return 1
}
check "hang: stopped while loading" wait_for 60 stop_loading
check "hang: both end" wait_for 90 eval 'pair_is failed && no_ranks'
check "hang: it is named" has "$(t status)" 'no progress for 10 s|lost|silent|not ready'

done_testing
