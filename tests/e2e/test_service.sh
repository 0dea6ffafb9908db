#!/bin/bash
# The user's systemd units, the watchdog and the start after a boot, over two fake nodes. No systemd
# runs in a fake node: the unit files are judged by `systemd-analyze --user verify`, and `systemctl` and
# `loginctl` are STAND-INS (scripts that enable, start and stop what a unit's ExecStart says).
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/fake_nodes.sh"
[ -x "$out/tandem-node" ] || skip_all "tandem-node is not built"
finish() { nodes_stop; }
nodes_start
nodes_trust
nodes_settings
[ -f "$out/../templates/demo-model/config.json" ] || [ -f "$out/../../templates/demo-model/config.json" ] ||
    node_env+=("TANDEM_MODEL_DIR=$model")
node_env+=("TANDEM_CONTEXT=4096" "TANDEM_PARALLEL=2" "TANDEM_STOP_TIMEOUT=5" "TANDEM_VERIFY_ON_START=off" "TANDEM_SOURCE_DIR=$top")
t() { on head "$tandem" "$@"; }
pair_is() { t status --json 2>/dev/null | grep -q "\"pair\":{\"state\":\"$1\""; }
no_ranks() { [ "$(on head pgrep -c -x tandemd)" = 0 ] && [ "$(on worker pgrep -c -x tandemd)" = 0 ]; }
keeper_pid() { on "$1" pgrep -f 'tandem-node keep --stay' | head -n 1; }

# The stand-ins, with their notes in $work/NODE/systemd.
for node in head worker; do
    mkdir -p "$work/$node/systemd"
    node_tool $node systemctl <<END
#!/bin/bash
notes=$work/$node/systemd
echo "\$*" >>"\$notes/calls"
[ "\$1" = --user ] && shift
verb=\$1 unit=\$2 file=\$HOME/.config/systemd/user/\$2
case \$verb in
daemon-reload) exit 0 ;;
enable) [ -f "\$file" ] || { echo "Unit \$unit does not exist" >&2; exit 1; }; : >"\$notes/\$unit.enabled" ;;
disable) rm -f "\$notes/\$unit.enabled" ;;
is-enabled) [ -f "\$notes/\$unit.enabled" ] && echo enabled || { echo disabled; exit 1; } ;;
is-active) pid=\$(cat "\$notes/\$unit.pid" 2>/dev/null) && kill -0 "\$pid" 2>/dev/null && echo active || { echo inactive; exit 3; } ;;
start)
    [ -f "\$file" ] || { echo "Unit \$unit not found" >&2; exit 5; }
    pid=\$(cat "\$notes/\$unit.pid" 2>/dev/null) && kill -0 "\$pid" 2>/dev/null && exit 0
    case \$unit in *.timer) exit 0 ;; esac
    line=\$(sed -n 's/^ExecStart=//p' "\$file")
    setsid \$line </dev/null >>"\$notes/\$unit.log" 2>&1 &
    echo \$! >"\$notes/\$unit.pid"
    ;;
stop) pid=\$(cat "\$notes/\$unit.pid" 2>/dev/null) && kill "\$pid" 2>/dev/null; exit 0 ;;
esac
END
    node_tool $node loginctl <<END
#!/bin/bash
case \$1 in
show-user) [ -f $work/$node/systemd/linger ] && echo yes || echo no ;;
enable-linger) [ "$node" = head ] && : >$work/$node/systemd/linger ;;
esac
END
done
calls() { cat "$work/$1/systemd/calls" 2>/dev/null; }
# What a booting machine does with enabled units.
boot_units() { on "$1" "$work/$1/bin/systemctl" --user start tandem-keeper.service; }

# What would be written.
shown=$(t service install --dry-run)
check "dry run: both machines" has "$shown" 'worker: write ~/.config/systemd/user/tandem-keeper.service'
check "dry run: the head has four" is "$(printf '%s\n' "$shown" | grep -c '^head: write')" 4
check "dry run: writes nothing" test ! -e "$head_home/.config/systemd/user"
shown=$(t service show)
check "show: the programs are named" has "$shown" "^ExecStart=$out/tandem-node keep --stay"
check "show: those of the worker, too" has "$shown" "^ExecStart=$worker_home/data/.tandem/bin/tandem-node keep --stay"
check "show: no blind restart" is "$(printf '%s\n' "$shown" | grep '^Restart=' | sort -u)" 'Restart=no'

# Without the watchdog, then with it.
shown=$(t service install 2>&1)
check "install: ends well" is "$?" 0
check "install: the watchdog stays off until it is wanted" has "$shown" 'watchdog stays off'
check "install: the keeper is enabled on both" eval 'calls head | grep -q "enable tandem-keeper.service" && calls worker | grep -q "enable tandem-keeper.service"'
check "install: no timer yet" has_not "$(calls head)" 'enable tandem-watch.timer'
check "install: linger was possible on the head" has "$shown" "head: the user's units now start with the machine"
check "install: linger is explained for the worker" has "$shown" 'worker: .*sudo loginctl enable-linger'
t config set WATCH on >/dev/null
t service install >/dev/null 2>&1
check "install: the timer with WATCH on" has "$(calls head)" 'enable tandem-watch.timer'

# The unit files as systemd reads them.
if command -v systemd-analyze >/dev/null; then
    for node in head worker; do
        dir=$(node_home $node)/.config/systemd/user
        mkdir -p "$work/units-$node"
        cp "$dir"/tandem-* "$work/units-$node"
        shown=$(on $node env XDG_RUNTIME_DIR=/run systemd-analyze --user --man=no verify "$work/units-$node"/tandem-* 2>&1)
        code=$?
        # Other units of this machine may be named too; only ours count.
        check "systemd-analyze verify: $node" eval '[ $code = 0 ] && ! has "$shown" "tandem-"'
    done
