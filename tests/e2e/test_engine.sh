#!/bin/bash
# tandem start, restart and status on one machine, and what commands say that lack something: a plan that
# starts nothing, another model than the one that runs, a second machine or a profile that is missing.
. "$(dirname "$0")/lib.sh"

socket=$XDG_RUNTIME_DIR/tandem/engine.sock

# --dry-run only shows.
shown=$("$tandem" start --dry-run 2>&1)
check "a plan ends well" is $? 0
check "the command is shown" has "$shown" '^start +[^ ]*/tandemd --socket '
check "and its log" has "$shown" '^log +/.*engine\.log$'
check "and the memory it would take" has "$shown" '^memory +weights [0-9.]+ MiB, .*window [0-9]+ tokens'
check "nothing was started" test ! -e "$socket"
shown=$("$tandem" restart --dry-run 2>&1)
check "nor by restart" test ! -e "$socket"
check "which says the same" has "$shown" '^nothing was started or stopped$'
json=$("$tandem" start --dry-run --json)
check "as one object" has "$json" '"dry_run":true,"running":null,.*"command":\[".*tandemd"'
shown=$("$tandem" start --dry-run --model /nowhere 2>&1)
check "a start that would be refused" is $? 20
check "says why" has "$shown" 'it would be refused: '
check "and starts nothing either" test ! -e "$socket"

# The engine runs.
"$tandem" start >/dev/null 2>&1
pid=$(engine_pid)
check "an engine runs" test -n "$pid"
shown=$("$tandem" start --dry-run)
check "a plan knows of it" has "$shown" '^running +the engine runs already \(ready\); nothing would be started'
shown=$("$tandem" restart --dry-run)
check "a restart would stop it first" has "$shown" '^stop +the engine that runs \(ready\)'
check "it is the same one" is "$(engine_pid)" "$pid"
shown=$("$tandem" status)
check "status says the model once" has "$shown" '^model     tandem-demo'
check "paths have no detours" has_not "$("$tandem" status --json)$("$tandem" model list)" '/\.\./'

# Another model than the one that runs is not taken silently.
cp -r "$model" "$work/other"
shown=$("$tandem" ask --model "$work/other" 'What is water?' 2>&1 >/dev/null)
check "the model that was asked for is not the one that runs" has "$shown" '--model is not used: .*tandem restart --model'
shown=$("$tandem" start --model "$work/other" 2>&1)
check "start says so too" is $? 10
check "in the same words" has "$shown" '--model is not used'
shown=$("$tandem" start --model "$model" 2>&1)
check "the one that runs is no news" is $? 0

# Thinking and answer do not run together.
"$tandem" ask --thinking on --show-thinking 'What is water?' >"$work/both" 2>&1
"$tandem" ask --thinking on --show-thinking 'What is water?' >"$work/answer" 2>"$work/thought"
check "there was thinking" test -s "$work/thought"
check "it ends with its line" is "$(tail -c 1 "$work/thought" | od -An -c | tr -d ' ')" '\n'
check "the answer has its own line" grep -qxF -- "$(head -n 1 "$work/answer")" "$work/both"

# What is missing is said, with what to do.
shown=$("$tandem" link prove 2>&1)
check "no cable without a second machine" is $? 20
check "and what to do" has "$shown" 'no worker is set up; .*tandem config set WORKER_SSH'
for job in download copy; do
    shown=$("$tandem" $job 2>&1)
    check "$job without a profile is refused" is $? 20
    check "$job: one sentence" one_line "$shown"
    check "$job: no share of nothing" has_not "$shown" '%'
done
shown=$("$tandem" prepare 2>&1)
check "prepare without a place is one sentence" one_line "$shown"
shown=$("$tandem" config set MODEL_DIR "$work/nowhere" 2>&1)
check "a folder that is not there is no model" is $? 20
check "and is not kept" is "$("$tandem" config get MODEL_DIR)" "${TANDEM_MODEL_DIR:-}"
shown=$("$tandem" config set MODEL_DIR "$work/home" 2>&1)
check "one without a model is named" has "$shown" 'has no config.json'
"$tandem" config unset MODEL_DIR >/dev/null 2>&1

# Where the model of a pair comes from, of a pinned profile, also while the worker is away.
"$tandem" stop >/dev/null 2>&1
for pair in "WORKER_SSH me@127.0.0.1:1" "HEAD_IP_A 127.0.0.1" "WORKER_IP_A 127.0.0.1" "WORKER_DATA /data" \
    "HEAD_DATA $work/data" "PROFILE 0909-mia-2.9bpw"; do
    # shellcheck disable=SC2086
    "$tandem" config set $pair
done
json=$(env -u TANDEM_MODEL_DIR "$tandem" status --json)
check "status of a pinned profile: the worker is away" is $? 40
check "its profile" has "$json" '"provenance":\{.*"profile":"0909-mia-2.9bpw","manifest":"[0-9a-f]{64}"'
check "repository and commit of the weights" has "$json" '"repository":"Mia-AiLab/DeepSeek-V4.1-Flash-EXL3-2.9bpw","commit":"64ba41b6c916a587db06eae2e19b7845f7be6e6b"'
check "their files and bytes" has "$json" '"role":"weights","files":[0-9]+,"bytes":210679295530'
check "repository and commit of the tables" has "$json" '"commit":"dba1be0a40aa45a94ad051997016db3960a90277","licence":"MIT","role":"engram","files":4,"bytes":203080551181'
check "digests" has "$json" '"model.safetensors.index.json":"e35cb7c2f779a04e564accbdc6ddb01d775793255b2c6d8ca2b0492c21fc88f2"'
check "licences of model, tables and template" is "$(printf '%s' "$json" | grep -o '"part":"[a-z]*"' | tr '\n' ' ')" '"part":"model" "part":"tables" "part":"template" '
check "versions of this machine" has "$json" '"versions":\[\{"node":"head","host":"[^"]+",.*"os":"[^"]+",.*"kernel":"[^"]+",.*"is_now":true'
check "a plan for a pair without its worker is refused" eval 'shown=$("$tandem" start --dry-run 2>&1); [ $? = 40 ]'
done_testing
