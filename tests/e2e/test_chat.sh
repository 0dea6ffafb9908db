#!/bin/bash
# Five turns in plain mode, single questions, status: the real engine with the demo model.
. "$(dirname "$0")/lib.sh"

shown=$(printf '%s\n' 'Hello' 'What is water?' 'What is 12 plus 30?' '"""' 'What is' 'gravity?' '"""' \
    'Thank you.' '/stats' '/sessions' '/quit' | "$tandem" chat --plain 2>"$work/err")
code=$?
check "plain mode ends well" is "$code" 0
check "plain mode says why" has "$shown" '^Status: plain mode, because --plain was given$'
check "five questions" is "$(printf '%s\n' "$shown" | grep -c '^You: [^/]')" 5
check "five answers" is "$(printf '%s\n' "$shown" | grep -c '^Assistant: .')" 5
check "the sum is right" has "$shown" '42'
check "the lines of a block are one message" has "$shown" '^gravity\?$'
check "rate is told" has "$shown" 'last reply: [0-9]+ tokens, [0-9.]+ tokens per second'
check "no escape sequence" no_escape "$shown"
check "nothing on standard error" is "$(cat "$work/err")" ""

shown=$("$tandem" sessions list)
check "the session has five turns" has "$shown" '   5 turns  Hello'
name=${shown%% *}
shown=$("$tandem" sessions export "$name" --format json)
check "the export has the turns" is "$(printf '%s' "$shown" | grep -o '"role":"assistant","state":"done"' | wc -l)" 5

shown=$(printf 'And 5 plus 5?\n' | "$tandem" chat --plain -c 2>&1)
check "the session goes on" has "$shown" 'session "Hello", 10 messages'
check "and keeps the new turn" has "$("$tandem" sessions list)" '   6 turns  Hello'

shown=$("$tandem" ask What is water?)
check "ask answers" has "$shown" '[Ww]ater'
check "ask exits with 0" "$tandem" ask "What is water?" >/dev/null
shown=$(printf 'What is 7 plus 8?\n' | "$tandem" ask)
check "ask reads standard input" has "$shown" '15'
shown=$("$tandem" ask --json --thinking on "What is 12 plus 30?")
check "ask --json is one object" has "$shown" '^\{"v":1,.*"state":"done","text":"[^"]*42.*"thinking":"[^"]+".*"completion_tokens":[0-9]+.*\}$'
shown=$("$tandem" ask --stream "What is 12 plus 30?")
check "ask --stream gives events" has "$shown" '^\{"v":1,"event":"text","text":"'
check "ask leaves no session of a printed answer" is "$("$tandem" sessions list | wc -l)" 1
shown=$("$tandem" ask --session sums "What is 2 plus 2?" && "$tandem" ask --session sums "And 3 plus 3?")
check "ask --session begins and goes on" has "$("$tandem" sessions list)" '   2 turns  sums'
shown=$("$tandem" ask --set max=3 "Count from 1 to 50." 2>&1)
check "a cut answer is said" has "$shown" 'cut at the length limit'
printf 'alpha beta\n' >"$work/note.txt"
shown=$("$tandem" ask -f "$work/note.txt" "What is water?")
check "ask takes a file" is "$?" 0

shown=$("$tandem" status --json)
check "status has the engine" has "$shown" '^\{"v":1,"socket":".*"engine":\{.*"state":"ready".*"stats":\{.*"ranks":\['
check "status exits with 0" "$tandem" status >/dev/null
check "the engine was started once" is "$(grep -c ' ready socket=' "$XDG_STATE_HOME/tandem/logs/engine.log")" 1
shown=$("$tandem" logs -n 3)
check "logs show the engine" has "$shown" "api: reply ended"
shown=$("$tandem" bench first --reps 1 --json)
check "bench gives a summary" has "$shown" '"summary":"s","median":[0-9.]+'
shown=$("$tandem" stop 2>&1)
check "stop stops" is "$shown" "engine stopped"
"$tandem" status >/dev/null
check "status of no engine is 41" is "$?" 41
done_testing
