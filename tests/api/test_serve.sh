#!/bin/bash
# tandem serve and tandem api as an owner uses them: keys, foreground, detached, under systemd, other
# machines only on purpose, and what the request log and the list of requests show.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "$0")/../e2e/lib.sh"

serve_pid=
end_serve() {
    [ -z "$serve_pid" ] || kill -KILL "$serve_pid" 2>/dev/null
    finish
}
trap end_serve EXIT

# http METHOD PATH [HEADER [BODY]]: the whole answer, over a connection of its own.
http() {
    local body=${4-}
    exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
    printf '%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s' \
        "$1" "$2" "${3:+$3$'\r\n'}" "${#body}" "$body" >&3
    cat <&3
    exec 3<&-
}
status_of() { printf '%s\n' "$1" | head -n 1 | cut -d' ' -f2; }
chat='{"messages":[{"role":"user","content":"a secret of mine"}],"max_tokens":4}'

endpoint_port() {
    "$tandem" status --json 2>/dev/null | grep -o '"address":"[0-9.]*:[0-9]*"' | grep -o '[0-9]*"$' | tr -d '"'
}
is_serving() {
    port=$(endpoint_port)
    [ -n "$port" ] && has "$(http GET /ready)" '^HTTP/1.1 200'
}
no_engine() { [ -z "$(engine_pid)" ]; }

# ---- keys ----

shown=$("$tandem" api key new alice --requests 2 2>"$work/err")
key=$shown
file=$XDG_CONFIG_HOME/tandem/api-keys
check "a new key is all that is printed" has "$shown" '^sk-tandem-[0-9A-Za-z]{43}$'
check "the note says that it is shown once" has "$(cat "$work/err")" 'only time'
check "the file keeps its digest" has "$(cat "$file")" '^alice sha256:[0-9a-f]{64} requests=2$'
check "and not the key" has_not "$(cat "$file")" "$key"
check "nobody else can read the file" is "$(stat -c %a "$file")" 600
digest=$(printf '%s' "$key" | sha256sum | cut -d' ' -f1)
check "the digest is the key's" has "$(cat "$file")" "$digest"
shown=$("$tandem" api key new alice 2>&1)
check "a label is taken once" is $? 20
check "in one sentence" one_line "$shown"
shown=$("$tandem" api key new bob --json 2>/dev/null)
bob=$(printf '%s' "$shown" | grep -o 'sk-tandem-[0-9A-Za-z]*')
check "as JSON" has "$shown" '"label":"bob","key":"sk-tandem-'
shown=$("$tandem" api key list; "$tandem" api key list --json)
check "the list has labels and limits" has "$shown" '^alice requests=2$'
check "and no key" has_not "$shown" 'sk-tandem|sha256'

# ---- other machines ----

shown=$("$tandem" serve --bind 0.0.0.0 --keys "$work/nothing" 2>&1 </dev/null)
check "another address needs keys" has "$shown" 'no key file'
shown=$("$tandem" serve --bind 0.0.0.0 2>&1 </dev/null)
check "and to be typed again" has "$shown" 'not confirmed'
shown=$("$tandem" serve --bind 0.0.0.0 --confirm-remote 127.0.0.1 2>&1 </dev/null)
check "the same one" is $? 20
shown=$("$tandem" serve --bind fe80::1 2>&1 </dev/null)
check "an address of another kind is a wrong option" is $? 2
mv "$file" "$file.away"
shown=$("$tandem" serve --bind 0.0.0.0 --confirm-remote 0.0.0.0 2>&1 </dev/null)
check "confirmed but without a key file" has "$shown" 'tandem api key new'
mv "$file.away" "$file"
if command -v script >/dev/null; then
    shown=$(printf '0.0.0.1\n' | script -qec "$tandem serve --bind 0.0.0.0 --port 0" /dev/null 2>&1)
    check "typed wrong on the terminal" has "$shown" 'not confirmed'
    check "after it was asked for" has "$shown" 'Type the address again'
    mkfifo "$work/typing"
    script -qec "$tandem serve --bind 0.0.0.0 --port 0" /dev/null <"$work/typing" >"$work/typed" 2>&1 &
    exec 7>"$work/typing"
    asks() { grep -q 'Type the address again' "$work/typed"; }
    wait_for 20 asks
    printf '0.0.0.0\n' >&7
    check "typed right it serves" wait_for 60 is_serving
    shown=$(http GET /v1/models)
    check "with a key only" is "$(status_of "$shown")" 401
    find_engine
    kill -TERM "$pid"
    check "it ends" wait_for 60 no_engine
    wait_for 60 has_ended "$pid" # it holds its lock until then
    exec 7>&-
