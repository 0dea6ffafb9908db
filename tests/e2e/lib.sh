# Shared by the end-to-end tests; sourced. Each test gets folders of its own and the real programs.
# shellcheck shell=bash
set -u
out=${OUT:-build}
case $out in /*) ;; *) out=$PWD/$out ;; esac
tandem=$out/tandem
top=${TANDEM_SOURCE_DIR:-$PWD}
n_passed=0 n_failed=0 n_skipped=0

skip_all() {
    echo "skipped: $1"
    exit 77
}

[ -x "$tandem" ] && [ -x "$out/tandemd" ] || skip_all "the programs are not built"

# The built-in model, or the unquantized one where that is not there yet.
model=$top/templates/demo-model
if [ ! -f "$model/config.json" ]; then
    model=${DEMO_WEIGHTS:-}
    [ -n "$model" ] && [ -f "$model/config.json" ] || skip_all "there is no demo model"
fi

# Short, because a socket path has 107 bytes at most.
work=$(mktemp -d /tmp/tandem-e2e.XXXXXX) || exit 1
export XDG_CONFIG_HOME=$work/config XDG_STATE_HOME=$work/state XDG_RUNTIME_DIR=$work/run
export HOME=$work/home LC_ALL=C.UTF-8
unset TANDEM_MODEL_DIR
# A program that stands beside the model finds it by itself.
[ -f "$out/../templates/demo-model/config.json" ] || export TANDEM_MODEL_DIR=$model
unset TANDEM_SOCKET ACCESSIBLE NO_COLOR
# Set-up refuses to run as root; the tests do in containers.
export TANDEM_ALLOW_ROOT=1
mkdir -p "$XDG_CONFIG_HOME" "$XDG_STATE_HOME" "$XDG_RUNTIME_DIR" "$HOME"

engine_pid() {
    "$tandem" status --json 2>/dev/null | grep -o '"pid":[0-9]*' | grep -o '[0-9]*' | head -n 1
}

# The process of the engine that is there, into $pid; asked again where a busy machine was late to answer.
knows_pid() { pid=$(engine_pid) && [ -n "$pid" ]; }
find_engine() { wait_for 10 knows_pid; }

finish() {
    pid=$(engine_pid)
    [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT

# check NAME CONDITION...: runs the condition, counts, and shows $shown when it fails.
shown=
check() {
    local name=$1
    shift
    if "$@"; then
        n_passed=$((n_passed + 1))
    else
        n_failed=$((n_failed + 1))
        echo "FAIL $name: $1 ... ${*: -1}" | head -n 3
        [ -z "$shown" ] || printf '%s\n' "$shown" | cut -c1-300 | tail -n 12 | sed 's/^/    /'
    fi
}

skip_one() {
    n_skipped=$((n_skipped + 1))
    echo "skipped: $1"
}

# has TEXT PATTERN: an extended regular expression somewhere in the text.
has() { printf '%s\n' "$1" | grep -Eq -- "$2"; }
has_not() { ! has "$1" "$2"; }
is() { [ "$1" = "$2" ]; }
no_escape() { ! printf '%s' "$1" | grep -q "$(printf '\033')"; }
# One sentence: one line, not empty, that says who speaks.
one_line() { [ "$(printf '%s\n' "$1" | grep -c .)" = 1 ] && has "$1" '^tandem: '; }

# wait_for SECONDS CONDITION...: tries every 20 ms. The seconds are those of a quiet machine; one that
# does other things gets two minutes at least, since nothing is asserted about speed.
wait_for() {
    local until=$((SECONDS + ($1 > 120 ? $1 : 120)))
    shift
    until "$@"; do
        [ $SECONDS -lt $until ] || return 1
        sleep 0.02
    done
}

# The clock ticks of CPU that a process has had, into $ticks.
cpu_ticks() {
    local stat
    read -r stat 2>/dev/null <"/proc/$1/stat" || return 1
    # shellcheck disable=SC2086
    set -- ${stat##*) }
    ticks=$((${12} + ${13}))
}

# let_run PID: a stopped process runs until it has had a tick of CPU, or for a tenth of a second if it
# wants none, and is stopped again. So it comes to the middle of its work however slow the machine is.
let_run() {
    local before tries=0 ticks=0
    cpu_ticks "$1" || return 1
    before=$ticks
    kill -CONT "$1"
    while [ "$ticks" = "$before" ] && [ $((tries += 1)) -le 20 ]; do
        sleep 0.005
        cpu_ticks "$1" || return 1
    done
    kill -STOP "$1"
}

# A port that nobody has, below those that the system gives away by itself.
free_port() {
    local port hex
    while :; do
        port=$((10000 + RANDOM % 20000))
        hex=$(printf ':%04X ' $port)
        grep -qs "$hex" /proc/net/tcp /proc/net/tcp6 || break
    done
    echo $port
}

has_ended() { ! kill -0 "$1" 2>/dev/null; }

done_testing() {
    echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
    [ "$n_failed" = 0 ]
}
