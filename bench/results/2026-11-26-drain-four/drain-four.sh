#!/usr/bin/env bash
# drain-four.sh N DIRECTORY PROGRAMS: how long N volumes before N simulated hard disks, with one cache
# device and the same dirty data each (2,000 writes of 4 KiB anywhere in 1 GiB), take to be drained.
set -eu
n=$1 dir=$2/four$1 programs=$3
rm -rf "$dir"; mkdir -p "$dir"; cd "$dir"
truncate -s 1G ssd.img
"$programs/forebayd" --private --state-dir "$dir/state" >log 2>&1 &
daemon=$!
export FOREBAY_SOCKET=$dir/state/control.sock
sleep 1
for i in $(seq "$n"); do
    truncate -s 1G "origin$i"
    "$programs/forebay" cache "spindle:$dir/origin$i" --with ssd.img --name "v$i" --mode writeback --yes --export nbd >/dev/null
done
/usr/bin/python3 - "$n" "$dir/state/nbd.sock" <<'P'
import nbd, random, sys
random.seed(7)
for i in range(1, int(sys.argv[1]) + 1):
    h = nbd.NBD()
    h.connect_uri("nbd+unix:///v%d?socket=%s" % (i, sys.argv[2]))
    for _ in range(2000):
        h.pwrite(b"x" * 4096, random.randrange(1 << 18) * 4096)
    h.shutdown()
P
begun=$(date +%s%N)
jobs=()
for i in $(seq "$n"); do "$programs/forebay" volume drain "v$i" >>out & jobs+=($!); done
wait "${jobs[@]}"
echo "$n origins: $((($(date +%s%N) - begun) / 1000000)) ms"
cat out
kill $daemon; wait $daemon || true
