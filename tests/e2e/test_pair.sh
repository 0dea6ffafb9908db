#!/bin/bash
# Start, stop, restart and status of the pair: two ranks of the demo model on two fake nodes with a
# real sshd in each. Faults are in test_pair_faults.sh.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/fake_nodes.sh"
[ -x "$out/tandem-node" ] || skip_all "tandem-node is not built"
finish() { nodes_stop; }
nodes_start
nodes_trust
nodes_settings
# Where the model is not beside the program (a build folder elsewhere) the nodes share it by path.
[ -f "$out/../templates/demo-model/config.json" ] || [ -f "$out/../../templates/demo-model/config.json" ] ||
    node_env+=("TANDEM_MODEL_DIR=$model")
node_env+=("TANDEM_CONTEXT=4096" "TANDEM_PARALLEL=2" "TANDEM_STOP_TIMEOUT=5")

t() { on head "$tandem" "$@"; }
pair_state() { t status --json 2>/dev/null | grep -o '"pair":{"state":"[a-z-]*"' | cut -d'"' -f6; }
pair_is() { [ "$(pair_state)" = "$1" ]; }
daemons() { on "$1" pgrep -c -x tandemd; }
no_ranks() { [ "$(daemons head)" = 0 ] && [ "$(daemons worker)" = 0 ]; }
keeper_pid() { on "$1" pgrep -f 'tandem-node keep' | head -n 1; }
rank_pid() { on "$1" pgrep -x tandemd | head -n 1; }
json_of() { printf '%s' "$shown" | grep -o "$1" | head -n 1; }

check "before: it is set up" has "$(pair_state)" '^(configured|data-ready)$'
check "before: status says not ready" eval 't status >/dev/null; [ $? = 41 ]'

# What it would do.
shown=$(t start --dry-run)
check "dry run: names both ranks" has "$shown" 'worker: .*runs .*tandemd rank --ranks 2 --rank 1 --meet 192.168.100.10:29620'
check "dry run: the memory of the head's rank" has "$shown" '^head:   memory: weights [0-9.]+ MiB, .*, 2 streams'
check "dry run: starts nothing" no_ranks
check "dry run: nothing is left behind" eval '! on head sh -c "ls {status}* 2>/dev/null"'

# A lock that a killed command left.
mkdir -p "$head_home/.local/state/tandem/pair"
echo '{"pid":99999,"verb":"start","phase":"giving the orders","since_ms":1764500000000}' >"$head_home/.local/state/tandem/pair/lock"
shown=$(t start --json 2>"$work/start.err")
code=$?
check "start: ends well" test "$code" = 0 -o "$code" = 10
check "start: ready" has "$shown" '"state":"ready","start_id":"[0-9a-f]{16}"'
check "start: verify passed" has "$shown" '"verify":\{"passed":[0-9]+,"warnings":[0-9]+,"failed":0'
check "a stale lock is explained" has "$(cat "$work/start.err")" 'lock of `tandem start` \(process 99999.*killed in the middle'
check "start: one rank on each" eval '[ "$(daemons head)" = 1 ] && [ "$(daemons worker)" = 1 ]'
start_id=$(printf '%s' "$shown" | grep -o '"start_id":"[0-9a-f]*"')
shown=$(on head cat "$head_home"/.local/state/tandem/logs/start-*.conf | grep -c '^PARALLEL=2')
check "start: the settings are kept" test "$shown" -ge 1
check "start: the worker has the engine in its data folder" test -x "$worker_home/data/.tandem/bin/tandemd"

