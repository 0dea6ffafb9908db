#!/bin/bash
# Two fake nodes with a real sshd each: first contact, proof of the cable, copy of a model over both
# rails, preparing on both, with a killed helper, a damaged file and a wrong one on the way.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/fake_nodes.sh"
# shellcheck shell=bash disable=SC2154
finish() { nodes_stop; }
nodes_start
node_env=("TANDEM_MODEL_DIR=$model" "ASAN_OPTIONS=${ASAN_OPTIONS:-}" "UBSAN_OPTIONS=${UBSAN_OPTIONS:-}"
    "TSAN_OPTIONS=${TSAN_OPTIONS:-}")
config=$head_home/.config/tandem
jobs=$head_home/.local/state/tandem/jobs
head_t() { on head "$tandem" "$@"; }
# Exit code of a command; its output is in $shown.
run() { shown=$("$@" 2>&1) && code=0 || code=$?; }
says() { grep -q -- "$1" <<<"$shown"; }
lacks() { ! says "$1"; }
same() { cmp -s "$1" "$2"; }

# ---- first contact ----
on worker sh -c 'echo root:correct-horse-7 | chpasswd' || skip_all "passwords cannot be set"
sed -i 's/^PasswordAuthentication no/PasswordAuthentication yes/' "$work/worker/sshd_config"
# Ended and started: one that only reads its settings again answers for a moment before it is away.
node_sshd worker stop
on worker /usr/sbin/sshd -f "$work/worker/sshd_config" -E "$work/worker/sshd.log"
answers() { on worker bash -c "exec 3<>/dev/tcp/$worker_ip/22" 2>/dev/null; }
wait_for 20 answers && wait_for 20 test -s "$work/worker/run-sshd.pid"

# Types the lines given, each when its prompt is shown once more.
prompts() { grep -oE "$1" "$2" 2>/dev/null | wc -l; }
asked() { [ "$(prompts "$1" "$2")" -gt "$shown_before" ] || grep -q '^code' "$2"; }
trust() {
    local pipe=$work/typed log=$work/trust.log pair
    rm -f "$pipe" "$log"
    mkfifo "$pipe"
    (on head script -qefc "'$tandem' node trust $worker_ssh" /dev/null <"$pipe" >"$log" 2>&1
        echo "code $?" >>"$log") &
    exec 9>"$pipe"
    local shown_before=0 last=
    for pair in "$@"; do
        [ "${pair%%=*}" = "$last" ] || shown_before=0
        last=${pair%%=*}
        wait_for 30 asked "$last" "$log" || break
        ! grep -q '^code' "$log" || break # it has ended: nobody reads any more
        shown_before=$(prompts "$last" "$log")
        echo "${pair#*=}" >&9
    done
    wait_for 30 grep -q '^code' "$log"
    exec 9>&-
    shown=$(tr -d '\r' <"$log")
    code=$(sed -n 's/.*code \([0-9]*\)$/\1/p' "$log")
}
if command -v script >/dev/null; then
    trust 'last 6 characters=wrong1'
    check "a wrong fingerprint is refused" test "$code" != 0
    check "nothing was stored" test ! -s "$head_home/.ssh/known_hosts"
    trust 'last 6 characters=accept' 'Password of=wrong-horse' 'Password of=correct-horse-7'
    check "first contact by password, then by key" test "$code" = 0
    check "it says so" says "works"
    check "the password is in no file" lacks "correct-horse" 
    run grep -rls correct-horse-7 "$head_home/.config" "$head_home/.local" "$head_home/.ssh" "$worker_home"
    check "the password is nowhere on the disks" test -z "$shown"
    check "the key is private" test "$(stat -c %a "$config/secrets/id_ed25519")" = 600
    check "it is in authorized_keys" grep -q 'tandem@' "$worker_home/.ssh/authorized_keys"
    trust 'nothing to type=x'
    check "again: nothing is asked" test "$code" = 0
    check "the key was there" says "it was there"
    run grep -c tandem@ "$worker_home/.ssh/authorized_keys"
    check "and stands there once" test "$shown" = 1
    key=$(grep '^WORKER_KEY' "$config/tandem.conf")
else
    skip_one "first contact: there is no script(1)"
    nodes_trust
    key=
fi
nodes_settings
[ -z "$key" ] || echo "$key" >>"$config/tandem.conf"
run head_t node exec worker hostname
check "a command on the worker" says worker-spark

cp "$work/worker/host" "$work/host.old" && cp "$work/worker/host.pub" "$work/host.old.pub"
node_new_host_keys worker && node_sshd worker stop && node_sshd worker start
run head_t node exec worker hostname
check "a changed host key is never accepted" test "$code" != 0
check "it says what may be the reason" says "another machine answers"
cp "$work/host.old" "$work/worker/host" && cp "$work/host.old.pub" "$work/worker/host.pub"
node_sshd worker stop && node_sshd worker start
for name in $worker_ip_a $worker_ip_b; do
    echo "$name $(cut -d' ' -f1,2 "$work/worker/host.pub")" >>"$head_home/.ssh/known_hosts"
done

# ---- the cable ----
if on head mount -t sysfs sysfs /sys 2>/dev/null && on worker mount -t sysfs sysfs /sys; then
    run head_t link prove
    for row in "PASS *N-half" "PASS *N-mtu" "PASS *N-peer" "PASS *N-route" "Gb/s on rail A" \
        "Median round trip"; do
        check "link prove: $row" says "$row"
    done
    run head_t check N-collective
    check "without an engine on the worker there is no collective" says "The engine is not on both machines yet"
    mkdir -p "$worker_home/data/.tandem/bin"
    cp "$out/tandemd" "$worker_home/data/.tandem/bin/"
    run head_t check N-collective
    check "collective: the engine's own exchange is measured" says "exchange of the CPU engine moves [0-9.]* GB/s over TCP"
    check "collective: it is no failure where no GPU is" test "$code" = 0
    rm -rf "$worker_home/data/.tandem"
    rail worker B mtu 1500
    run head_t check N-mtu
    check "one small end is found" says "at one end of rail B only (9000 / 1500)"
    rail worker B mtu 9000
    on worker ip route add blackhole "$head_ip_b/32"
    run head_t check N-mtu
    check "frames that do not arrive are found" says "rail B, nothing arrives"
    on worker ip route del blackhole "$head_ip_b/32"
