# beside.py DIR BIN ROUNDS SECS [KIND ...]: an honest client of each of two volumes (hon.py of
# ../2026-11-28-beside-bulk) beside one and eight hostile clients of a kind (`hostile` below; what each
# does was found by the trial of 2026-11) that speak to `data`. A pool and two origins on files in
# memory. Per kind: medians of ROUNDS of p50, p99 and of the longest, in ms. Ports and pids are its own.
import json, os, random, shutil, signal, socket, ssl, statistics as st, struct, subprocess, sys, threading, time
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../2026-11-28-beside-bulk')
sys.path.insert(0, HERE)
from nb import conn, go, hello, meta, open_simple, opt, req, run_opt, rx

def pump(s, data, secs, reads=False):
    """Sends until the time is over, never waiting; reads what comes, or not."""
    end, sent = time.monotonic() + secs, 0
    s.setblocking(False)
    while time.monotonic() < end:
        try:
            sent += s.send(data[sent % len(data):][:65536])
        except BlockingIOError:
            time.sleep(.005)
        if reads:
            try: s.recv(1 << 20)
            except BlockingIOError: pass
def again(secs, f):
    end = time.monotonic() + secs
    while time.monotonic() < end:
        try: f()
        except (OSError, EOFError, AssertionError): time.sleep(.01)
def block_status(unix, tcp, secs):
    s = hello(unix, timeout=100)
    run_opt(s, 8)
    run_opt(s, 10, meta('data', ['base:allocation', 'forebay:cache']))
    go(s)
    pump(s, req(7, 1, 0, 1 << 30) * 1024, secs, reads=True)
def zeroes_then_close(unix, tcp, secs):
    def once():
        s = open_simple(unix)
        pump(s, req(6, 1, 64 << 20, 448 << 20, 2) * 1024, .5)
        s.close()
    again(secs, once)
def zeroes(unix, tcp, secs): pump(open_simple(unix), req(6, 1, 64 << 20, 448 << 20) * 1024, secs, reads=True)
def discards(unix, tcp, secs): pump(open_simple(unix), req(4, 1, 64 << 20, 960 << 20) * 1024, secs, reads=True)
def prefetches(unix, tcp, secs): pump(open_simple(unix), req(5, 1, 0, 1 << 30) * 1024, secs, reads=True)
def reads_that_nobody_takes(unix, tcp, secs): pump(open_simple(tcp), req(0, 1, 0, 65536) * 1000, secs)
def large_reads_that_nobody_takes(unix, tcp, secs): pump(open_simple(tcp), req(0, 1, 0, 32 << 20) * 1000, secs)
def flushes(unix, tcp, secs): pump(open_simple(tcp), req(3, 1, 0, 0) * 1000, secs, reads=True)
def flushes_that_nobody_takes(unix, tcp, secs): pump(open_simple(tcp), req(3, 1, 0, 0) * 1000, secs)
def silent_connections(unix, tcp, secs):
    kept, end = [], time.monotonic() + secs
    while time.monotonic() < end:
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(tcp)
        kept.append(s)
        if len(kept) > 900 // 8: kept.pop(0).close()
        time.sleep(.004)
def slow_handshakes(unix, tcp, secs):
    some = [hello(tcp) for _ in range(12)]
    data, end, at = opt(7, struct.pack('>I', 4) + b'data\0\0'), time.monotonic() + secs, 0
    while time.monotonic() < end:
        for s in some:
            try: s.send(data[at % len(data):][:1])
            except OSError: pass
        at += 1
        time.sleep(.25)
def handshakes_that_lie(unix, tcp, secs):
    lies = [b'\0\0\0\3GARBAGE!' + b'\0' * 100, b'\xff' * 4, b'\0\0\0\3' + opt(7, b'', 0xffffffff) + b'A' * 100000,
            b'\0\0\0\3' + opt(1, b'A' * 4097), b'\0\0\0\3' + opt(3) * 40, b'\0\0\0\3' + opt(10, b'\0\0\0\4data\xff\xff\xff\xff')]
    def once():
        s = conn(tcp, 1)
        rx(s, 18)
        s.sendall(random.choice(lies))
        s.shutdown(socket.SHUT_WR)
        while s.recv(65536): pass
        s.close()
    again(secs, once)
def requests_that_lie(unix, tcp, secs):
    def once():
        s = open_simple(tcp, timeout=1)
        off, ln = random.choice([(0, 0), (0, 2**32 - 512), (0, 1), (2**64 - 512, 512), (1, 512), ((1 << 30) - 512, 1024)])
        s.sendall(req(random.choice([0, 1, 3, 7, 8, 99]), 7, off, ln) + b'z' * 1000)
        s.recv(100)
        s.close()
    again(secs, once)