# Status, both nodes.
shown=$(t status --json)
check "status: exit code" is "$?" 0
check "status: ready with the same id" has "$shown" "\"pair\":\{\"state\":\"(ready|serving)\",\"reason\":null,$start_id"
check "status: both nodes ready" is "$(printf '%s' "$shown" | grep -o '"keeper":true,"killed":false,"state":"ready"' | wc -l)" 2
check "status: versions of both" is "$(printf '%s' "$shown" | grep -o '"node":"[a-z]*","host":"[a-z]*-spark"' | sort -u | wc -l)" 2
check "status: build of both" is "$(printf '%s' "$shown" | grep -o '"build":"[^"]*","firmware"' | sort -u | wc -l)" 1
check "status: figures of both" is "$(printf '%s' "$shown" | grep -Eo '"node":"[a-z]*","reachable":true,"mem_total_bytes":[0-9]+,"mem_available_bytes":[0-9]+,"mem_free_bytes":[0-9]+' | wc -l)" 2
check "status: no GPU is null, not 0" has "$shown" '"gpu_clock_mhz":null'
check "status: the proof of the link is not there" has "$shown" '"network_proof":\{"done":false'
check "status: the last verify" has "$shown" '"last_verify":\{"level":1,"model":"tandem-demo","passed":6'
check "status: provenance" has "$shown" '"provenance":\{"tandem":"[^"]+","settings":"[0-9a-f]{64}"'
check "a chat over two ranks" has "$(t ask 'What is 17 + 19?')" '36'
shown=$(t start)
check "start again: it runs already" has "$shown" 'running already'

# The logs of both, and the doctor of a pair that is well.
shown=$(t logs -n 200)
check "logs: both machines, merged" eval 'has "$shown" "^head   .*rank=0" && has "$shown" "^worker .*rank=1"'
times=$(printf '%s\n' "$shown" | grep -Eo '[0-9]{4}-[0-9-]+T[0-9:.]+Z' | head -n 200)
check "logs: in the order of time" is "$times" "$(printf '%s\n' "$times" | sort)"
check "logs: one machine" has_not "$(t logs --node worker -n 50)" '^head'
check "logs: bounded" is "$(t logs -n 5 | wc -l)" 5
check "doctor: no symptom" has "$(t doctor)" '^symptom: none is seen'
check "doctor: JSON" has "$(t doctor --json)" '"symptom":null,"causes":\['

# Where the model comes from and under which terms; what goes into a report about a fault.
shown=$(t status --json)
check "status: licence of the model" has "$shown" '"part":"model","of":"tandem","licence":"Apache-2.0'
check "status: licence of what it was trained on" has "$shown" '"of":"WordNet 3.1","licence":"WordNet'
check "status: licence of the template" has "$shown" '"part":"template","of":"tandem","licence":"Apache-2.0'
worker_log=$(on head "$tandem" status --json | grep -o '"log":"[^"]*"' | tail -n 1 | cut -d'"' -f4)
on worker sh -c "echo '2026-11-30T10:00:00.000Z info engine: token hf_abcdefghijklmnop' >>'$worker_log'"
shown=$(t support --print 2>/dev/null)
check "support: state of the pair" has "$shown" '"state":"(ready|serving)","reason":null,"start_id":"[0-9a-f]{16}"'
check "support: log of the worker's rank" has "$shown" '==== worker, end of .*====$'
check "support: log of the worker's keeper" has "$shown" '==== worker, end of keeper.log ====$'
check "support: secrets of the worker's log are out" eval 'has "$shown" "engine: token <secret>" && has_not "$shown" hf_abcdef'
check "support: host names are out" has_not "$shown" '(head|worker)-spark'
check "support: homes are out" eval 'has_not "$shown" "$worker_home" && has_not "$shown" "$head_home"'

# The secret is nowhere.
for home in "$head_home" "$worker_home"; do
    check "no secret in a file" eval '! grep -rqE "\"secret\":\"[0-9a-f]{64}" "$home/.local" "$home/.config" 2>/dev/null'
done
check "no secret on a command line" eval '! on head sh -c "cat /proc/[0-9]*/cmdline 2>/dev/null" | tr "\0" " " | grep -qE "(^| )[0-9a-f]{64}( |$)"'

# The worker unreachable by ssh: the head serves on and says so.
node_sshd worker stop
shown=$(t status --json)
check "no ssh: exit code 40" is "$?" 40
check "no ssh: degraded, with the reason" has "$shown" '"pair":\{"state":"degraded","reason":"the head serves; the worker cannot be asked'
check "no ssh: what was known of the worker" has "$shown" '"node":"worker","host":"worker-spark".*"is_now":false'
shown=$(t support --print 2>/dev/null)
check "no ssh: support says why the worker's log is not there" has "$shown" '^==== logs of the worker ====$'
check "no ssh: the chat goes on" has "$(t ask 'What is 17 + 19?')" '36'
node_sshd worker start

# Restart shows what changed.
node_env+=("TANDEM_QUEUE_MAX=8")
shown=$(t restart 2>&1)
check "restart: shows the change" has "$shown" '^\+ QUEUE_MAX=8'
check "restart: ready with another id" eval 'wait_for 20 pair_is ready && ! t status --json | grep -q "$start_id"'

# An engine is never started alone where a pair is set up.
t stop >/dev/null
shown=$(t ask 'What is 17 + 19?' 2>&1)
check "no lone engine by accident" eval 'has "$shown" "no engine is running; start it with: tandem start" && no_ranks'
t start >/dev/null 2>&1

# Stop.
shown=$(t stop)
check "stop: ends well" is "$?" 0
check "stop: no rank is left" no_ranks
check "stop: the state" wait_for 20 pair_is stopped
check "stop: again is no error" has "$(t stop)" 'nothing was running'

# Nothing of it runs as root, nor a helper on the worker.
shown=$(on head env -u TANDEM_ALLOW_ROOT "$tandem" start 2>&1)
check "root: a start is refused" is $? 20
check "root: with what to do instead" has "$shown" 'the pair does not run as root; start it as your own user'
for words in "download" "copy" "node trust" "link apply --yes" "service install"; do
    # shellcheck disable=SC2086
    shown=$(on head env -u TANDEM_ALLOW_ROOT "$tandem" $words 2>&1 </dev/null)
    check "root: $words" has "$shown" 'does not run as root'
done

# Other machines: a key, the owner's word for this very address, and only then.
t config set API on >/dev/null && t config set API_BIND "$head_ip" >/dev/null
shown=$(t start 2>&1)
check "others: no key, no start" is $? 20
check "others: which says how to make one" has "$shown" 'holds no API key; make one with: tandem api key new'
key=$(t api key new laptop 2>/dev/null)
shown=$(t start 2>&1)
check "others: the settings do not confirm themselves" is $? 20
check "others: and it says how" has "$shown" "was not confirmed yet; confirm it once with: tandem api on --bind $head_ip"
shown=$(t api on --confirm-remote 10.99.7.9 2>&1 </dev/null)
check "others: another address is not this one" is $? 20
shown=$(t api on --bind 10.99.7.9 --confirm-remote 10.99.7.9 2>&1 </dev/null)
check "others: an address that is not here" has "$shown" "no interface of this machine has the address 10.99.7.9; it has .*$head_ip \($rail_m\)"
shown=$(t api on --confirm-remote "$head_ip" 2>&1 </dev/null)
check "others: confirmed" has "$shown" "the endpoint is on: http://$head_ip:8888/v1, from the next start"
check "others: it is kept with the address" is "$(t config get API_CONFIRMED)" "$head_ip"
node_env+=("TANDEM_CACHE_DISK_GIB=1")
shown=$(t start 2>&1)
code=$?
check "others: now it starts" test "$code" = 0 -o "$code" = 10
worker_asks() { # KEY
    on worker bash -c 'exec 3<>"/dev/tcp/$1/8888" || exit 1
        printf "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n" "${2:+Authorization: Bearer $2\r\n}" >&3; head -n 1 <&3' bash "$head_ip" "${1-}" | cut -d' ' -f2
}
check "others: with the key" is "$(worker_asks "$key")" 200
check "others: without" is "$(worker_asks)" 401
check "others: the key is in no argument, environment or file" eval '! on head sh -c "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null" | grep -aqF "$key" &&
    ! grep -rqF "$key" "$head_home" "$worker_home/.local" "$worker_home/data" 2>/dev/null'

# The cache of prompts goes in one step, from both machines.
t ask 'What is 12 + 30?' >/dev/null
shown=$(t cache list --json)
check "cache: something is kept" has "$shown" '"n_entries":[1-9]'
left=$worker_home/data/cache/0123456789abcdef
mkdir -p "$left" && echo old >"$left/segment-0000000001" && echo mine >"$left/notes" && ln -s "$worker_home" "$worker_home/data/cache/fedcba9876543210"
t cache wipe >/dev/null 2>&1 </dev/null
check "cache: not without a word" is $? 30
shown=$(t cache wipe --yes --json)
check "cache: wiped" is $? 0
check "cache: what the engine held" has "$shown" '"engine":true,"entries":[1-9]'
check "cache: what lay on the worker" has "$shown" '"worker":\{"files":1,"bytes":4\}'
check "cache: no file of it on either" eval '! ls -R "$head_home/data/cache" "$worker_home/data/cache" | grep -qE "segment-|manifest-"'
check "cache: other files stay, links are not followed" test -f "$left/notes" -a -d "$worker_home/data/.tandem"
check "cache: the list is empty" has "$(t cache list --json)" '"n_entries":0'
check "cache: answers go on" has "$(t ask 'What is 12 + 30?')" '42'
shown=$(t api off)
check "others: off again" eval 'has "$shown" "the endpoint is off" && [ -z "$(worker_asks "$key" 2>/dev/null)" ]'
t stop >/dev/null


# In a chat the words about the engine mean both machines, not one half.
t start >/dev/null 2>&1
before=$(t status --json | grep -o '"start_id":"[0-9a-f]*"' | head -n 1)
shown=$(printf '/engine restart\n/quit\n' | t chat --plain 2>&1)
check "chat: /engine restart starts both again" eval 'wait_for 20 pair_is ready && [ "$(daemons head)" = 1 ] && [ "$(daemons worker)" = 1 ]'
check "chat: with another id" eval '! t status --json | grep -q "$before"'
shown=$(printf '/engine stop\n/quit\n' | t chat --plain 2>&1)
check "chat: /engine stop stops both" no_ranks
check "chat: and says so" has "$shown" 'both ranks have ended'
done_testing