else
    skip_one "systemd-analyze is not installed: the unit files were not judged by systemd"
fi
shown=$(t service show --json)
check "state: enabled on both" is "$(printf '%s' "$shown" | grep -o '"unit":"tandem-keeper.service","enabled":"enabled"' | wc -l)" 2
check "state: linger of both" eval 'has "$shown" "\"node\":\"head\",\"reachable\":true,\"linger\":true" && has "$shown" "\"node\":\"worker\",\"reachable\":true,\"linger\":false"'

# The start uses the units' keepers.
shown=$(t watch)
check "watch: never started" has "$shown" '^stands down: the pair has not been started yet'
t start >/dev/null 2>"$work/err"
check "start: ends well" is "$?" 0
check "start: by the units" eval '[ -n "$(keeper_pid head)" ] && [ -n "$(keeper_pid worker)" ]'
check "state: active on both" is "$(t service show --json | grep -o '"active":"active"' | wc -l)" 2
check "watch: in the grace of a start" has "$(t watch)" '^stands down: the last start is less than'
node_env+=("TANDEM_WATCH_GRACE=0")
shown=$(t watch)
check "watch: fine, with a few tokens written" has "$shown" '^fine: the pair answers'
check "watch: JSON" has "$(t watch --json)" '^\{"v":1,"action":"fine"'

# Maintenance.
t watch --pause 5 >/dev/null
check "watch: maintenance" has "$(t watch)" '^stands down: maintenance'
t watch --pause 0 >/dev/null
check "watch: maintenance over" has "$(t watch)" '^fine'

# A killed keeper: the watchdog starts the pair again, and tells.
printf '#!/bin/sh\necho "$1: $2" >>%s/told\n' "$work" >"$work/tell"
chmod +x "$work/tell"
t config set NOTIFY "$work/tell" >/dev/null
on worker kill -KILL "$(keeper_pid worker)"
down() { t status --json 2>/dev/null | grep -q '"pair":{"state":"failed"' && no_ranks; }
check "a killed keeper: the pair is down" wait_for 90 down
shown=$(t watch --dry-run)
check "watch: dry run says that it would heal" has "$shown" '^heals: the pair is failed'
shown=$(t watch)
check "watch: heals" is "$?" 0
check "watch: says so" has "$shown" '^heals: started again \([0-9a-f]{16}\)'
check "the pair is ready again" wait_for 20 pair_is ready
check "NOTIFY was told" has "$(cat "$work/told")" '^heal: the pair is failed'

# A refusal is not healed, and told once.
t stop >/dev/null
check "watch: a stop on purpose" has "$(t watch)" '^stands down: the pair was stopped on purpose'
cp -r "$model" "$work/half-model"
truncate -s 1000 "$work"/half-model/*.safetensors
on head env TANDEM_MODEL_DIR="$work/half-model" "$tandem" start >/dev/null 2>&1
shown=$(t watch)
check "watch: gives up on a refusal" is "$?" 20
check "watch: says why" has "$shown" '^gives up: a new start would be refused again'
t watch >/dev/null
check "NOTIFY is told once" is "$(grep -c '^gave-up' "$work/told")" 1

# After a boot.
check "boot: what was up is started" eval 't start >/dev/null 2>&1 && wait_for 20 pair_is ready'
node_off worker
node_off head
rm -f "$work"/*/systemd/*.pid
check "boot: the machines are on again" eval 'node_on head && node_on worker'
shown=$(t watch --boot --dry-run)
check "boot: would start" has "$shown" '^would start: all it needs is there'
boot_units worker
boot_units head
shown=$(t watch --boot)
check "boot: started" eval 'has "$shown" "^started" && wait_for 20 pair_is ready'
check "boot: by the units" eval '[ -n "$(keeper_pid worker)" ] && [ -n "$(keeper_pid head)" ]'
check "boot: once only" has "$(t watch --boot)" '^no start: the pair runs already'
t stop >/dev/null
check "boot: not after a stop on purpose" has "$(t watch --boot)" '^no start: the pair was stopped on purpose'
rm -f "$head_home/.local/state/tandem/pair/stopped"
sed -i 's/"kernel":"[^"]*"/"kernel":"6.17.0-1032-nvidia"/g' "$head_home/.local/state/tandem/pair/versions.json"
check "boot: not with another kernel" has "$(t watch --boot)" '^no start: the kernel of the head changed since the last good start \(6.17.0-1032-nvidia, now'
rail worker A noaddr
sed -i "s/\"kernel\":\"[^\"]*\"/\"kernel\":\"$(uname -r)\"/g" "$head_home/.local/state/tandem/pair/versions.json"
check "boot: waits for the addresses" has "$(t watch --boot --dry-run)" "would start: the address $worker_ip_a \(WORKER_IP_A\) is not there yet"
rail worker A addr $worker_ip_a/24

# And away again.
shown=$(t service remove)
check "remove: ends well" is "$?" 0
check "remove: no unit is left" eval '! ls "$head_home"/.config/systemd/user/tandem-* "$worker_home"/.config/systemd/user/tandem-* 2>/dev/null | grep -q .'
# A machine without systemd.
rm -f "$work/worker/bin/systemctl"
node_tool worker systemctl <<'END'
#!/bin/sh
echo 'Failed to connect to bus: No medium found' >&2
exit 1
END
shown=$(t service install 2>&1)
check "no systemd: said in words" has "$shown" 'no systemd of the user answers on the worker'
check "no systemd: the pair starts all the same" eval 't start >/dev/null 2>&1 && wait_for 20 pair_is ready'

done_testing
