#!/bin/bash
# A worker that lies: its helper and its tools answer with sequences that would steer a terminal, with
# floods, with nesting, with numbers out of range. The head shows none of it raw, does not end by a
# signal and does not wait for ever.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/fake_nodes.sh"
[ -x "$out/tandem-node" ] || skip_all "tandem-node is not built"
command -v script >/dev/null || skip_all "no program script: nothing here has a terminal"
finish() { nodes_stop; }
nodes_start
nodes_trust
nodes_settings

esc=$(printf '\033')
bell=$(printf '\007')
steer="$esc]0;owned$bell$esc[2J"
helper=$worker_home/data/.tandem/bin/tandem-node
mkdir -p "$(dirname "$helper")" "$worker_home/data/cache"

# On a terminal, where it would matter.
on_terminal() {
    # shellcheck disable=SC2086
    shown=$(timeout 120 nsenter -t "$(node_pid head)" -m -u -i -n -p -- env -i HOME="$head_home" \
        PATH="$nodes_path" TANDEM_ALLOW_ROOT=1 LC_ALL=C.UTF-8 TERM=xterm \
        script -qec "$tandem $1" /dev/null 2>&1 </dev/null)
    code=$?
}
harmless() { [ "$code" -lt 124 ] && ! printf '%s' "$shown" | grep -aqF -e "$esc]0;owned" -e "$esc[2J" -e "$bell"; }
try() { # WHAT COMMAND...
    local what=$1 words
    shift
    for words in "$@"; do
        on_terminal "$words"
        check "$what: tandem $words" harmless
    done
}

cat >"$helper" <<END
#!/bin/sh
printf '{"v":1,"ok":true,"running":true,"state":"ready$steer","reason":"x$steer","build":"b$steer","start_id":"$steer","phase":"$steer","pid":-7,"files":-5,"bytes":99999999999999999999}\n'
printf 'tandem-node: $steer bad\n' >&2
END
chmod 755 "$helper"
try "sequences in JSON" "status" "status --json" "doctor" "cache wipe --yes" "stop"
sed -i '$a exit 3' "$helper"
try "sequences in an error" "status" "stop" "cache wipe --yes"
check "what it said is told, without the sequence" has "$shown" 'tandem-node: +bad'
printf '#!/bin/sh\nexec yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n' >"$helper"
try "a flood" "status" "cache wipe --yes"
printf '#!/bin/sh\nhead -c 100000 /dev/zero | tr "\\0" "["\n' >"$helper"
try "nesting" "status" "cache wipe --yes"
for tool in uname hostname stat id cat; do
    printf '#!/bin/sh\nprintf "%%s\\n" "%s"\n' "$steer" | node_tool worker $tool
done
try "tools" "check V1" "check V7" "node list" "status --json"

done_testing
