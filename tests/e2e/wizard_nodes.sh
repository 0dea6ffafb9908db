#!/bin/bash
# Two fake nodes for test_wizard (which starts this and is started again by it on the head). What only
# the outside can do to a node comes as a line through a pipe: the functions of fake_nodes.sh.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/fake_nodes.sh"
# shellcheck shell=bash disable=SC2154
finish() { nodes_stop; }
self=$1

# First contact is by password: the node has a shadow file of its own.
worker_password=correct-horse-7
worker_sshd() {
    sed -i 's/^PasswordAuthentication no/PasswordAuthentication yes/' "$work/worker/sshd_config"
    on worker /usr/sbin/sshd -f "$work/worker/sshd_config" -E "$work/worker/sshd.log" && wait_for 20 sshd_listens
}
sshd_listens() { on worker bash -c "exec 3<>/dev/tcp/$worker_ip/22" 2>/dev/null; }
# Every program of ours there dies at once.
worker_kill() {
    on worker sh -c 'for p in /proc/[0-9]*; do case $(cat "$p/comm" 2>/dev/null) in
        tandemd | tandem-node) kill -9 "${p#/proc/}" ;; esac; done; true'
}
# The worker as another program of the network: the status of a request to the head's endpoint.
worker_asks() { # PLACE STATUS [KEY]
    local line
    line=$(on worker bash -c 'exec 3<>"/dev/tcp/${1%:*}/${1#*:}" || exit 1
        printf "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n" "${2:+Authorization: Bearer $2\r\n}" >&3; head -n 1 <&3' bash "$1" "${3-}")
    echo "$line"
    [ "$(echo "$line" | cut -d" " -f2)" = "$2" ]
}
# The worker's data folder is on a disk of its own, of so many MiB.
worker_disk() {
    mkdir -p "$worker_home/data"
    on worker mount -t tmpfs -o "size=${1}m,mode=755" tmpfs "$worker_home/data"
}
disk_size() { on "$1" mount -o "remount,size=${3}m" "$2"; }
# Everything of both nodes that set-up may change, as one text.
snapshot() {
    local node root
    for node in head worker; do
        root=$(node_home $node)
        echo "== $node"
        (cd "$root" && find . -path ./.local -prune -o -path ./.ssh/known_hosts.old -prune -o -print |
            LC_ALL=C sort && cat .ssh/authorized_keys .ssh/known_hosts .config/tandem/tandem.conf 2>/dev/null)
        on $node sh -c 'ls /etc/netplan; cat /etc/netplan/* 2>/dev/null'
        (cd "$work/$node/root" && find etc -type f | LC_ALL=C sort | xargs cat 2>/dev/null)
    done >"$work/snapshot-$1" 2>/dev/null
}

nodes_start
on worker sh -c "echo root:$worker_password | chpasswd" || skip_all "passwords cannot be set"
node_sshd worker stop
node_disk head "$head_home/data" 12
worker_disk 16
mkfifo "$work/asked" "$work/said"
node_env=("OUT=$out" "TANDEM_SOURCE_DIR=$top" "WORLD=$work" "HEAD_HOME=$head_home" "WORKER_HOME=$worker_home"
    "WORKER_IP=$worker_ip" "HEAD_IP=$head_ip" "WORKER_PASSWORD=$worker_password" "HEAD_IP_A=$head_ip_a" "MODEL=$model"
    "ASAN_OPTIONS=${ASAN_OPTIONS:-}" "UBSAN_OPTIONS=${UBSAN_OPTIONS:-}" "TSAN_OPTIONS=${TSAN_OPTIONS:-}"
    "LSAN_OPTIONS=${LSAN_OPTIONS:-}")
exec 7<>"$work/asked" 8<>"$work/said"
{
    on head "$self" --inside <"$work/said"
    echo "quit $?" >&7
} &
code=1
while IFS= read -r line <&7; do
    case $line in
    quit*) code=${line#quit } && break ;;
    esac
    eval "$line" </dev/null >>"$work/outside.log" 2>&1
    echo "$?" >&8
done
if [ "$code" != 0 ]; then
    tail -n 20 "$work/outside.log" "$head_home/.local/state/tandem/logs/"*.log 2>/dev/null
fi
exit "$code"