else
    skip_one "no program script: the typed confirmation is not tried"
fi

# ---- TLS files ----

shown=$("$tandem" serve --port 0 --tls-certificate /nonexistent 2>&1 </dev/null)
check "a certificate without a key" has "$shown" 'both a certificate and its key'
shown=$("$tandem" serve --port 0 --tls-certificate /nonexistent --tls-key /etc/passwd 2>&1 </dev/null)
check "a file that is not there is named" has "$shown" '/nonexistent'
shown=$("$tandem" serve --port 0 --tls-certificate /etc/passwd --tls-key /etc/passwd 2>&1 </dev/null)
check "a file of another kind" has "$shown" '/etc/passwd holds no certificate'
"$tandem" serve --port 0 --tls-certificate /nonexistent --tls-key /etc/passwd >/dev/null 2>&1 </dev/null
check "refused in the foreground" is $? 20
"$tandem" serve -d --port 0 --tls-certificate /nonexistent --tls-key /etc/passwd >/dev/null 2>&1 </dev/null
check "refused alike in the background" is $? 20
"$tandem" serve -d --port x >/dev/null 2>&1 </dev/null
check "a wrong option is another thing" is $? 2

# ---- in the foreground ----

"$tandem" serve --port 0 --request-log "$work/log" --strict-model --request-timeout 60 \
    2>"$work/serve.err" </dev/null &
serve_pid=$!
check "it serves" wait_for 60 is_serving
check "the process is the engine" is "$(engine_pid)" "$serve_pid"
says_where() { has "$(cat "$work/serve.err")" "^tandem: serving http://127.0.0.1:$port/v1"; }
check "it says where, with the port" wait_for 30 says_where
shown=$(http GET /v1/models)
check "without a key" is "$(status_of "$shown")" 401
shown=$(http GET /v1/models "Authorization: Bearer $key")
check "with a key" is "$(status_of "$shown")" 200
shown=$(http GET /v1/models "x-api-key: $bob")
check "with the other header" is "$(status_of "$shown")" 200
shown=$(http POST /v1/chat/completions "x-api-key: $bob" '{"model":"x","messages":[]}')
check "options reach the engine" is "$(status_of "$shown")" 404

"$tandem" api requests --watch >"$work/watch" 2>&1 &
watcher=$!
shown=$(http POST /v1/chat/completions "Authorization: Bearer $key" "$chat")
check "a chat" is "$(status_of "$shown")" 200
seen() { has "$(cat "$work/watch")" 'POST +/chat/completions +200 +[a-z]+ .*key alice'; }
check "the watcher sees it" wait_for 30 seen
kill -INT "$watcher"
wait "$watcher"
check "and ends with Ctrl-C" is $? 0
check "without the prompt" has_not "$(cat "$work/watch")" 'secret'
shown=$("$tandem" api requests --json)
check "the list as JSON" has "$shown" '"done":\[.*"key":"alice"'
logged() { has "$(cat "$work/log")" '"key":"alice".*"path":"/chat/completions"'; }
check "the log has a line" wait_for 30 logged
check "of JSON, without the prompt" has_not "$(cat "$work/log")" 'secret'
check "and without keys" has_not "$(cat "$work/log")" 'sk-tandem'
check "nobody else can read it" is "$(stat -c %a "$work/log")" 600

shown=$("$tandem" api key revoke bob 2>&1)
check "a key is revoked" is $? 0
shown=$(http GET /v1/models "x-api-key: $bob")
check "and does not open any more" is "$(status_of "$shown")" 401
shown=$("$tandem" api key revoke bob 2>&1)
check "it is gone" is $? 20
new=$("$tandem" api key new carol 2>/dev/null)
shown=$(http GET /v1/models "x-api-key: $new")
check "a new one opens at once" is "$(status_of "$shown")" 200

shown=$("$tandem" serve --port 0 2>&1 </dev/null)
check "a second engine is refused" is "$([ $? != 0 ] && echo yes)" yes
check "the first one stays" is "$(engine_pid)" "$serve_pid"
kill -INT "$serve_pid"
wait "$serve_pid"
check "Ctrl-C ends it well" is $? 0
serve_pid=
check "nothing stays" no_engine

# ---- detached ----

