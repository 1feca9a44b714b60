#!/usr/bin/env bash
# drain-writers.sh DIRECTORY PROGRAMS ORIGIN_OPTIONS DIRTY_BLOCKS WRITERS PAUSE_S HOT SECONDS: a drain under
# writers. DIRTY_BLOCKS pieces of 64 KiB are dirty; each writer then writes one of HOT blocks, anywhere, and rests.
set -eu
dir=$1/drain programs=$2 options=$3
rm -rf "$dir"; mkdir -p "$dir"; cd "$dir"
truncate -s 4G origin; truncate -s 1G cache
"$programs/forebayd" --private --state-dir "$dir/state" >log 2>&1 &
daemon=$!
export FOREBAY_SOCKET=$dir/state/control.sock
sleep 1
"$programs/forebay" cache "spindle:$dir/origin$options" --with cache --name v --mode writeback --yes --export nbd >/dev/null
/usr/bin/python3 - "$dir" "$programs" "${@:4}" <<'P'
import nbd, random, subprocess, sys, threading, time
dir, programs, dirty, writers, pause, hot, most = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6]), float(sys.argv[7])
def connect():
    h = nbd.NBD(); h.connect_uri("nbd+unix:///v?socket=%s/state/nbd.sock" % dir); return h
random.seed(7); h = connect()
for n in random.sample(range(1 << 16), dirty): h.pwrite(b"x" * 65536, n << 16)
places = random.sample(range(1 << 20), hot); ends = []; waits = []; stop = False
def write(n):
    h, r = connect(), random.Random(n)
    while not stop:
        at = time.time(); h.pwrite(b"y" * 4096, r.choice(places) << 12); ends.append(time.time()); waits.append(ends[-1] - at)
        if pause: time.sleep(pause)
threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
for t in threads: t.start()
time.sleep(1); begun = time.time(); first = len(ends)
drain = subprocess.Popen([programs + "/forebay", "volume", "drain", "v"])
try: drain.wait(most)
except subprocess.TimeoutExpired: print("not ended after %d s" % most)
took = time.time() - begun; last = len(ends); stop = True
for t in threads: t.join()
drain.terminate()
during = sorted(ends[first:last])
print("drain %.1f s; %d writes, the longest %.0f ms, the longest gap of all %.0f ms" % (took, last - first, 1e3 * max(waits[first:], default=0), 1e3 * max((b - a for a, b in zip(during, during[1:])), default=0)))
P
grep VmHWM /proc/$daemon/status
kill $daemon; wait $daemon || true
