#!/bin/bash
# tandem support: shown before it is written, secrets and names taken out, nothing written without a yes.
. "$(dirname "$0")/lib.sh"
cd "$work" || exit 1

"$tandem" start >/dev/null 2>&1
mkdir -p "$XDG_STATE_HOME/tandem/logs"
echo "2026-11-30T10:00:00Z info engine: token hf_abcdefghijklmnop from 93.184.216.34 aa:bb:cc:dd:ee:ff" \
    >>"$XDG_STATE_HOME/tandem/logs/engine.log"

shown=$("$tandem" support --print 2>&1)
check "it can be shown alone" has "$shown" '^==== versions ====$'
check "the state of the engine is in it" has "$shown" '"state":"ready"'
check "checks are in it" has "$shown" '==== checks of this machine ===='
check "the log is in it" has "$shown" 'token <secret> from <address> aa:bb:cc:xx:xx:xx'
check "no token" has_not "$shown" 'hf_abcdef'
check "no host name" has_not "$(printf '%s' "$shown" | grep -w -- "$(hostname)")" .
check "showing writes nothing" is "$(ls tandem-support-* 2>/dev/null | wc -l)" 0

shown=$("$tandem" support </dev/null 2>&1 >/dev/null)
code=$?
check "without a yes nothing is written" is "$code" 30
check "and that is said" has "$shown" 'nothing was written'
check "no file" is "$(ls tandem-support-* 2>/dev/null | wc -l)" 0

shown=$("$tandem" support --json </dev/null 2>&1)
check "as JSON it wants to know where the text goes" is "$?" 2
check "which is one sentence" one_line "$shown"
shown=$("$tandem" support --print --json)
check "as JSON the text is in the one object" has "$shown" '^\{"v":1,"file":null,.*"text":".*==== versions ====.*"\}$'
check "and nothing else" is "$(printf '%s\n' "$shown" | wc -l)" 1

shown=$("$tandem" support --yes --json --output bundle.txt)
check "a yes writes" has "$shown" '"file":"bundle.txt","bytes":[0-9]+,"secrets":[1-9]'
check "the file is private" is "$(stat -c %a bundle.txt)" 600
check "the file has no token" has_not "$(cat bundle.txt)" 'hf_abcdef'
shown=$("$tandem" support --yes --output /proc/nowhere/x 2>&1)
check "a place that cannot be written is one sentence" one_line "$shown"

# The log of requests holds prompts: it can be emptied while an engine writes it.
log=$XDG_STATE_HOME/tandem/logs/requests.jsonl
echo '{"text":"my diary"}' >"$log"
echo '{"text":"an older diary"}' >"$log.1"
shown=$("$tandem" logs --wipe)
check "wipe: says how much" has "$shown" 'is empty \(46 bytes wiped\)'
check "wipe: nothing is left" eval '[ ! -s "$log" ] && [ ! -s "$log.1" ]'
check "wipe: the log of the engine stays" test -s "$XDG_STATE_HOME/tandem/logs/engine.log"
shown=$("$tandem" logs --wipe --json 2>&1)
check "wipe: again is no error" is $? 0
check "wipe: as one object" is "$shown" '{"v":1,"wiped_bytes":0}'

done_testing
