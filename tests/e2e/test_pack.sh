#!/bin/bash
# The engine from rank packs: the same answers as from the model folder, on one rank and on two; kill -9
# while they are made; a damaged pack is refused with the way out.
. "$(dirname "$0")/lib.sh"
packs=$work/packs
prepare() { "$tandem" prepare --model "$model" --out "$packs" --layout cpu "$@" >"$work/said" 2>&1; }
ask() { # SOCKET
    curl -s --unix-socket "$1" http://x/v1/completions -H 'content-type: application/json' \
        -d '{"prompt":"Water is","max_tokens":40,"temperature":0,"logprobs":2}' |
        sed 's/"id":"[^"]*"//; s/"created":[0-9]*//; s/"timings":.*//; s/"system_fingerprint":"[^"]*"//'
}
ready() { curl -s --unix-socket "$1" http://x/ready | grep -q '"ready"\|ok'; }
# Starts an engine, asks, stops it; the answer is in $shown.
serve() { # NAME ARGUMENTS...
    local socket=$work/run/$1.sock log=$work/$1.log
    shift
    "$out/tandemd" "$@" --model "$model" --socket "$socket" --slots 1 --context 512 --no-cache \
        >"$log" 2>&1 </dev/null &
    local pid=$!
    wait_for 120 curl -sf -o /dev/null --unix-socket "$socket" http://x/ready || tail -n 3 "$log"
    shown=$(ask "$socket")
    kill -TERM $pid
    wait $pid
}
command -v curl >/dev/null || skip_all "there is no curl"

serve plain
plain=$shown
check "an answer without a pack" has "$plain" '"text":'

# Killed again and again while the packs are made; what is there is used.
n_kills=0
for ms in 5 30 60 90 120 200 300; do
    "$tandem" prepare --model "$model" --out "$packs" --layout cpu --ranks 1 --job >/dev/null 2>&1 &
    pid=$!
    sleep "0.$(printf %03d $ms)"
    kill -KILL $pid 2>/dev/null && n_kills=$((n_kills + 1))
    wait $pid 2>/dev/null
done
prepare --ranks 1
check "prepared after $n_kills kills" is $? 0
serve packed --pack "$packs"
check "the same answer from the pack" is "$shown" "$plain"

prepare --ranks 2
check "both ranks prepared" is $? 0
# Port 0: one that nobody has; other tests may have two ranks at the same time.
serve pair pair --meet 127.0.0.1:0
pair=$shown
serve packed-pair pair --meet 127.0.0.1:0 --pack "$packs"
check "two ranks answer" has "$shown" '"text":'
check "two ranks: the same from their packs" is "$shown" "$pair"

printf '\377\377\377' | dd of="$packs/cpu-1/rank-0-of-1.pack" bs=1 seek=5000000 conv=notrunc status=none
shown=$(timeout 120 "$out/tandemd" --model "$model" --pack "$packs" --socket "$work/run/bad.sock" 2>&1 </dev/null)
code=$?
check "a damaged pack is refused" is $code 20
check "block, tensors and remedy are named" has "$shown" \
    'block [0-9]+ of [0-9]+ .* is damaged; it holds .*tandem prepare --check'
prepare --ranks 1 --check
check "mended" is $? 0
serve mended --pack "$packs"
check "and right again" is "$shown" "$plain"
shown=$(timeout 120 "$out/tandemd" --model "$model" --pack "$packs/cpu-1/rank-1-of-2.pack" \
    --socket "$work/run/bad.sock" 2>&1 </dev/null)
check "the pack of another rank is refused" has "$shown" 'holds rank 1 of 2, this process is rank 0 of 1'
done_testing
