#!/bin/bash
# What `make install` and `make bundle` hand on: the programs, their pages, and what a reader needs
# who has no source tree.
set -u
source_dir=${TANDEM_SOURCE_DIR:-$(pwd)}
out=${OUT:-build}
cd "$source_dir" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
check() { # what, command...
    local what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $what"
    fi
}
has_doc() { # folder
    for name in README.md LICENSE NOTICE; do
        check "$name in $1" cmp -s "$name" "$1/$name"
        check "$name can be read by all" test "$(stat -c %a "$1/$name")" = 644
    done
}

# The programs are built already: nothing is made again.
umask 022
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u SAN make -s -o programs install BUILD="$out" CUDA=0 DEPS=0 \
    DESTDIR="$work/root" PREFIX=/usr >"$work/log" 2>&1
code=$?
check "make install: $(tail -n 3 "$work/log")" test $code = 0
has_doc "$work/root/usr/share/doc/tandem"
check "the program" cmp -s "$out/tandem" "$work/root/usr/bin/tandem"
check "its page" test -s "$work/root/usr/share/man/man1/tandem.1"

case $out in
*/address | */thread | */undefined) ;; # their libraries do not travel
*)
    SLIM=1 .ci/bundle "$out" "$work/bundle" >"$work/log" 2>&1
    code=$?
    check "make bundle: $(tail -n 3 "$work/log")" test $code = 0
    has_doc "$work/bundle/share/doc/tandem"
    ;;
esac
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
