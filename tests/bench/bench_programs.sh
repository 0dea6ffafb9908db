#!/bin/bash
# The programs as a user meets them: from nothing to an accepted prompt and to the first answer, speed
# through the daemon, memory. Best and median of RUNS.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "$0")/../e2e/lib.sh"
runs=${RUNS:-7}
now_ms() { echo $(($(date +%s%N) / 1000000)); }
spread() { sort -n | awk '{ v[NR] = $1 } END { printf "best %s, median %s of %d", v[1], v[int((NR + 1) / 2)], NR }'; }
spread_down() { sort -rn | awk '{ v[NR] = $1 } END { printf "best %.0f, median %.0f of %d", v[1], v[int((NR + 1) / 2)], NR }'; }
field() { grep -o "\"$1\":[0-9.]*" | tail -n 1 | cut -d: -f2; }
rss_mb() { awk '/^VmHWM/ { printf "%.1f", $2 * 1024 / 1000000 }' "/proc/$1/status"; }
repeat() { for ((i = 0; i < runs; i++)); do "$@"; done; }

start_once() {
    "$tandem" stop >/dev/null 2>&1
    local from
    from=$(now_ms)
    "$tandem" start >/dev/null && echo $(($(now_ms) - from))
}
ask_once() {
    "$tandem" stop >/dev/null 2>&1
    local from
    from=$(now_ms)
    "$tandem" ask 'What is water?' >/dev/null && echo $(($(now_ms) - from))
}
decode_once() { "$tandem" ask --json 'Count from 1 to 300.' | field tokens_per_s; }
# Other words each time, so that no prefix is in the cache.
prefill_once() {
    local text
    text=$(for ((k = 0; k < 90; k++)); do printf 'Word %d%d is a small word. ' $i $k; done)
    "$tandem" ask --json -f <(echo "$i $text") 'What is water?' |
        sed -E 's/.*"prompt_tokens":([0-9]+).*"first_s":([0-9.]+).*/\1 \2/' | awk '{ print $1 / $2 }'
}

echo "from tandem to a ready engine: $(repeat start_once | spread) ms"
echo "from tandem to a whole first answer, engine started: $(repeat ask_once | spread) ms"
echo "decode through the daemon, 1024 tokens of counting: $(repeat decode_once | spread_down) tokens/s"
echo "prompt through the daemon, to its first token: $(repeat prefill_once | spread_down) tokens/s"
echo "memory of tandemd at its most: $(rss_mb "$(engine_pid)") MB"
