#!/bin/bash
# Bad input: each time one sentence that says what to do, the exit code of its kind, nothing lost.
. "$(dirname "$0")/lib.sh"
unset TANDEM_MODEL_DIR

# refused NAME CODE PATTERN COMMAND...: one sentence on standard error, this exit code.
refused() {
    local name=$1 want=$2 pattern=$3
    shift 3
    shown=$("$@" 2>&1 >"$work/stdout" </dev/null)
    local code=$?
    check "$name: exit code $want (is $code)" is "$code" "$want"
    check "$name: one sentence" one_line "$shown"
    check "$name: says it" has "$shown" "$pattern"
}

copy_model() {
    rm -rf "$work/model"
    mkdir "$work/model"
    cp "$model"/* "$work/model/"
}

# Models. A failed start leaves no engine behind.
refused "missing model" 20 "no-such-folder" "$tandem" start --model "$work/no-such-folder"
mkdir "$work/empty"
refused "empty folder" 20 "config.json" "$tandem" start --model "$work/empty"
copy_model
weights=$(ls "$work/model"/*.safetensors | head -n 1)
truncate -s 1000 "$weights"
refused "truncated weights" 20 "$(basename "$weights")" "$tandem" start --model "$work/model"
copy_model
head -c 200000 /dev/urandom >"$weights"
refused "weights of noise" 20 "$(basename "$weights")" "$tandem" start --model "$work/model"
copy_model
rm "$weights"
refused "no weights" 20 "safetensors" "$tandem" start --model "$work/model"
copy_model
sed -i 's/Deepseek[A-Za-z0-9]*/LlamaForCausalLM/g' "$work/model/config.json"
refused "unknown architecture" 20 "LlamaForCausalLM" "$tandem" start --model "$work/model"
copy_model
echo '{"model":' >"$work/model/config.json"
refused "broken config" 20 "config.json" "$tandem" start --model "$work/model"
copy_model
echo '{}' >"$work/model/tokenizer.json"
refused "tokenizer that is none" 20 "tokenizer" "$tandem" start --model "$work/model"
refused "ask without a usable model" 20 "no-such-folder" "$tandem" ask --model "$work/no-such-folder" hi
check "no engine was left" is "$(engine_pid)" ""

# Socket in use by something else.
"$tandem" status >/dev/null 2>&1
if command -v perl >/dev/null; then
    mkdir -p "$XDG_RUNTIME_DIR/tandem"
    chmod 700 "$XDG_RUNTIME_DIR/tandem"
    perl -MIO::Socket::UNIX -e '
        my $s = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 5) or exit 1;
        open my $f, ">", $ARGV[1] or exit 1;
        while (my $c = $s->accept) { sysread $c, my $b, 4096; print $c "SSH-2.0-hello\r\n"; close $c }
    ' "$XDG_RUNTIME_DIR/tandem/engine.sock" "$work/listens" &
    other=$!
    wait_for 5 test -e "$work/listens"
    refused "socket of another program" 20 "TANDEM_SOCKET|in use|another program" "$tandem" start --timeout 60
    kill "$other"
    rm -f "$XDG_RUNTIME_DIR/tandem/engine.sock"
else
    skip_one "perl is not there, so no program can hold the socket"
fi
long=/tmp/$(printf 'x%.0s' $(seq 120))
refused "socket path too long" 20 "longer than 107 bytes" "$tandem" status --socket "$long"

# A stale socket file of a killed engine does not stand in the way.
export TANDEM_MODEL_DIR=$model
"$tandem" start >/dev/null 2>&1
find_engine
kill -KILL "$pid"
shown=$("$tandem" start 2>&1)
check "a stale socket is replaced" has "$shown" '^engine ready: '

# Text that is not UTF-8.
bad=$(printf 'caf\351')
refused "question not UTF-8" 2 "not UTF-8" "$tandem" ask "$bad"
printf 'caf\351\n' >"$work/latin1.txt"
refused "file not UTF-8" 2 "latin1.txt is not UTF-8" "$tandem" ask -f "$work/latin1.txt" hi
refused "missing file" 20 "no-such.txt" "$tandem" ask -f "$work/no-such.txt" hi
shown=$(printf 'caf\351\nWhat is water?\n/quit\n' | "$tandem" chat --plain 2>&1)
check "plain mode goes on after a line that is not UTF-8" has "$shown" 'not UTF-8.*not sent'
check "and answers the next" has "$shown" '^Assistant: '
refused "empty question" 2 "question is empty" "$tandem" ask ""
refused "no question" 2 "question is empty" "$tandem" ask

# Over the window.
head -c 400000 /dev/zero | tr '\0' 'a' | sed 's/aaaa/word /g' >"$work/long.txt"
refused "question over the window" 20 "window|context|tokens" "$tandem" ask -f "$work/long.txt" hi

