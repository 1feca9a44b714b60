#!/usr/bin/env python3
"""A database's temporary tables three times the memory, on this machine: database.py FOREBAY_DIRECTORY CHURN ROUNDS CANDIDATE...

As root, on a machine that does nothing else. PostgreSQL with its temporary tablespace on one of these, made of RAM_MB of memory and the same
SSD (a loop device whose file is locked in memory; blkio of version 1 limits it to 500 MB/s each way):
  heat spill   XFS on a scratch volume of either placement (`spill` fills one after the other, as a linear array does), --export loop
  swap         tmpfs, with swap on the SSD
  ssd          XFS on the SSD
Database, a neighbour and all page cache are in a memory control group of RAM_MB + MORE_MB; with tiers in one of MORE_MB - DAEMON_MB, and
forebayd in one of its own, of which the most that it used is told. (In one of version 1 together with those who use its block devices it stands still where it lacks
CAP_SYS_RESOURCE.) tables.sql is the load: SESSIONS sessions fill 3 x RAM_MB with tables and use them. Each measurement is a line of JSON.
"""
import ctypes, json, mmap, os, random, shutil, statistics, subprocess, sys, threading, time
import real
from real import BASE, LIMIT, MB, ROUNDS, ROWS, run, say

RAM_MB, MORE_MB, DAEMON_MB, SSD_MB, TABLE_MB, SESSIONS = 512, 256, 48, 2304, 16, 4
TABLES = 3 * RAM_MB // TABLE_MB // SESSIONS
SECONDS, NEIGHBOUR_MB = int(os.environ.get("SECONDS", 60)), 64
MEMORY, BLKIO = "/sys/fs/cgroup/memory/forebay-real", "/sys/fs/cgroup/blkio"
DAEMON = MEMORY + "-daemon"
DIRECTORY, DATA, SOCKET = BASE + "/temporary", BASE + "/postgres", BASE + "/socket"
BIN = sorted(os.listdir("/usr/lib/postgresql"))[-1]
BIN = "/usr/lib/postgresql/%s/bin/" % BIN


def join(memory=MEMORY):
    for group in (memory, real.GROUP):
        with open(group + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))


real.join = lambda: join(DAEMON)  # what World starts


def group(path, mb):
    os.makedirs(path, exist_ok=True)
    with open(path + "/memory.limit_in_bytes", "w") as file:
        file.write(str(mb * MB))


class Locked:
    """A file whose content stays in memory, and is no memory of the control group."""

    def __init__(self, path, mb):
        self.file = open(path, "w+b")
        os.posix_fallocate(self.file.fileno(), 0, mb * MB)
        self.map = mmap.mmap(self.file.fileno(), mb * MB)
        at = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(at), ctypes.c_size_t(mb * MB)):
            raise OSError(ctypes.get_errno(), "mlock")


def limit(device, bytes_per_second):
    """Also for the group of nobody: the kernel's own threads write pages back."""
    number = os.stat(device).st_rdev
    for group in (BLKIO, real.GROUP):
        for how in ("read", "write"):
            with open("%s/blkio.throttle.%s_bps_device" % (group, how), "w") as file:
                file.write("%d:%d %d" % (os.major(number), os.minor(number), bytes_per_second))


def psql(*words, **more):
    command = [BIN + "psql", "-h", SOCKET, "-U", "postgres", "-XqAt", "-v", "ON_ERROR_STOP=1", "postgres", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=join, **more)


def ask(query):
    process = psql("-c", query)
    out, err = process.communicate()
    if process.returncode:
        raise RuntimeError(err[-500:])
    return out.strip()


def everybody(*queries):
    """Each session one after the other of these queries, which know it by :session; all at the same time."""
    sessions = [psql(stdin=subprocess.PIPE) for _ in range(SESSIONS)]
    for number, session in enumerate(sessions):
        session.stdin.write("\n".join(query.replace(":session", str(number)) + ";" for query in queries))
        session.stdin.close()
    for session in sessions:
        if session.wait():
            raise RuntimeError(session.stderr.read()[-500:])


class Database:
    def __enter__(self):
        for directory in (DATA, SOCKET, DIRECTORY):
            os.makedirs(directory, exist_ok=True)
            shutil.chown(directory, "postgres")
        os.chmod(BASE, 0o755)
        run("runuser", "-u", "postgres", "--", BIN + "initdb", "-D", DATA, "-A", "trust", "-U", "postgres", "--no-sync")
        settings = {"listen_addresses": "", "unix_socket_directories": SOCKET, "shared_buffers": "32MB", "temp_buffers": "4MB", "fsync": "off",
                    "max_wal_size": "128MB", "autovacuum": "off", "temp_tablespaces": "temporary", "max_parallel_workers_per_gather": "0", "jit": "off"}
        words = ["-c%s=%s" % it for it in settings.items()]
        log = open(BASE + "/postgres.log", "wb")
        self.process = subprocess.Popen(["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", BIN + "postgres", "-D", DATA, *words],
                                        stdout=log, stderr=log, preexec_fn=join)
        for _ in range(100):
            if psql("-c", "SELECT 1").wait() == 0:
                break
            time.sleep(0.1)
        ask("CREATE TABLESPACE temporary LOCATION '%s'" % DIRECTORY)
        run_sql = psql("-f", os.path.join(os.path.dirname(os.path.abspath(__file__)), "tables.sql"))
        if run_sql.wait():
            raise RuntimeError(run_sql.stderr.read())
        rows = TABLE_MB * MB // 134  # a row with its header
        ask("CREATE UNLOGGED TABLE template AS SELECT g AS id, repeat(md5(g::text), 3) AS payload FROM generate_series(1, %d) g" % rows)
        return self

    def __exit__(self, *_):
        self.process.send_signal(2)
        self.process.wait()


