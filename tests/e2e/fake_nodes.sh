# Two machines on this one, for end-to-end tests; sourced after lib.sh. Each node is a set of
# namespaces (processes, network, mounts, host name) with a real sshd of its own: own host keys, own
# /etc (a copy: machine-id, passwd, netplan), own /run, own home. They are joined by three cables
# (veth pairs): rail A, rail B and a management line. Files outside the homes are shared, so the
# programs of this build are there on both.
#
#   nodes_start          builds both; ends the test as skipped, with the reason, where the system
#                        does not permit namespaces. lib.sh's finish() must call nodes_stop.
#   on NODE COMMAND...   runs a command there (NODE: head or worker) with a login's environment; adds
#                        the words of the array node_env ("NAME=value" each)
#   at NODE COMMAND...   the same in the background, not tied to this shell
#   nodes_trust          the head may log in to the worker with a key; its host key is known
#   nodes_settings [FILE]  writes the head's tandem.conf: addresses, worker, data folders
#   node_sshd NODE start|stop; node_new_host_keys NODE
#   node_off NODE        the power cord: every process there ends at once, its cables go dead; node_on
#                        NODE starts it again
#   rail NODE A|B up|down|mtu N|addr ADDRESS/LEN|noaddr
#   node_tool NODE NAME  makes an executable in the node's own folder of tools, first in PATH; the
#                        script comes on standard input
#   node_disk NODE DIR MIB  a file system of this size at DIR
#
# Variables: head_home worker_home, head_ip_a head_ip_b worker_ip_a worker_ip_b (rails),
# head_ip worker_ip (management, ssh port 22), worker_ssh (user@address), rail_a rail_b rail_m (names
# of the network devices, the same on both).
# shellcheck shell=bash disable=SC2034,SC2154
rail_a=enp1s0f0np0 rail_b=enP2p1s0f0np0 rail_m=enP7s7
head_ip_a=192.168.100.10 worker_ip_a=192.168.100.11
head_ip_b=192.168.101.10 worker_ip_b=192.168.101.11
head_ip=10.99.7.1 worker_ip=10.99.7.2
head_home=$work/head/home worker_home=$work/worker/home/spark
worker_ssh=root@$worker_ip
nodes_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
node_env=()

node_pid() { cat "$work/$1/init.pid" 2>/dev/null; }
node_home() { [ "$1" = head ] && echo "$head_home" || echo "$worker_home"; }

on() {
    local node=$1 home
    shift
    home=$(node_home "$node")
    nsenter -t "$(node_pid "$node")" -m -u -i -n -p -- env -i HOME="$home" USER=root LOGNAME=root \
        SHELL=/bin/bash TANDEM_ALLOW_ROOT=1 TERM="${TERM:-dumb}" LC_ALL=C.UTF-8 "PATH=$work/$node/bin:$nodes_path" \
        "${node_env[@]}" "$@"
}
at() { on "$1" setsid -f "${@:2}" </dev/null >>"$work/$1/at.log" 2>&1; }

# What becomes the first process of a node: everything private is mounted, then it waits and reaps.
node_init='
set -e
node=$1 dir=$2 home=$3 id=$4
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs "$dir/etc" && cp -a /etc/. "$dir/etc/" && mount --bind "$dir/etc" /etc
mount -t tmpfs -o mode=755 tmpfs /run
[ ! -d /dev/shm ] || mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/sshd /etc/netplan /etc/ssh
mkdir -m 700 -p /run/user/0
rm -f /etc/ssh/ssh_host_*
hostname "$node-spark"
echo "$node-spark" >/etc/hostname
echo "127.0.0.1 localhost $node-spark" >/etc/hosts
echo "$id" >/etc/machine-id
sed -i "s#^root:\([^:]*:[^:]*:[^:]*:[^:]*\):[^:]*:[^:]*#root:\1:$home:/bin/bash#" /etc/passwd
ip link set lo up
: >"$dir/ready"
trap "exit 0" TERM
while :; do sleep 3600 & wait $!; done
'

