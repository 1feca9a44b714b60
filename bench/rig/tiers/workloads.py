# Loads for tiers, which the rig's runner takes in beside its own: each w_NAME(dev, peer, r) fills r["main"].
# `dev` is a device or a directory. Processor time is free in virtual time: COST_US is what a request costs its client besides,
# FOREBAY_US what it costs more through forebayd; copies of memory go at MEMORY_MBS, one at a time. OPTS changes these.
# ruff: noqa: F821
OPTS = dict(it.split("=", 1) for it in ENV.get("FOREBAY_RIG_TIERS", "").split())
RAM, COST_US, FOREBAY_US, MEMORY_MBS = (float(OPTS.get(k, v)) for k, v in (("RAM_MB", 512), ("COST_US", 10), ("FOREBAY_US", 30), ("MEMORY_MBS", 3000)))
CHURN, GROUP, MARK = ENV["EXTRA"] + "/tiers/churn", "/sys/fs/cgroup/peer/cgroup.procs", "/tmp/mark"
OURS = ("heat", "spill", "disks", "plain")


def is_ours(peer):
    return peer.mode.split("-")[0] in OURS


def churn(peer, kind, dev, **arguments):
    """One run of the load generator in the peer's control group."""
    cost = COST_US + (FOREBAY_US if is_ours(peer) else 0)
    words = {"cost": cost, "mbs": MEMORY_MBS, **arguments}
    command = [CHURN, kind, dev] + ["%s=%s" % it for it in words.items()]
    p = subprocess.Popen(["sh", "-c", 'echo $$ > %s; exec "$@"' % GROUP, "sh"] + command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    at_mark = None
    if "mark" in arguments:
        while p.poll() is None and not os.path.exists(MARK):
            time.sleep(0.2)
        at_mark = (peer.stats(), sim_counters(), vm())
    out, err = p.communicate()
    if err.strip():
        log(peer.name, "churn:", err[:1500])
    if p.returncode:
        raise RuntimeError("churn: rc %d %s" % (p.returncode, err[-500:]))
    return dict(json.loads(out), command=" ".join(command[1:])), at_mark


def vm():
    """What the kernel swapped and killed."""
    keys = ("pswpin", "pswpout", "oom_kill")
    return {k: int(v) for k, v in (line.split() for line in open("/proc/vmstat")) if k in keys}


def difference(a, b):
    return {k: b[k] - a[k] for k in b if isinstance(b[k], (int, float)) and isinstance(a.get(k), (int, float))}


def seed_of(r):
    return 1 + r["rep"] + 10 * XSEED


def files(dev, peer, r, **arguments):
    """Temporary files: 2.4 times the RAM of old ones, a fifth of all data new; 16 KiB requests, 70 % to the newest fifth."""
    if os.path.exists(MARK):
        os.unlink(MARK)
    file_mb = int(OPTS.get("FILE_MB", 32))
    words = {"file": file_mb, "old": round(RAM * 2.4 / file_mb), "newest": round(RAM * 0.6 / file_mb), "size": int(RAM * 4), "seed": seed_of(r),
             "warm": int(float(OPTS.get("WARM", 200000)) * SCALE), "ops": int(float(OPTS.get("OPS", 200000)) * SCALE), "mark": MARK, **arguments}
    r["main"], mark = churn(peer, "files", dev, **words)
    r["main"].update(change=difference(mark[0], peer.stats()), disk=delta(mark[1], sim_counters()), vm=difference(mark[2], vm()), end=peer.stats())


def w_churn(dev, peer, r):
    """old files stay, the newest fifth is deleted and written anew; depth 16"""
    files(dev, peer, r)


def w_churn1(dev, peer, r):
    """the same at depth 1"""
    files(dev, peer, r, depth=1, warm=int(100000 * SCALE), ops=int(50000 * SCALE))


def w_oldest(dev, peer, r):
    """steady state: the oldest of all is deleted; depth 16"""
    files(dev, peer, r, fifo=1)


def w_tables(dev, peer, r):
    """as churn, on files of a file system, beside a neighbour: buffered unless it is tiers, a RAM disk or tmpfs"""
    files(dev, peer, r, direct=0 if peer.mode in ("ssd-fs", "swap") else 1, neighbour="/dev/mapper/neighbour", discard=0)


def w_tablesd(dev, peer, r):
    """the same with O_DIRECT everywhere"""
    files(dev, peer, r, direct=1, neighbour="/dev/mapper/neighbour", discard=0)


def w_tablesb(dev, peer, r):
    """the same through the page cache everywhere"""
    files(dev, peer, r, direct=0, neighbour="/dev/mapper/neighbour", discard=0)


def seconds_of(run):
    """the least of any whole second, from windows of a quarter"""
    w = run["windows_mbs"]
    return min((sum(w[i:i + 4]) / 4 for i in range(0, len(w) - 3)), default=None)


def free_mb(peer):
    s = peer.stats()
    return (s["tier0_bytes"] - s["tier0_used_bytes"]) / MB if "tier0_bytes" in s else None


def w_through(dev, peer, r):
    """one stream of 256 KiB writes, eight at a time, over RAM and 3 GiB of SSD: the least of any second (windows overlap)"""
    size = min(RAM + 3072, device_mb(dev) - 16)
    run, _ = churn(peer, "seq", dev, size=size, seed=seed_of(r))
    r["main"] = dict(run, worst_second_mbs=seconds_of(run), stats=peer.stats())


def device_mb(dev):
    return int(sh(["blockdev", "--getsize64", dev])) // MB


def w_burst(dev, peer, r):
    """bursts into memory when 2.4 times it is full, after 30 s of rest each; beside them one into the empty volume"""
    reserve = int(OPTS.get("BURST_MB", 10))
    out = {"reserve_mb": reserve, "empty": churn(peer, "seq", dev, size=reserve, seed=seed_of(r))[0]}
    fill = int(RAM * 2.4)
    out["fill"], _ = churn(peer, "seq", dev, off=64, size=fill)
    at = 64 + fill
    for name, factor in (("half", 0.5), ("whole", 1), ("double", 2), ("again", 1)):
        free = []
        for _ in range(30):
            free.append(free_mb(peer))
            time.sleep(1)
        size = max(1, int(reserve * factor))
        out[name], _ = churn(peer, "seq", dev, off=at, size=size, window_ms=5)
        out[name]["free_mb_in_the_seconds_before"] = free
        at += size
    r["main"] = out


def w_demoted(dev, peer, r):
    """768 MiB written at 8 MB/s, and read back in order when what does not fit the SSD was demoted: in the order of addresses"""
    demoted(dev, peer, r)


def w_demotedr(dev, peer, r):
    """the same, written in a random order of mebibytes"""
    demoted(dev, peer, r, shuffle=1)


def demoted(dev, peer, r, **more):
    slow = {} if peer.mode == "hdd" else {"pause_mib": 4, "pause_ms": 500}
    r["main"] = {"written": churn(peer, "seq", dev, bs=MB, depth=1, size=768, seed=seed_of(r), **slow, **more)[0]}
    r["main"]["written"].pop("windows_mbs")
    time.sleep(60)
    if is_ours(peer):  # where what is read lies
        command = [ENV["EXTRA"] + "/daemon/forebay", "--socket", "/run/forebay-tiers/control.sock"]
        r["places"] = json.loads(sh(command + ["explain", "scratch", "0-%d" % (384 * 2048 - 1), "-o", "json"]))
        r["stats"] = peer.stats()
    for name, how in (("1m", {"bs": MB, "depth": 1}), ("256k", {"depth": 8}), ("128k-buffered", {"bs": 131072, "depth": 1, "direct": 0})):
        sh("echo 3 > /proc/sys/vm/drop_caches")
        a, d = peer.stats(), sim_counters()
        run, _ = churn(peer, "seq", dev, read=1, size=384, window_ms=1000, **how)
        b = peer.stats()
        r["main"][name] = dict(run, change=difference(a, b), disk=delta(d, sim_counters())["simhdd"])


def busy(d, s):
    return (d["seek_ns"] + d["rot_ns"] + d["xfer_ns"]) / 1e9 / s


def w_moving(dev, peer, r):
    """random reads at random times of what lives on the hard disk: moves paused, and while it moves up because it is read"""
    moving(dev, peer, r, False)


def w_emptied(dev, peer, r):
    """the same; what moves is the SSD, which is emptied onto the hard disk"""
    moving(dev, peer, r, True)


def moving(dev, peer, r, is_emptied):
    tier = int(ENV.get("TIER_MB", "256"))
    command = [ENV["EXTRA"] + "/daemon/forebay", "--socket", "/run/forebay-tiers/control.sock", "tier"]
    churn(peer, "seq", dev, bs=MB, depth=1, size=tier + 512)
    time.sleep(30)
    sh(command + ["pause", "scratch"])
    if "MOVE_RATE" in OPTS:
        sh(command + ["set", "scratch", "--rate", OPTS["MOVE_RATE"]])
    # What went straight to the hard disk.
    load = {"off": tier + 32, "size": 448, "rate": float(OPTS.get("RATE", 85)), "secs": secs(40), "seed": seed_of(r)}
    r["main"] = {}
    for name in ("paused", "moving"):
        if name == "moving":
            if is_emptied:  # asked for while paused, so that nothing goes the other way
                sh(command + ["evacuate", "scratch", "0", "--overcommit", "--no-wait"])
            sh(command + ["resume", "scratch"])
            time.sleep(1)
        a, d, t = peer.stats(), sim_counters(), time.monotonic()
        run, _ = churn(peer, "poisson", dev, **load)
        s = time.monotonic() - t
        change, disk = difference(a, peer.stats()), delta(d, sim_counters())["simhdd"]
        r["main"][name] = dict(run, moved_mbs=change.get("moved_bytes", 0) / 1e6 / s, busy=busy(disk, s), change=change, disk=disk)


def w_rand(dev, peer, r):
    """4 KiB random reads and writes, depth 1 and 16, over 128 MiB of the fastest tier"""
    churn(peer, "seq", dev, size=128)
    time.sleep(5)
    r["main"] = {}
    for how in ("randread", "randwrite"):
        for depth in (1, 16):
            words = ["--ioengine=libaio", "--iodepth=%d" % depth, "--readwrite=" + how, "--norandommap=1", limit(30000)]
            r["main"]["%s-%d" % (how, depth)] = pick(fio(dev, how, 128, words)[0])
    r["main"]["stats"] = peer.stats()