class Neighbour(threading.Thread):
    """Somebody in the same group with memory and a part of the SSD of their own: 16 pages and a block each 5 ms."""

    def __init__(self, device):
        super().__init__()
        self.out = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, device, str(SSD_MB - NEIGHBOUR_MB)], stdout=subprocess.PIPE, text=True, preexec_fn=join)
        self.seen = []
        self.start()

    def run(self):
        for line in self.out.stdout:
            at, ms = line.split()
            self.seen.append((float(at), float(ms)))

    def end(self):
        self.out.kill()
        self.out.wait()
        self.join()


NEIGHBOUR = """
import mmap, os, random, sys, time
memory = bytearray(48 << 20)
for at in range(0, len(memory), 4096): memory[at] = 1
device = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
block = mmap.mmap(-1, 4096)
while True:
    begun = time.monotonic()
    for _ in range(16): memory[random.randrange(len(memory))] += 1 & 1
    os.preadv(device, [block], (int(sys.argv[2]) << 20) + 4096 * random.randrange(16000))
    print(time.time(), (time.monotonic() - begun) * 1e3, flush=True)
    time.sleep(0.005)
"""


def per_cent(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None


def make(world, ssd, name):
    """What the tablespace is on. What takes it away again."""
    part = SSD_MB - NEIGHBOUR_MB
    if name == "swap":
        run("mkswap", "--force", ssd, str(part * 1024))
        run("swapon", ssd)
        run("mount", "-t", "tmpfs", "-o", "size=%dM" % (4 * RAM_MB), "none", DIRECTORY)
        return lambda: (run("umount", DIRECTORY), run("swapoff", ssd))
    device = ssd
    if name != "ssd":
        made = real.forebay("volume", "create", "scratch", "--tier", "ram:%dM" % RAM_MB, "--tier", ssd, "--size", "%dM" % (RAM_MB + part - 100), "--export",
                            "loop", "--force", "--yes", "--placement", name)
        device = os.path.realpath(real.USE.search(made).group(1))
    run("mkfs.xfs", "-q", "-f", *(["-d", "size=%dm" % part] if name == "ssd" else []), device)
    run("mount", "-o", "discard", device, DIRECTORY)
    return lambda: run("umount", DIRECTORY)


def measure(name, seed):
    is_tiers = name in ("heat", "spill")
    group(MEMORY, MORE_MB - DAEMON_MB if is_tiers else MORE_MB + RAM_MB)
    group(DAEMON, RAM_MB + MORE_MB)  # what forebayd wants to be allowed
    with real.World() as world:
        locked = Locked(BASE + "/ssd", SSD_MB)
        ssd = run("losetup", "--find", "--show", BASE + "/ssd").strip()
        world.loops.append(ssd)
        limit(ssd, LIMIT)
        os.makedirs(DIRECTORY)
        clean = make(world, ssd, name)
        shutil.chown(DIRECTORY, "postgres")
        try:
            with Database():
                neighbour = Neighbour(ssd)
                try:
                    everybody("CALL fill(:session, %d)" % TABLES, "CALL use(:session, %d, %d)" % (TABLES, SECONDS))
                finally:
                    neighbour.end()
                result = summary(neighbour.seen)
        finally:
            clean()
            limit(ssd, 0)
        del locked
    for path in (MEMORY, DAEMON):
        with open(path + "/memory.oom_control") as file:
            killed = int(dict(line.split() for line in file)["oom_kill"])
            result["killed"] = result.get("killed", 0) + killed
        with open(path + "/memory.max_usage_in_bytes") as file:
            result["daemon_mb" if path == DAEMON else "group_mb"] = int(file.read()) / MB
        os.rmdir(path)
    return result


def summary(neighbour):
    rows = json.loads(ask("SELECT json_agg(seen) FROM seen"))
    fill = sorted((row for row in rows if row["phase"] == "fill"), key=lambda row: row["at"])
    use = [row for row in rows if row["phase"] == "use"]
    begun, filled, end = fill[0]["at"] - fill[0]["us"][0] / 1e6, fill[-1]["at"], max(row["at"] for row in use)
    middle = (filled + end) / 2
    rate = lambda part, a, b: sum(row["bytes"] for row in part) / 1e6 / (b - a)  # noqa: E731
    out, step, a, bounds = {}, [], begun, [("below", 0.75), ("at", 1.5), ("beyond", 3)]
    done = 0
    for row in fill:
        done += row["bytes"]
        step.append(row)
        if done >= bounds[0][1] * RAM_MB * MB * 0.99:
            out["fill_%s_mbs" % bounds.pop(0)[0]] = rate(step, a, row["at"])
            step, a = [], row["at"]
        if not bounds:
            break
    for what, a, b in (("warm", filled, middle), ("after", middle, end)):
        part = [row for row in use if a < row["at"] <= b]
        us = [it for row in part for it in row["us"]]
        out.update({what + "_mbs": rate(part, a, b), what + "_p99_us": per_cent(us, 0.99), what + "_p50_us": per_cent(us, 0.5)})
    for what, a, b in (("fill", begun, filled), ("use", filled, end)):
        ms = [it for at, it in neighbour if a < at <= b]
        out.update({"neighbour_%s_p99_ms" % what: per_cent(ms, 0.99), "neighbour_%s_max_ms" % what: max(ms)})
    return out


if __name__ == "__main__":
    for number in range(ROUNDS):
        order = list(ROWS)
        random.Random(number).shuffle(order)
        for name in order:
            say(what="tables", round=number, on=name, **measure(name, number))
