#!/bin/bash
# tandem api on, off: the endpoint for good, on the running engine and for later starts; other machines
# only with a key and the owner's word for their very address; what root may do and what it may not.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "$0")/../e2e/lib.sh"

place() { "$tandem" status --json 2>/dev/null | grep -o '"address":"[0-9.]*:[0-9]*"' | cut -d'"' -f4; }
asks() { # PLACE [KEY]: the status of a request
    (
        exec 3<>"/dev/tcp/${1%:*}/${1#*:}" || exit 1
        printf 'GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n' \
            "${2:+Authorization: Bearer $2$'\r\n'}" >&3
        head -n 1 <&3 | cut -d' ' -f2
    ) 2>/dev/null
}
port=$(free_port)

# Without an engine the settings are enough; with one it hears at once.
shown=$("$tandem" api on --port $port)
check "on, for the next start" has "$shown" "http://127.0.0.1:$port/v1, from the next start"
check "kept" is "$("$tandem" config get API)$("$tandem" config get API_PORT)" "on$port"
check "loopback needs no word" is "$("$tandem" config get API_CONFIRMED)" ""
"$tandem" start >/dev/null 2>&1
check "the start has it" is "$(place)" "127.0.0.1:$port"
check "without a key" is "$(asks "127.0.0.1:$port")" 200
shown=$("$tandem" api off)
check "off at once" is "$(place)" ""
check "and for later" is "$("$tandem" config get API)" off
shown=$("$tandem" api on --json)
check "as JSON" has "$shown" "\"on\":true,\"address\":\"127.0.0.1:$port\",\"running\":true"

# Others: a key first, then the word, then no address but this one.
shown=$("$tandem" api on --bind 0.0.0.0 --confirm-remote 0.0.0.0 2>&1)
check "others need a key" has "$shown" 'so a key is needed'
check "and it stays where it was" is "$(place)" "127.0.0.1:$port"
key=$("$tandem" api key new laptop 2>/dev/null)
check "the first key counts at once" is "$(asks "127.0.0.1:$port")" 401
shown=$("$tandem" api on --bind 0.0.0.0 2>&1 </dev/null)
check "and the address again" has "$shown" 'not confirmed: type the address 0.0.0.0 again'
check "0.0.0.0 is advised against" has "$shown" 'every network of this machine at once.*better give one address'
shown=$("$tandem" api on --bind 192.0.2.1 --confirm-remote 192.0.2.1 2>&1)
check "an address of this machine" has "$shown" 'no interface of this machine has the address 192.0.2.1'
check "nothing of this was kept" is "$("$tandem" config get API_BIND)$("$tandem" config get API_CONFIRMED)" 127.0.0.1
if command -v script >/dev/null; then
    mkfifo "$work/typing"
    is_asked() { grep -q 'Type the address again' "$work/typed"; }
    types() { # WORDS: typed when it asks; what it said is in $shown
        : >"$work/typed"
        script -qec "$tandem api on --bind 0.0.0.0" /dev/null <"$work/typing" >"$work/typed" 2>&1 &
        exec 7>"$work/typing"
        wait_for 20 is_asked
        printf '%s\n' "$1" >&7
        wait $!
        exec 7>&-
        shown=$(cat "$work/typed")
    }
    types 0.0.0.1
    check "typed wrong" has "$shown" 'not confirmed'
    types 0.0.0.0
    check "typed right" has "$shown" "the endpoint is on: http://0.0.0.0:$port/v1"
else
    skip_one "no program script: the typed confirmation is not tried"
    "$tandem" api on --bind 0.0.0.0 --confirm-remote 0.0.0.0 >/dev/null 2>&1
fi
check "the engine moved" is "$(place)" "0.0.0.0:$port"
check "with the key" is "$(asks "127.0.0.1:$port" "$key")" 200
check "not without" is "$(asks "127.0.0.1:$port")" 401
"$tandem" restart >/dev/null 2>&1
check "a later start needs no word" is "$(place)" "0.0.0.0:$port"
"$tandem" stop >/dev/null
"$tandem" config set API_CONFIRMED 192.0.2.9 >/dev/null
shown=$("$tandem" start 2>&1)
check "the word for another address is none" test $? != 0
check "and it says what to do" has "$shown" 'confirm'
"$tandem" config set API_CONFIRMED 0.0.0.0 >/dev/null

# Root: no door for others; the built-in model on this machine alone is fine, as in a container.
if [ "$(id -u)" = 0 ]; then
    shown=$(env -u TANDEM_ALLOW_ROOT "$tandem" serve --port 0 --bind 0.0.0.0 --confirm-remote 0.0.0.0 2>&1 </dev/null)
    check "root: serves no others" has "$shown" 'an endpoint for other machines does not run as root'
    shown=$(env -u TANDEM_ALLOW_ROOT "$tandem" start 2>&1)
    check "root: no start with such a setting" has "$shown" 'does not run as root'
    "$tandem" api off >/dev/null
    check "root: a local chat" has "$(env -u TANDEM_ALLOW_ROOT "$tandem" ask 'What is 17 + 19?' 2>/dev/null)" 36
    check "root: its engine is this user's alone" is "$(stat -c %a "$XDG_RUNTIME_DIR/tandem/engine.sock")" 600
fi
done_testing