shown=$("$tandem" serve --detach --port 0 2>&1 </dev/null)
check "detached it returns" is $? 0
check "serving" wait_for 60 is_serving
check "and says so, with the port" has "$shown" "^serving http://127.0.0.1:$port/v1 in the background"
shown=$(http GET /v1/models "Authorization: Bearer $key")
check "with the keys" is "$(status_of "$shown")" 200
shown=$("$tandem" serve --detach --port 0 2>&1 </dev/null)
check "a second time it says who runs" has "$shown" 'runs already'
check "and how to open its endpoint" has "$shown" 'tandem api on'
"$tandem" stop >/dev/null 2>&1
check "tandem stop ends it" wait_for 60 no_engine
is_free() { ! (exec 8<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }
check "the port is free" wait_for 20 is_free

# ---- the first key ----

mv "$file" "$file.away"
"$tandem" serve --detach --port 0 >/dev/null 2>&1 </dev/null
check "without a key file" wait_for 60 is_serving
shown=$(http GET /v1/models)
check "no key is needed" is "$(status_of "$shown")" 200
first=$("$tandem" api key new first 2>/dev/null)
shown=$(http GET /v1/models)
check "after the first key one is, at once" is "$(status_of "$shown")" 401
shown=$(http GET /v1/models "Authorization: Bearer $first")
check "and it opens" is "$(status_of "$shown")" 200
"$tandem" stop >/dev/null 2>&1
check "it stops" wait_for 60 no_engine
mv "$file.away" "$file"

# ---- the settings ----

printf 'API_PORT=1\nAPI_KEY_FILE=%s\n' "$work/other-keys" >"$XDG_CONFIG_HOME/tandem/tandem.conf"
shown=$("$tandem" serve --port 0 2>&1 </dev/null)
check "the key file of the settings has to be there" has "$shown" "no key file $work/other-keys"
"$tandem" api key new dave >/dev/null 2>&1
check "keys are made in it" has "$(cat "$work/other-keys")" '^dave sha256:'
printf 'WORKER_SSH=a@b\nHEAD_IP_A=10.0.0.1\nWORKER_IP_A=10.0.0.2\n' >"$XDG_CONFIG_HOME/tandem/tandem.conf"
shown=$("$tandem" serve --port 0 2>&1 </dev/null)
check "a pair serves another way" has "$shown" 'tandem config set API on'
rm "$XDG_CONFIG_HOME/tandem/tandem.conf"

# ---- under systemd ----

unit=$work/tandem-serve.service
sed "s|@TANDEM@|$tandem|" "$top/templates/systemd/tandem-serve.service" >"$unit"
if command -v systemd-analyze >/dev/null; then
    shown=$(systemd-analyze verify --man=no "$unit" 2>&1 | grep -F tandem-serve)
    check "the unit is sound" is "$shown" ""
else
    skip_one "no systemd-analyze: the unit is not verified"
fi

# A stand-in for systemctl, which does with this unit what systemd does with Type=exec: the process of
# ExecStart is the service, stop is KillSignal, and an exit status of 0 is a clean end.
of_unit() { sed -n "s/^$1=//p" "$unit"; }
stand_in_systemctl() {
    local words
    case $1 in
    start)
        read -ra words <<<"$(of_unit ExecStart)"
        env -i HOME="$HOME" XDG_RUNTIME_DIR="$XDG_RUNTIME_DIR" XDG_CONFIG_HOME="$XDG_CONFIG_HOME" \
            XDG_STATE_HOME="$XDG_STATE_HOME" TANDEM_MODEL_DIR="${TANDEM_MODEL_DIR-}" \
            PATH=/usr/bin:/bin "${words[@]}" --port 0 >"$work/journal" 2>&1 </dev/null &
        serve_pid=$!
        ;;
    stop)
        kill -"$(of_unit KillSignal)" "$serve_pid"
        wait "$serve_pid"
        ;;
    esac
}
[ -n "${TANDEM_MODEL_DIR-}" ] || unset TANDEM_MODEL_DIR
stand_in_systemctl start
check "stand-in systemctl: serving" wait_for 60 is_serving
check "stand-in systemctl: the main process is the engine" is "$(engine_pid)" "$serve_pid"
check "stand-in systemctl: its log is the journal's" has "$(cat "$work/journal")" 'endpoint on'
stand_in_systemctl stop
check "stand-in systemctl: a clean end" is $? 0
serve_pid=
check "stand-in systemctl: nothing stays" no_engine

done_testing
