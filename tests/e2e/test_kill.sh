#!/bin/bash
# kill -9 of the engine and of the client in the middle of a reply: nothing kept is lost, the next
# start works. The engine is held (SIGSTOP) as soon as the first words came, so that it is the middle.
. "$(dirname "$0")/lib.sh"

# About 900 tokens of the demo model.
long_question="Count from 1 to 200."
"$tandem" start --threads 1 >/dev/null 2>&1 || skip_all "the engine does not start"
find_engine

# Runs a command in the background and stops the engine in the middle of its reply: the engine is let
# run bit by bit until the pattern is in the output. Sets $client.
in_mid_reply() { # pattern command...
    local pattern=$1
    shift
    : >"$work/reply"
    kill -STOP "$pid"
    "$@" >"$work/reply" 2>"$work/reply.err" &
    client=$!
    begins() { let_run "$pid" && sleep 0.01 && grep -Eq "$pattern" "$work/reply"; }
    wait_for 30 begins
}

# The engine dies under `ask`.
in_mid_reply '"event":"text"' "$tandem" ask --stream --session broken "$long_question"
check "the reply had begun" is "$?" 0
kill -KILL "$pid"
wait "$client"
code=$?
shown=$(cat "$work/reply" "$work/reply.err")
check "ask says that the engine ended" has "$shown" 'the engine ended during the reply'
check "its exit code is 41" is "$code" 41
check "the partial text is in the last object" has "$shown" '"event":"end","state":"failed","text":"[^"]+'
shown=$("$tandem" sessions export broken --format json)
check "the session keeps the partial text" has "$shown" '"state":"failed".*"text":"[^"]+'
check "the next question starts an engine" "$tandem" ask "What is water?" >/dev/null 2>&1
old=$pid
check "it is another process" eval 'find_engine && [ "$pid" != "$old" ]'

# The engine dies under the plain chat; /continue goes on with the reply.
mkfifo "$work/in"
exec 9<>"$work/in"
printf '%s\n' "$long_question" >&9
in_mid_reply '^Assistant: [0-9]+, ' sh -c '"$0" chat --plain --chunk word <"$1"' "$tandem" "$work/in"
check "the chat reply had begun" is "$?" 0
kill -KILL "$pid"
check "the chat says what is kept" wait_for 10 grep -q 'the text so far is kept' "$work/reply"
printf '/engine start\n/continue\n/stats\n/quit\n' >&9
wait "$client"
exec 9>&-
shown=$(cat "$work/reply")
check "the engine comes back" has "$shown" '^Status: the engine is ready'
check "the reply is gone on with" has "$shown" '^Status: last reply: '
shown=$("$tandem" sessions export "Count from" --format json 2>&1 || "$tandem" sessions list)
check "both parts are one reply" is "$(printf '%s' "$shown" | grep -o '"role":"assistant"' | wc -l)" 1
find_engine

# The client dies in the middle; the engine lives, the session has what came until the last write.
in_mid_reply '"event":"text"' "$tandem" ask --stream --session orphan "$long_question"
check "the third reply had begun" is "$?" 0
part_is_kept() { has "$("$tandem" sessions export orphan --format json 2>&1)" '"role":"assistant".*"text":"[0-9]'; }
check "what came is in its journal" wait_for 10 part_is_kept
kill -KILL "$client"
wait "$client" 2>/dev/null
kill -CONT "$pid"
check "the engine survives its client" "$tandem" status >/dev/null
shown=$("$tandem" sessions export orphan --format json)
check "the orphan's text is kept" has "$shown" '"state":"interrupted".*"text":"[^"]+'
check "the session can be gone on with" "$tandem" ask --session orphan "What is water?" >/dev/null
check "and the engine serves it" is "$(engine_pid)" "$pid"

# Ctrl-C stops the answer and exits with 130.
in_mid_reply '"event":"text"' "$tandem" ask --stream "$long_question"
kill -TERM "$client"
wait "$client"
code=$?
kill -CONT "$pid"
check "an interrupted ask exits with 130" is "$code" 130
check "its text is kept in a session" has "$(cat "$work/reply.err")" 'kept as session'

# Two starts at once make one engine.
"$tandem" stop >/dev/null
"$tandem" start >"$work/a" 2>&1 &
a=$!
"$tandem" start >"$work/b" 2>&1 &
b=$!
wait "$a"
code_a=$?
wait "$b"
code_b=$?
shown=$(cat "$work/a" "$work/b")
check "both starts end well" is "$code_a $code_b" "0 0"
check "one of them found the other's" is "$(grep -c 'running already' "$work/a" "$work/b" | grep -o ':[01]' | sort | tr -d '\n')" ":0:1"
done_testing