else
    skip_one "the cable: /sys cannot be mounted"
fi

# ---- copy ----
data=$head_home/data there=$worker_home/data
mkdir -p "$config/manifests" "$data/models/demo"
cp "$model"/config.json "$model"/tokenizer.json "$model"/model.safetensors "$data/models/demo/"
{
    echo "tandem-manifest 1"
    n=0 bytes=0
    for f in config.json:config tokenizer.json:tokenizer model.safetensors:weights; do
        path=$data/models/demo/${f%:*} size=$(stat -c %s "$data/models/demo/${f%:*}")
        echo "file demo tandem/demo 0123456789012345678901234567890123456789 ${f%:*} $size sha256" \
            "$(sha256sum "$path" | cut -c1-64) ${f#*:} both 1"
        n=$((n + 1)) bytes=$((bytes + size))
    done
    echo "end $n $bytes"
} >"$config/manifests/demo.manifest"
echo "PROFILE=demo" >>"$config/tandem.conf"
run head_t check D2
check "D2: nothing is missing on the head but the prepared file" says "D2 *head *0 GB"
run head_t check D2 --json
# 16.1 MB of weights: the worker needs all files and its part of the prepared ones.
check "D2: the worker lacks the files" says '"node":"worker"[^}]*"value":2[0-9]\{7\}'
run head_t copy
check "the copy ends well" test "$code" = 0
run head_t check D2 --json
check "D2: only the prepared file is missing now" says '"node":"worker"[^}]*"value":8[0-9]\{6\}'
for f in config.json tokenizer.json model.safetensors; do
    check "$f is there" same "$data/models/demo/$f" "$there/models/demo/$f"
done
check "verified there" test -s "$there/models/demo/model.safetensors.ok"
printf x | dd of="$there/models/demo/config.json" conv=notrunc status=none
rm -f "$there/models/demo/config.json.ok"
run head_t copy
check "a changed file is sent again" test "$code" = 0
check "and is right again" same "$data/models/demo/config.json" "$there/models/demo/config.json"
run head_t copy --attach
check "attached afterwards: how it ended" says "3 of 3 files"

# ---- prepare ----
run head_t prepare --self-test
check "prompt self-test" says "^PASS  39 prompts and 39 token lists"
run head_t prepare --layout cpu
check "both nodes are prepared" test "$code" = 0
check "two of two" says "verified 2 of 2 files"
pack0=$data/prepared/demo/cpu-1/rank-0-of-2.pack pack1=$there/prepared/demo/cpu-1/rank-1-of-2.pack
check "the head's pack" test -s "$pack0"
check "the worker's pack" test -s "$pack1"
check "each only where it belongs" test ! -e "${pack0%/*}/rank-1-of-2.pack"
run cat "$head_home/.local/state/tandem/prepared.json"
check "the record names both" says '"node":"worker","rank":1'
run on worker "$tandem" prepare --model "$there/models/demo" --out "$work/again" --ranks 2 --rank 1 --layout cpu
cmp -s <(tail -c +4097 "$pack1") <(tail -c +4097 "$work/again/cpu-1/rank-1-of-2.pack")
check "made on the worker by hand: the same bytes" test $? = 0

# A block that goes wrong on the worker is named by --check, and mended.
printf '\377' | dd of="$pack1" bs=1 seek=9000000 conv=notrunc status=none
run head_t prepare --layout cpu --check
check "the damaged block is made anew" test "$code" = 0
run cat "$jobs/prepare/status.json"
check "one block" says '"rank":1,"state":"done".*"mended_blocks":1'
cmp -s <(tail -c +4097 "$pack1") <(tail -c +4097 "$work/again/cpu-1/rank-1-of-2.pack")
check "as it was" test $? = 0

# Other weights on the worker are found, not served.
printf x | dd of="$there/models/demo/tokenizer.json" bs=1 seek=20 conv=notrunc status=none
rm -f "$pack1" && run head_t prepare --layout cpu
check "different files on the nodes" says "hold different model files; run .tandem copy"
rm -f "$pack1" "$there/models/demo/tokenizer.json.ok" && run head_t copy
run head_t prepare --layout cpu
check "after a copy it is right again" test "$code" = 0

# The worker goes away in the middle.
rm -f "$pack1" && node_sshd worker stop
run head_t prepare --layout cpu
check "the worker cannot be reached" says "cannot be reached\|refused\|worker"
check "that is a failure" test "$code" != 0
node_sshd worker start
run head_t prepare --layout cpu
check "the same command goes on" test "$code" = 0

run head_t check D2 --json
check "D2: nothing is missing any more" says '"node":"worker"[^}]*"value":0'

# A tokenizer that is not the model's stops it before anything is made.
cp "$data/models/demo/tokenizer.json" "$work/tokenizer.kept"
sed -i 's/"en": 300, "hat": 301/"en": 301, "hat": 300/' "$data/models/demo/tokenizer.json"
run head_t prepare --self-test
check "wrong token ids stop the preparing" test "$code" = 20
check "and are named" says "other token ids"
cp "$work/tokenizer.kept" "$data/models/demo/tokenizer.json"

done_testing
