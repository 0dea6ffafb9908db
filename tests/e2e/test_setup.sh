#!/bin/bash
# tandem setup and tandem undo from the shell: plans and their ids, answers, line by line, exit codes.
. "$(dirname "$0")/lib.sh"

# Nothing listens on port 1 of this machine.
answers=$work/answers
echo 'WORKER_SSH=me@127.0.0.1:1' >"$answers"

plan_id() { printf '%s\n' "$1" | sed -n 's/^plan \([0-9a-f]*\);.*/\1/p'; }

shown=$("$tandem" setup --dry-run)
check "a dry run ends well" is $? 0
first=$(plan_id "$shown")
check "it names the plan" has "$first" '^[0-9a-f]{16}$'
check "it says what runs later" has "$shown" 'tandem download'
check "and what cannot be shown yet" has "$shown" 'waits for step 1, Find'
check "a step without its answer is listed" has "$shown" '^step 1, Find; head: needs an answer: WORKER_SSH'
check "the end says what to do" has "$shown" 'setup --dry-run --answers FILE'
check "and not what cannot go" has_not "$shown" 'yes --plan'
shown=$("$tandem" setup --dry-run)
check "the same plan has the same id" is "$(plan_id "$shown")" "$first"
check "a dry run writes nothing" test ! -e "$XDG_CONFIG_HOME/tandem/tandem.conf"
shown=$("$tandem" setup --dry-run --answers "$answers")
check "another answer, another plan" test "$(plan_id "$shown")" != "$first"
check "the command to carry it out names the answers too" has "$shown" "tandem setup --yes --plan [0-9a-f]{16} --answers $answers\$"
cp "$answers" "$work/my answers"
shown=$("$tandem" setup --dry-run --answers "$work/my answers")
check "quoted where a shell needs it" has "$shown" "--answers '$work/my answers'\$"
eval "again=\$(XDG_STATE_HOME=$work/state2 XDG_CONFIG_HOME=$work/config2 \"\$tandem\" $(printf '%s\n' "$shown" | sed -n 's/^  tandem \(setup --yes .*\)/\1/p') 2>&1)"
check "as it stands it is accepted" has_not "$again" 'not the one that was shown'
check "each change has its step" has "$shown" '^step 7, Download; head: '
json=$("$tandem" setup --dry-run --json)
check "as JSON too" has "$json" "\"plan_id\":\"$first\""

if [ "$(id -u)" = 0 ]; then
    for words in "--yes --plan $first" "--plain"; do
        # shellcheck disable=SC2086
        shown=$(env -u TANDEM_ALLOW_ROOT "$tandem" setup $words 2>&1 </dev/null)
        check "root is refused: $words" test $? != 0
        check "with what to do instead: $words" has "$shown" 'does not run as root; start it as your own user'
    done
    check "and nothing was written" test ! -e "$XDG_STATE_HOME/tandem/setup/journal.jsonl"
fi
shown=$("$tandem" setup --yes 2>&1)
check "--yes alone is wrong use" is $? 2
check "and says what is missing" has "$shown" '--dry-run'
shown=$("$tandem" setup --yes --plan 0123456789abcdef 2>&1)
check "another plan is refused" is $? 20
check "with both ids" has "$shown" "$first now, not 0123456789abcdef"
shown=$("$tandem" setup --yes --plan "$first" 2>&1)
check "a plan without answers stops at the question" is $? 20
check "and names the step" has "$shown" 'step 1, Find, is not done'

shown=$("$tandem" setup --dry-run --answers "$answers")
id=$(plan_id "$shown")
shown=$("$tandem" setup --yes --plan "$id" --answers "$answers" 2>&1)
check "a worker that refuses ends the run" is $? 40
check "with what happened" has "$shown" 'what: worker \(127\.0\.0\.1\) answers but refuses port 1'
check "with why it matters" has "$shown" 'why:  The machine is there'
check "with what to do" has "$shown" 'next: On the worker: sudo systemctl enable --now ssh'

echo 'WORKER_SHH=x' >"$work/bad"
shown=$("$tandem" setup --dry-run --answers "$work/bad" 2>&1)
check "an unknown answer is refused" is $? 20
check "with its line and the nearest name" has "$shown" 'bad:1: .*WORKER_SSH'

# Words that lead out of a question are no answers.
shown=$(printf 'quit\n' | "$tandem" setup 2>&1)
check "quit leaves" is $? 30
check "with a word on how to go on" has "$shown" 'tandem setup goes on there'
check "the way out is told first" has "$shown" 'back goes to the one before, quit leaves'
check "steps are counted from 0 to 16" has "$shown" '^Step 1 of 16: Find'
check "quit is no host" has_not "$(cat "$XDG_STATE_HOME"/tandem/setup/answers* 2>/dev/null)" 'WORKER_SSH=quit'
shown=$(printf 'back\nme@10.0.0.256\nme@spark..b\nme@127.0.0.1:1\n' | "$tandem" setup 2>&1)
check "back from the first question stays there" has "$shown" 'nothing was asked before this'
shown_b=$(printf 'b\nquit\n' | "$tandem" setup 2>&1)
check "b is back" has "$shown_b" 'nothing was asked before this'
check "the advice is for who types" has "$shown" 'ssh\. Then type tandem setup again\.'
check "the fault is said once" is "$(printf '%s\n' "$shown" | grep -c 'refuses port 1')" 1
check "a mistyped address is told" has "$shown" 'WORKER_SSH is "me@10.0.0.256"'
check "a mistyped name is told" has "$shown" 'WORKER_SSH is "me@spark..b"'
echo 'WORKER_SSH=quit' >"$work/bad"
shown=$("$tandem" setup --dry-run --answers "$work/bad" 2>&1)
check "nor is it one in a file" is $? 20

# Line by line, answers on standard input.
shown=$(printf '?\na b\nme@127.0.0.1:1\n' | "$tandem" setup 2>&1)
check "line by line it ends where it must" is $? 40
check "a question explains itself" has "$shown" 'The other Spark is reached by ssh'
check "a wrong answer is told" has "$shown" 'WORKER_SSH'
check "no escape sequence" no_escape "$shown"
shown=$("$tandem" setup </dev/null 2>&1)
check "the end of the input is the user's" is $? 30
check "and answers are kept" has "$shown" 'answers are kept'

shown=$("$tandem" setup --check 2>&1)
check "looking finds the failure" is $? 20
check "each step has its mark" has "$shown" '^!!  1 Find'
check "steps that wait say for what" has "$shown" '^--  2 Trust +waits for step 1, Find'
shown=$("$tandem" setup --check --json)
check "every step as an object" is "$(printf '%s\n' "$shown" | grep -c '"v":1')" 17

shown=$("$tandem" undo list 2>&1)
check "nothing was changed, so nothing to undo" has "$shown" 'changed nothing'
"$tandem" undo apply --yes >/dev/null 2>&1
check "undoing nothing ends well" is $? 0
done_testing
