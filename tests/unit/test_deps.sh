#!/bin/bash
# DEPS=0 must install nothing: it says what is missing, why, and the command, and fails.
set -u
out=$(PKG_CONFIG=/bin/false DEPS=0 .ci/deps build 2>&1)
rc=$?
passed=0 failed=0
expect() { # text
    if printf '%s' "$out" | grep -qF -- "$1"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL expected '$1' in: $out"
    fi
}
expect "libcjson-dev: reads JSON"
expect "Install them with:"
expect "apt-get install -y"
expect "libreadline-dev"
out=$(PKG_CONFIG=/bin/false DEPS=0 READLINE=0 .ci/deps build 2>&1)
case $out in *libreadline-dev*) failed=$((failed + 1)) ;; *) passed=$((passed + 1)) ;; esac
[ $rc = 1 ] || { failed=$((failed + 1)) && echo "FAIL expected status 1 got $rc"; }
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