node_up() { # NODE HOME MACHINE-ID
    local dir=$work/$1 tries=0
    mkdir -p "$dir/etc" "$dir/bin" "$2"
    rm -f "$dir/ready"
    setsid unshare --mount --uts --ipc --net --pid --fork --kill-child \
        bash -c "$node_init" init "$1" "$dir" "$2" "$3" </dev/null >"$dir/init.log" 2>&1 &
    local outer=$!
    echo "$outer" >"$dir/outer.pid"
    while [ ! -e "$dir/ready" ]; do
        kill -0 "$outer" 2>/dev/null && [ $((tries += 1)) -lt 6000 ] || return 1
        sleep 0.02
    done
    # The first process of the new space, as it is numbered out here.
    cat "/proc/$outer/task/$outer/children" | tr -d ' ' >"$dir/init.pid"
    [ -s "$dir/init.pid" ]
}

no_device() { ! on "$1" ip link show "$2" >/dev/null 2>&1; }

cable() { # DEVICE HEAD-ADDRESS WORKER-ADDRESS
    # The end of a cable goes some time after the node at its other end.
    wait_for 20 no_device head "$1" && wait_for 20 no_device worker "$1" &&
        nsenter -t "$(node_pid head)" -n ip link add "$1" type veth peer name "$1" netns "$(node_pid worker)" &&
        on head ip addr add "$2/24" dev "$1" && on worker ip addr add "$3/24" dev "$1" &&
        on head ip link set "$1" mtu "${4:-1500}" up && on worker ip link set "$1" mtu "${4:-1500}" up
}

cables() {
    [ -n "$(node_pid head)" ] && [ -n "$(node_pid worker)" ] || return 0
    cable $rail_m $head_ip $worker_ip && cable $rail_a $head_ip_a $worker_ip_a 9000 &&
        cable $rail_b $head_ip_b $worker_ip_b 9000
}

node_new_host_keys() {
    rm -f "$work/$1/host" "$work/$1/host.pub"
    ssh-keygen -q -t ed25519 -N '' -C "$1" -f "$work/$1/host"
}

no_process() { ! on "$1" kill -0 "$2" 2>/dev/null; }

node_sshd() { # NODE start|stop
    local dir=$work/$1 pid home
    if [ "$2" = stop ]; then
        pid=$(cat "$dir/run-sshd.pid" 2>/dev/null) && on "$1" kill "$pid" 2>/dev/null &&
            wait_for 20 no_process "$1" "$pid" # it holds the port until then
        rm -f "$dir/run-sshd.pid"
        return 0
    fi
    [ -f "$dir/host" ] || node_new_host_keys "$1"
    home=$(node_home "$1")
    mkdir -p "$home/.ssh" && chmod 700 "$home/.ssh"
    cat >"$dir/sshd_config" <<END
Port 22
HostKey $dir/host
AuthorizedKeysFile .ssh/authorized_keys
PidFile $dir/run-sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
MaxSessions 64
MaxStartups 100
PrintMotd no
SetEnv TANDEM_ALLOW_ROOT=1 LC_ALL=C.UTF-8 PATH=$dir/bin:$nodes_path
Subsystem sftp internal-sftp
END
    on "$1" cp "$dir/host" /etc/ssh/ssh_host_ed25519_key
    on "$1" cp "$dir/host.pub" /etc/ssh/ssh_host_ed25519_key.pub
    on "$1" /usr/sbin/sshd -f "$dir/sshd_config" -E "$dir/sshd.log" &&
        wait_for 20 test -s "$dir/run-sshd.pid"
}

nodes_can() {
    [ "$(id -u)" = 0 ] || { echo "not root" && return 1; }
    local tool
    for tool in unshare nsenter ip ssh-keygen setsid mount pgrep; do
        command -v $tool >/dev/null || { echo "$tool is not installed" && return 1; }
    done
    [ -x /usr/sbin/sshd ] || { echo "there is no sshd (openssh-server)" && return 1; }
    unshare --mount --uts --ipc --net --pid --fork bash -c \
        'mount --make-rprivate / && mount -t proc proc /proc && mount -t tmpfs tmpfs /mnt &&
         ip link add name t0 type veth peer name t1' 2>/dev/null ||
        { echo "the system does not permit namespaces (mounts, veth)" && return 1; }
}

