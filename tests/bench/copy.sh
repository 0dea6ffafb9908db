#!/bin/bash
# Usage: tests/bench/copy.sh [MIB] [STREAMS]   (root; needs iperf3)
# The copy between two network namespaces beside what it can reach at most, in the same run: an
# O_DIRECT copy on the same disk and iperf3 with the same stream count. Each is done three times and
# the best counts. BENCH_DIR is the disk, OUT the programs.
set -eu
export TANDEM_ALLOW_ROOT=1
mib=${1:-2048} streams=${2:-8}
out=${OUT:-build}
for tool in iperf3 ip dd sha256sum; do
    command -v $tool >/dev/null || { echo "copy: $tool is missing" >&2; exit 77; }
done
dir=$(mktemp -d "${BENCH_DIR:-/tmp}/tandem-copy.XXXXXX")
h=bh$$ w=bw$$
cleanup() {
    ip netns del $h 2>/dev/null || true
    ip netns del $w 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT
ip netns add $h
ip netns add $w
for i in 1 2; do
    ip link add r$i netns $h type veth peer name r$i netns $w
    ip -n $h addr add 10.78.$i.1/24 dev r$i
    ip -n $w addr add 10.78.$i.2/24 dev r$i
    ip -n $h link set r$i up mtu 9000
    ip -n $w link set r$i up mtu 9000
done
mkdir -p "$dir/from/models/bench"
bytes=$((mib * 1048576))
commit=0123456789abcdef0123456789abcdef01234567
{
    echo "tandem-manifest 1"
    for i in 1 2; do
        file=$dir/from/models/bench/part$i
        dd if=/dev/urandom of="$file" bs=1M count=$((mib / 2)) oflag=direct status=none
        sum=$(sha256sum "$file" | cut -d' ' -f1)
        echo "file bench o/n $commit part$i $((mib / 2 * 1048576)) sha256 $sum weights both 1"
    done
    echo "end 2 $((mib / 2 * 2 * 1048576))"
} >"$dir/list"
seconds() { # command...: wall seconds
    local begun=$(date +%s.%N)
    "$@" >/dev/null 2>"$dir/errors" || { cat "$dir/errors" >&2; exit 1; }
    echo "$(date +%s.%N) $begun" | awk '{print $1 - $2}'
}
direct() {
    rm -rf "$dir/plain"
    mkdir "$dir/plain"
    for i in 1 2; do
        dd if="$dir/from/models/bench/part$i" of="$dir/plain/part$i" bs=8M iflag=direct oflag=direct \
            conv=fsync status=none
    done
}
ours() {
    ip netns exec $h "$out/tandem-node" send --manifest "$dir/list" --root "$dir/from" \
        --to "$dir/to" --rail 10.78.1.1,10.78.1.2 --rail 10.78.2.1,10.78.2.2 \
        --streams "$streams" --reserve 0 -- ip netns exec $w "$out/tandem-node" receive
}
network() { # Gbit/s over both rails together
    local half=$((streams / 2 > 0 ? streams / 2 : 1)) i
    for i in 1 2; do ip netns exec $w iperf3 -s -1 -D -B 10.78.$i.2 >/dev/null; done
    sleep 0.5
    for i in 1 2; do
        ip netns exec $h iperf3 -c 10.78.$i.2 -B 10.78.$i.1 -P $half -t 3 -f m >"$dir/iperf$i" &
    done
    wait
    awk '$1 == "[SUM]" && /receiver/ {sum += $(NF - 2)} $1 != "[SUM]" && /receiver/ {one += $(NF - 2)}
        END {print (sum > 0 ? sum : one) / 8}' "$dir/iperf1" "$dir/iperf2"
}
best_disk=0 best_net=0 best_ours=0
for round in 1 2 3; do
    disk=$(seconds direct | awk -v b=$bytes '{print b / $1 / 1e6}')
    rm -rf "$dir/plain"
    net=$(network)
    copy=$(seconds ours | awk -v b=$bytes '{print b / $1 / 1e6}')
    rm -rf "$dir/to"
    best_disk=$(echo "$best_disk $disk" | awk '{print ($1 > $2 ? $1 : $2)}')
    best_net=$(echo "$best_net $net" | awk '{print ($1 > $2 ? $1 : $2)}')
    best_ours=$(echo "$best_ours $copy" | awk '{print ($1 > $2 ? $1 : $2)}')
done
echo "$best_disk $best_net $best_ours" | awk -v m="$mib" -v s="$streams" '{
    least = ($1 < $2 ? $1 : $2)
    printf "copy %d MiB %d streams: ours %.0f MB/s with digest, disk %.0f MB/s, iperf3 %.0f MB/s, %.0f %%\n",
        m, s, $3, $1, $2, 100 * $3 / least}'