def tls_garbage(unix, tcp, secs):
    def once():
        s = hello(tcp, timeout=1)
        s.sendall(opt(5) + random.randbytes(3000))
        s.shutdown(socket.SHUT_WR)
        while s.recv(65536): pass
        s.close()
    again(secs, once)
KINDS = [block_status, zeroes, zeroes_then_close, discards, prefetches, reads_that_nobody_takes, large_reads_that_nobody_takes,
         flushes, flushes_that_nobody_takes, silent_connections, slow_handshakes, handshakes_that_lie, requests_that_lie, tls_garbage]

if sys.argv[1] == 'hostile':
    kind, unix, port, secs = sys.argv[2:]
    try: globals()[kind](unix, ('127.0.0.1', int(port)), float(secs))
    except (OSError, EOFError): pass
    sys.exit()

D, BIN, ROUNDS, SECS = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
kinds = sys.argv[5:] or [k.__name__ for k in KINDS]
MEM = f'/dev/shm/forebay-beside-{os.getpid()}'
def sh(*a): return subprocess.run(a, check=True, capture_output=True, text=True).stdout.strip()
def q(l): l = sorted(l); return [round(x / 1e6, 2) for x in (l[len(l) // 2], l[int(len(l) * .99)], l[-1])]
def phase(unix, port, kind, n):
    for f in os.listdir(D):
        if f == 'go' or f.startswith('h_'): os.unlink(f'{D}/{f}')
    hs = [subprocess.Popen([sys.executable, 'hon.py', unix, v, f'{D}/h_{v}', str(SECS)], cwd=HERE) for v in ('data', 'other')]
    while not all(os.path.exists(f'{D}/h_{v}.rdy') for v in ('data', 'other')): time.sleep(.01)
    bad = [subprocess.Popen([sys.executable, __file__, 'hostile', kind, unix, str(port), str(SECS + 1)], stderr=subprocess.DEVNULL) for _ in range(n)]
    time.sleep(.5)
    open(f'{D}/go', 'w').close()
    for h in hs: assert h.wait() == 0, 'an honest client failed'
    for b in bad: b.wait()
    rs = [x.split() for v in ('data', 'other') for x in open(f'{D}/h_{v}')]
    return {k: q([int(e) - int(s) for kk, s, e in rs if kk == k]) for k in 'RW'}
os.makedirs(D, exist_ok=True)
os.makedirs(MEM)
for name, mib in (('o1', 1024), ('o2', 256), ('c1', 256)): sh('truncate', '-s', f'{mib}M', f'{MEM}/{name}')
sock = socket.socket(); sock.bind(('127.0.0.1', 0)); port = sock.getsockname()[1]; sock.close()
state = f'{D}/st'
shutil.rmtree(state, ignore_errors=True)
log = open(f'{D}/log', 'w')
d = subprocess.Popen([f'{BIN}/forebayd', '--state-dir', state, '--private', '--nbd-listen', f'127.0.0.1:{port}'], stdout=log, stderr=log)
ctl = f'{state}/control.sock'
try:
    while not os.path.exists(ctl): time.sleep(.05)
    for origin, name in ((f'{MEM}/o1', 'data'), (f'{MEM}/o2', 'other')):
        sh(f'{BIN}/forebay', '--socket', ctl, 'cache', origin, '--with', f'{MEM}/c1', '--mode', 'writeback', '--name', name, '--export', 'nbd', '-y')
    unix = f'{state}/nbd.sock'
    res = {}
    for _ in range(ROUNDS):
        for kind, n in [('nobody', 0)] + [(k, n) for k in kinds for n in (1, 8)]:
            r = phase(unix, port, kind, n)
            res.setdefault((kind, n), []).append(r)
            print(kind, n, json.dumps(r), 'load', os.getloadavg()[0], flush=True)
    assert d.poll() is None, 'the daemon ended'
finally:
    d.terminate(); d.wait()
    shutil.rmtree(MEM, ignore_errors=True)
print(f'== medians of {ROUNDS}, {SECS} s each: reads p50 p99 longest | writes p50 p99 longest, ms')
for (kind, n), rs in res.items():
    m = lambda k, i: round(st.median(r[k][i] for r in rs), 1)
    print(f'{kind} {n}'.ljust(34), *(m('R', i) for i in range(3)), '|', *(m('W', i) for i in range(3)))