nodes_start() {
    local why
    why=$(nodes_can) || skip_all "two fake nodes cannot be built: $why"
    node_up head "$head_home" 11111111111111111111111111111111 &&
        node_up worker "$worker_home" 22222222222222222222222222222222 && cables &&
        node_sshd head start && node_sshd worker start && return 0
    cat "$work"/*/init.log "$work"/*/sshd.log 2>/dev/null
    echo "FAIL the two fake nodes do not start"
    exit 1
}

nodes_stop() {
    node_end head
    node_end worker
    rm -rf "$work"
}

# Killing the first process of a space ends every other one in it.
node_end() {
    local pid outer
    pid=$(node_pid "$1") && kill -KILL "$pid" 2>/dev/null
    outer=$(cat "$work/$1/outer.pid" 2>/dev/null) && kill -KILL "$outer" 2>/dev/null
    [ -z "$outer" ] || wait "$outer" 2>/dev/null
    rm -f "$work/$1/init.pid" "$work/$1/outer.pid" "$work/$1/run-sshd.pid"
}

# A machine without power answers nothing, refuses nothing: its network goes a moment after its processes.
node_off() {
    local other=head
    [ "$1" = worker ] || other=worker
    node_end "$1"
    [ -z "$(node_pid "$other")" ] || wait_for 20 no_device "$other" $rail_m
}

node_on() {
    local id=1
    [ "$1" = head ] || id=2
    node_up "$1" "$(node_home "$1")" "$(printf "$id%.0s" {1..32})" && cables && node_sshd "$1" start
}

nodes_trust() {
    local key=$head_home/.ssh/id_ed25519
    mkdir -p "$head_home/.ssh" "$worker_home/.ssh" && chmod 700 "$head_home/.ssh" "$worker_home/.ssh"
    [ -f "$key" ] || ssh-keygen -q -t ed25519 -N '' -C head -f "$key"
    cat "$key.pub" >>"$worker_home/.ssh/authorized_keys"
    nodes_know_host
}

nodes_know_host() {
    local name
    : >"$head_home/.ssh/known_hosts"
    for name in $worker_ip $worker_ip_a $worker_ip_b; do
        echo "$name $(cut -d' ' -f1,2 "$work/worker/host.pub")" >>"$head_home/.ssh/known_hosts"
    done
}

nodes_settings() {
    local file=${1:-$head_home/.config/tandem/tandem.conf}
    mkdir -p "$(dirname "$file")" "$head_home/data" "$worker_home/data"
    cat >"$file" <<END
WORKER_SSH=$worker_ssh
HEAD_IP_A=$head_ip_a
HEAD_IP_B=$head_ip_b
WORKER_IP_A=$worker_ip_a
WORKER_IP_B=$worker_ip_b
HEAD_IF_A=$rail_a
HEAD_IF_B=$rail_b
WORKER_IF_A=$rail_a
WORKER_IF_B=$rail_b
HEAD_DATA=$head_home/data
WORKER_DATA=$worker_home/data
END
    chmod 600 "$file"
}

rail() { # NODE A|B WHAT [VALUE]
    local device=$rail_a
    [ "$2" = A ] || device=$rail_b
    case $3 in
    up | down) on "$1" ip link set $device "$3" ;;
    mtu) on "$1" ip link set $device mtu "$4" ;;
    addr) on "$1" ip addr add "$4" dev $device ;;
    noaddr) on "$1" ip addr flush dev $device ;;
    esac
}

node_tool() { cat >"$work/$1/bin/$2" && chmod 755 "$work/$1/bin/$2"; }

node_disk() { # NODE DIR MIB
    mkdir -p "$2"
    on "$1" mount -t tmpfs -o "size=${3}m,mode=755" tmpfs "$2"
}
