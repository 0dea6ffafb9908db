#!/bin/bash
# The full screen as a user drives it, in tmux: a chat, kill -9 while typing, kill -9 of the engine in
# the middle of a reply, a tiny terminal.
. "$(dirname "$0")/lib.sh"
command -v tmux >/dev/null || skip_all "tmux is not there"
export TMUX_TMPDIR=$work TERM=xterm-256color
unset TMUX

tm() { tmux -L e2e -f /dev/null "$@"; }
screen() { tm capture-pane -p -t main 2>/dev/null; }
screen_has() { screen | grep -Eq -- "$1"; }
open_screen() { # columns rows command...
    local columns=$1 rows=$2
    shift 2
    tm new-session -d -s main -x "$columns" -y "$rows" "$@; echo \"ended with \$?\"; sleep 60"
}
screen_pid() { tm list-panes -t main -F '#{pane_pid}' | xargs -I{} pgrep -P {} -x tandem | head -n 1; }
close_screen() { tm kill-session -t main 2>/dev/null; }
# Without its last session the server of tmux ends, and a session that is opened at that moment ends with
# it: one that shows nothing keeps it up.
tm new-session -d -s keep 'sleep 86400'
cleanup() {
    tm kill-server 2>/dev/null
    finish
}
trap cleanup EXIT

# The built-in model is started by the screen; another one waits for the user.
[ -z "${TANDEM_MODEL_DIR:-}" ] || "$tandem" start >/dev/null
open_screen 80 24 "$tandem chat"
check "the chat screen opens" wait_for 10 screen_has 'Chat'
tm send-keys -t main 'What is water?' Enter
check "an answer comes" wait_for 15 screen_has '[Ww]ater is'
check "the rate is shown" wait_for 15 screen_has '[0-9.]+ t/s'
shown=$(screen)
check "question and answer are on the screen" has "$shown" 'What is water\?'

# kill -9 while typing.
tm send-keys -t main 'half a quest'
check "typing is shown" wait_for 5 screen_has 'half a quest'
draft_kept() { grep -qs 'half a quest' "$XDG_STATE_HOME"/tandem/sessions/*.draft; }
check "and kept" wait_for 10 draft_kept
pid=$(screen_pid)
kill -KILL "$pid"
wait_for 10 has_ended "$pid"
check "the engine lives on" "$tandem" status >/dev/null
close_screen
open_screen 80 24 "$tandem chat -c"
check "the unsent text is back" wait_for 10 screen_has 'half a quest'
check "the conversation is back" wait_for 5 screen_has '[Ww]ater is'
tm send-keys -t main C-c

# kill -9 of the engine in the middle of a reply.
find_engine
kill -STOP "$pid"
tm send-keys -t main 'Count from 1 to 200.' Enter
reply_has_begun() {
    let_run "$pid"
    sleep 0.05
    screen_has '1, 2|1 2'
}
check "the reply has begun" wait_for 30 reply_has_begun
kill -KILL "$pid"
check "the screen says that the engine ended" wait_for 10 screen_has '[Ee]ngine ended|engine DOWN|the engine ended'
shown=$(screen)
check "the text so far is on the screen" has "$shown" '1'
session=$("$tandem" sessions list | head -n 1 | cut -d' ' -f1)
is_kept() { shown=$("$tandem" sessions export "$session" --format json) && has "$shown" '"state":"failed"'; }
check "and in the session" wait_for 10 is_kept
close_screen
check "the next engine starts" "$tandem" start >/dev/null

# A terminal of 20x5 is said to be too small and the program goes on.
open_screen 20 5 "$tandem"
check "a tiny terminal is told" wait_for 10 screen_has '[0-9]+ ?x ?[0-9]+'
check "the program runs on" [ -n "$(screen_pid)" ]
tm resize-window -t main -x 80 -y 24
check "and draws when there is room" wait_for 10 screen_has 'Home'
close_screen
done_testing
