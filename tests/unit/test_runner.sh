#!/bin/bash
# The runner must see every way a test can go wrong, and count what went right.
set -u
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
check() { # what, expected, got
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $1: expected '$2' got '$3'"
    fi
}
script() { # name, body
    printf '#!/bin/sh\n%s\n' "$2" >"$dir/$1"
    chmod +x "$dir/$1"
}
script good.sh 'exit 0'
script counts.sh 'echo "7 passed, 0 failed, 2 skipped"'
script cmocka 'echo "[  PASSED  ] 3 test(s)." >&2'
script crash.sh 'kill -SEGV $$'
script hang.sh 'sleep 600'
script liar 'echo "4 passed, 2 failed, 0 skipped"'
script silent ':'
script skip.sh 'echo "skip: nothing here"; exit 77'
script tells.sh 'echo "vector 9: expected 1 got 2"; echo "1 passed, 1 failed, 0 skipped"; exit 1'
run() { tests/harness/run "$@" >"$dir/out" 2>&1; rc=$?; last=$(tail -n 1 "$dir/out"); }
export TEST_TIMEOUT=120 # what ends by itself may have to wait for the processor

run "$dir/good.sh" "$dir/counts.sh" "$dir/cmocka" "$dir/skip.sh"
check "good ones" "0: 11 passed, 0 failed, 3 skipped" "$rc: $last"
run "$dir/crash.sh"
check "a crash" "1: 0 passed, 1 failed, 0 skipped" "$rc: $last"
check "a crash is named" 1 "$(grep -c 'crash.sh: ended by signal 11' "$dir/out")"
TEST_TIMEOUT=1 run "$dir/hang.sh"
check "a hang" "1: 0 passed, 1 failed, 0 skipped" "$rc: $last"
run "$dir/liar"
check "status 0 with failures" "1: 4 passed, 2 failed, 0 skipped" "$rc: $last"
run "$dir/silent"
check "a program without counts" "1: 0 passed, 1 failed, 0 skipped" "$rc: $last"
run "$dir/tells.sh"
check "the reason is shown" 1 "$(grep -c '> vector 9: expected 1 got 2' "$dir/out")"
run "$dir/no-such-file"
check "a missing program" "1: 0 passed, 1 failed, 0 skipped" "$rc: $last"
run
check "nothing to run" 1 "$rc"
run "$dir/skip.sh"
check "only skipped is no success" 1 "$rc"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