# A full disk. A limit on the size of files stands for it, a small file system where we may mount.
long_answer() { (ulimit -f 8 && "$tandem" ask --session full "Count from 1 to 50." 2>&1); }
head -c 12000 /dev/zero | tr '\0' 'b' >"$work/big.txt"
shown=$( (ulimit -f 8 && "$tandem" ask --session full -f "$work/big.txt" "What is water?") 2>&1)
check "file size limit: exit code 20" is "$?" 20
check "file size limit: one sentence with the remedy" has "$shown" 'cannot be saved.*free some space'
shown=$(long_answer)
check "what fits still works" is "$?" 0
if mkdir "$work/small" && mount -t tmpfs -o size=64k tmpfs "$work/small" 2>/dev/null; then
    mkdir -p "$work/small/tandem/sessions"
    head -c 40000 /dev/zero >"$work/small/filler"
    shown=$(XDG_STATE_HOME=$work/small "$tandem" ask --session a "What is water?" 2>&1)
    before=$(XDG_STATE_HOME=$work/small "$tandem" sessions export a 2>/dev/null)
    head -c 60000 /dev/zero >"$work/small/filler2" 2>/dev/null
    shown=$(XDG_STATE_HOME=$work/small "$tandem" ask --session a -f "$work/big.txt" "What is gravity?" 2>&1)
    check "full disk: exit code 20" is "$?" 20
    check "full disk: says how to go on" has "$shown" 'free some space'
    rm "$work/small/filler2" "$work/small/filler"
    check "full disk: nothing written before is lost" is "$(XDG_STATE_HOME=$work/small "$tandem" sessions export a)" "$before"
    umount "$work/small"
else
    skip_one "no file system may be mounted here"
fi
shown=$("$tandem" ask "What is water?" 2>&1 >/dev/full)
check "a full output is said" has "$shown" 'output could not be written'

# Settings.
mkdir -p "$XDG_CONFIG_HOME/tandem"
conf=$XDG_CONFIG_HOME/tandem/tandem.conf
printf 'CONTEXT=4096\nCONTXT=1\n' >"$conf"
chmod 600 "$conf"
refused "unknown key" 20 "tandem.conf line 2: .*did you mean CONTEXT" "$tandem" config list
refused "start with bad settings" 20 "tandem.conf line 2" "$tandem" ask hi
printf 'CONTEXT=4096\n' >"$conf"
chmod 666 "$conf"
refused "file others may write" 20 "chmod 600" "$tandem" config get CONTEXT
chmod 600 "$conf"
refused "bad value" 2 "from 256 to 1048576" "$tandem" config set CONTEXT 7
refused "bad environment" 20 "TANDEM_CONTEXT" env TANDEM_CONTEXT=many "$tandem" config list
check "the file is as it was" is "$(cat "$conf")" "CONTEXT=4096"

# Sessions.
sessions=$XDG_STATE_HOME/tandem/sessions
printf 'hello\n' >"$sessions/foreign.journal"
refused "file that is no session" 20 "does not begin as a session" "$tandem" sessions show foreign
refused "unknown session" 20 "no session" "$tandem" sessions show xyzzy
refused "delete without a terminal" 2 "--yes" "$tandem" sessions delete full
name=$("$tandem" sessions list | grep ' full$' | cut -d' ' -f1)
printf 'half a rec' >>"$sessions/$name.journal"
shown=$("$tandem" ask --session full "What is water?" 2>&1)
check "a torn tail does not stand in the way" is "$?" 0
check "and is kept aside" test -s "$(ls "$sessions/$name".damaged-* | head -n 1)"

# Terminals that cannot show the full screen get plain mode and the reason.
on_terminal() { # environment..., -- ; input on standard input
    script -qec "$*" /dev/null 2>/dev/null | tr -d '\r'
}
if command -v script >/dev/null; then
    shown=$(printf '/quit\n' | on_terminal env -u TERM "$tandem" chat)
    check "TERM unset: plain mode and why" has "$shown" 'plain mode, because TERM is not set'
    check "TERM unset: no escape sequence" no_escape "$shown"
    shown=$(printf '/quit\n' | on_terminal env TERM=no-such-terminal "$tandem")
    check "TERM unknown: plain mode and why" has "$shown" 'plain mode, because .*no-such-terminal'
    shown=$(printf '/quit\n' | on_terminal env TERM=dumb "$tandem" chat)
    check "TERM=dumb: plain mode" has "$shown" 'plain mode, because TERM is dumb'
    shown=$(printf '/quit\n' | on_terminal env ACCESSIBLE=1 TERM=xterm "$tandem")
    check "ACCESSIBLE: plain mode" has "$shown" 'plain mode, because ACCESSIBLE is set'
else
    skip_one "script is not there, so there is no terminal"
fi

# Command line.
refused "unknown command" 2 "did you mean status" "$tandem" statu
refused "unknown option" 2 "no option --jsn" "$tandem" status --jsn
refused "bad setting of the chat" 2 "from 0 to 2" "$tandem" ask --set temp=9 hi
refused "bad effort" 2 "no thinking effort" "$tandem" ask --thinking lots hi
refused "no terminal" 2 "needs a terminal" "$tandem"
refused "bad protocol" 2 "no protocol" "$tandem" bench fast
refused "logs of an unknown machine" 2 "head or worker" "$tandem" logs --node moon
refused "logs of a worker that is not set up" 40 "no worker is set up" "$tandem" logs --node worker
refused "key file that is not there" 20 "no-such" "$tandem" verify --key-file "$work/no-such"
refused "too many ranks" 2 "from 1 to 16" "$tandem" prepare --ranks 99
refused "undo of an unknown change" 20 "no change 7" "$tandem" undo apply --yes 7
refused "watching a job that never ran" 20 "no download has run yet" "$tandem" download --attach
shown=$("$tandem" api requests --json)
check "requests are one object of ours" has "$shown" '^\{"v":1,"running":\[.*\}$'
"$tandem" stop >/dev/null 2>&1
refused "entry of a cache without an engine" 41 "no engine" "$tandem" cache rm 1
refused "quantize without bits" 2 "which bits" "$tandem" model quantize a b
refused "quantize of nothing" 20 "config.json|no-such" "$tandem" model quantize "$work/no-such" "$work/q" --bits '*=3'
done_testing
