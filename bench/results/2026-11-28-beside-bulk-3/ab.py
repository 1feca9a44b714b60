# ab.py DIR OLD NEW MIB_PER_S ROUNDS SECS [KIND:N ...]: two builds by turns, each with a pool on loop
# devices in memory that the kernel limits (cgroup v1, blkio) to so many MiB/s each, reads and writes
# each; 0: files in DIR without a limit. An honest client on each of two volumes (hon.py there) beside N
# bulk clients of a kind (bulk.py there) on `data`; R, W: those alone. Medians of ROUNDS at the end. Needs root.
import json, os, shutil, signal, subprocess, statistics as st, sys, time
D, OLD, NEW, RATE, ROUNDS, SECS = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])
KINDS = sys.argv[7:] or ['none:0', 'r:1', 'r:8', 'w:1', 'w:8', 'R:8', 'W:8']
FAR = os.environ.get('ORIGIN')  # the origin of `data` instead: a file that is far away
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../2026-11-28-beside-bulk')
GROUP = f'/sys/fs/cgroup/blkio/forebay-bulk-{os.getpid()}'
DEVS = []
MEM = f'/dev/shm/forebay-bulk-{os.getpid()}'
def sh(*a): return subprocess.run(a, check=True, capture_output=True, text=True).stdout.strip()
def devices():
    base = MEM if RATE else D
    os.makedirs(base, exist_ok=True)
    out = DEVS
    for name, mib in (('o1', 1024), ('o2', 256), ('c1', 512)):
        p = f'{base}/{name}'
        if os.path.exists(p): os.unlink(p)
        sh('truncate', '-s', f'{mib}M', p)
        if name != 'c1' and not RATE: sh('dd', 'if=/dev/urandom', f'of={p}', 'bs=1M', f'count={mib}', 'conv=notrunc', 'status=none')
        out.append(sh('losetup', '-f', '--show', '--direct-io=off', p) if RATE else p)
    if RATE:
        os.makedirs(GROUP, exist_ok=True)
        for dev in out:
            num = open(f'/sys/block/{os.path.basename(dev)}/dev').read().strip()
            for way in ('read', 'write'):
                open(f'{GROUP}/blkio.throttle.{way}_bps_device', 'w').write(f'{num} {RATE << 20}')
    return list(out)
def release():
    if RATE:
        for dev in DEVS: subprocess.run(['losetup', '-d', dev])
        DEVS.clear()
        shutil.rmtree(MEM, ignore_errors=True)
def q(l): l = sorted(l); return [round(x / 1e6, 2) for x in (l[len(l) // 2], l[int(len(l) * .99)], l[-1])]
def phase(sock, kind, n, secs, hons=('data', 'other')):
    for f in os.listdir(D):
        if f == 'go' or f.startswith('h_'): os.unlink(f'{D}/{f}')
    nice = ['nice', '-n', '-5', sys.executable]
    hs = [subprocess.Popen(nice + ['hon.py', sock, v, f'{D}/h_{v}', str(secs)], cwd=HERE) for v in hons]
    while not all(os.path.exists(f'{D}/h_{v}.rdy') for v in hons): time.sleep(.01)
    b = None
    if n:
        b = subprocess.Popen(nice + ['bulk.py', kind, sock, 'data', str(n), str(secs + 1)], cwd=HERE, stdout=subprocess.PIPE, text=True)
        time.sleep(.5)
    open(f'{D}/go', 'w').close()
    for h in hs: assert h.wait() == 0
    r = {'bulk': float(b.communicate()[0]) if b else 0}
    for v in hons:
        lines = [x.split() for x in open(f'{D}/h_{v}')]
        for k in 'RW': r[v + k] = q([int(e) - int(s) for kk, s, e in lines if kk == k])
    return r
def once(build):
    devs = devices()
    state = f'{D}/st'
    shutil.rmtree(state, ignore_errors=True)
    log = open(f'{D}/log', 'w')
    def limited():
        if RATE: open(f'{GROUP}/cgroup.procs', 'w').write(str(os.getpid()))
        os.nice(-5)
    d = subprocess.Popen([f'{build}/forebayd', '--state-dir', state, '--private'], stdout=log, stderr=log, preexec_fn=limited)
    ctl = f'{state}/control.sock'
    while not os.path.exists(ctl): time.sleep(.05)
    res = {}
    try:
        for origin, name in ((FAR or devs[0], 'data'), (devs[1], 'other')):
            sh(f'{OLD}/forebay', '--socket', ctl, 'cache', origin, '--with', devs[2], '--mode', 'writeback', '--name', name, '--export', 'nbd', '-y')
        for k in KINDS:
            kind, n = k.split(':')
            res[k] = phase(f'{state}/nbd.sock', kind.lower(), int(n), SECS, () if kind.isupper() else ('data', 'other'))
            print(os.path.basename(build), k, json.dumps(res[k]), 'load', os.getloadavg()[0], flush=True)
    finally:
        d.terminate(); d.wait(); release()
    return res
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
os.makedirs(D, exist_ok=True)
runs = {OLD: [], NEW: []}
try:
    for _ in range(ROUNDS):
        for build in (OLD, NEW): runs[build].append(once(build))
finally:
    release()
    if os.path.isdir(GROUP): os.rmdir(GROUP)
print(f'== medians of {ROUNDS}, {RATE or "no"} MiB/s: bulk MiB/s, then p50, p99 in ms')
for k in KINDS:
    for build in (OLD, NEW):
        rs = [r[k] for r in runs[build]]
        m = lambda key, i: round(st.median(r[key][i] for r in rs), 1)
        print(k, os.path.basename(build), round(st.median(r['bulk'] for r in rs)), *(f'{key} {m(key, 0)} {m(key, 1)}' for key in ('dataR', 'dataW', 'otherR', 'otherW') if key in rs[0]), sep=' | ')
