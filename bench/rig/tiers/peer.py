#!/usr/bin/env python3
"""Tiers and what there is instead of them, as peers of the rig: peer.py MODE {setup|stats|dirty|drain|teardown}.

MODE is what is made of RAM_MB of memory and the simulated SSD, or of the SSD and the hard disk:
  heat spill      forebay: a scratch volume, --tier ram: --tier SSD, of either placement
  linear          dm-linear over a RAM disk and the SSD
  ssd hdd         the device alone
  heat-fs spill-fs linear-fs ssd-fs    XFS on one of these, with -o discard
  swap            tmpfs, with swap on the SSD
  disks           forebay: --tier SSD --tier HDD; the SSD is the first TIER_MB of it
  plain           forebay: a volume that passes through to the SSD, without tiers
`setup` prints the device, or the directory of a file system.

A control group holds forebayd, what the loads start and their page cache. It may take MEM_MB, and RAM_MB besides unless these
are a RAM disk. The SSD's last NEIGHBOUR_MB are somebody else's (/dev/mapper/neighbour).
"""
import json, os, re, signal, subprocess, sys, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
STATE, GROUP = "/run/forebay-tiers", "/sys/fs/cgroup/peer"
CONTROL, PID, LOG = STATE + "/control.sock", STATE + "/pid", STATE + "/log"
DAEMON = os.environ["EXTRA"] + "/daemon"
RAM_MB, MEM_MB = int(os.environ.get("RAM_MB", 512)), int(os.environ.get("MEM_MB", 192))
NEIGHBOUR_MB, TIER_MB = int(os.environ.get("NEIGHBOUR_MB", 128)), int(os.environ.get("TIER_MB", 256))
SSD, HDD, DIRECTORY = os.environ["SSD"], os.environ["HDD"], "/mnt/scratch"
TIME_LIMIT_S = 60


def run(*words, **more):
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, **more).stdout


def forebay(*words):
    return run(DAEMON + "/forebay", "--socket", CONTROL, *words)


def wait_until(done, what):
    end = time.monotonic() + TIME_LIMIT_S
    while not done():
        if time.monotonic() > end:
            sys.exit("peer: %s for more than %d s" % (what, TIME_LIMIT_S))
        time.sleep(0.05)


def sectors(device):
    return int(run("blockdev", "--getsz", device))


def linear(name, *parts):
    """A device of parts: each a device, where it begins there, and how long it is (sectors)."""
    at, lines = 0, []
    for device, start, length in parts:
        lines.append("%d %d linear %s %d" % (at, length, device, start))
        at += length
    run("dmsetup", "create", "--noudevsync", name, input="\n".join(lines) + "\n")
    run("dmsetup", "mknodes")
    return "/dev/mapper/" + name


def join(group=GROUP):
    """This process belongs to the control group from now on."""
    with open(group + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


def begin_daemon():
    os.makedirs(STATE, exist_ok=True)
    command = [DAEMON + "/forebayd", "--state-dir", STATE, "--private"]
    log = open(LOG, "ab")
    daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=join)
    with open(PID, "w") as file:
        file.write(str(daemon.pid))
    wait_until(lambda: os.path.exists(CONTROL) or daemon.poll() is not None, "no control socket")


def volume(*words):
    begin_daemon()
    made = forebay("volume", "create", "scratch", *words, "--export", "ublk", "--force", "--yes")
    return os.path.realpath(re.search(r"use it at +(\S+)", made).group(1))


def passing(device):
    """A volume without tiers; the pool that it needs is idle."""
    begin_daemon()
    run("truncate", "-s", "64M", "/tmp/pool")
    made = forebay("cache", device, "--with", "/tmp/pool", "--mode", "passthrough", "--name", "scratch", "--export", "ublk", "--force", "--yes")
    return os.path.realpath(re.search(r"use it at +(\S+)", made).group(1))


def setup(mode):
    what, _, fs = mode.partition("-")
    for module in ("brd", "ublk_drv"):
        subprocess.run(["modprobe", module] + (["rd_nr=1", "rd_size=%d" % (RAM_MB * 1024)] if module == "brd" else []), stderr=subprocess.DEVNULL)
    if not os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        run("mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")
    with open("/sys/fs/cgroup/cgroup.subtree_control", "w") as file:
        file.write("+memory")
    os.makedirs(GROUP, exist_ok=True)
    # A RAM disk is nobody's memory, so it is no part of what the group may take.
    limit_mb = MEM_MB + (RAM_MB if what in ("heat", "spill", "swap") or mode == "ssd-fs" else 0)
    with open(GROUP + "/memory.max", "w") as file:
        file.write(str(limit_mb << 20))
    if "DIRTY_MB" in os.environ:  # what may be dirty in the page cache; the kernel's default is a share of memory
        with open("/proc/sys/vm/dirty_bytes", "w") as file:
            file.write(str(int(os.environ["DIRTY_MB"]) << 20))
    rest = NEIGHBOUR_MB * 2048
    size = sectors(SSD) - rest
    ssd = linear("ssd", (SSD, 0, TIER_MB * 2048 if what == "disks" else size))
    linear("neighbour", (SSD, size, rest))
    if what in ("heat", "spill"):
        device = volume("--tier", "ram:%dM" % RAM_MB, "--tier", ssd, "--placement", what)
    elif what == "disks":
        device = volume("--tier", ssd, "--tier", HDD)
    elif what == "plain":
        device = passing(ssd)
    elif what == "linear":
        device = linear("both", ("/dev/ram0", 0, RAM_MB * 2048), (ssd, 0, size))
    else:
        device = {"ssd": ssd, "hdd": HDD}.get(what)
    os.makedirs(DIRECTORY, exist_ok=True)
    if what == "swap":
        run("mkswap", ssd)
        run("swapon", ssd)
        run("mount", "-t", "tmpfs", "-o", "size=%dM" % (8 * RAM_MB), "tmpfs", DIRECTORY)
        device = DIRECTORY
    elif fs:
        run("mkfs.xfs", "-q", "-f", device)
        run("mount", "-o", "discard,noatime", device, DIRECTORY)
        device = DIRECTORY
    print(device)


def stats(mode):
    try:
        with open(GROUP + "/memory.current") as file:
            print("memory_bytes=%s" % file.read().strip())
        with open(GROUP + "/memory.events") as file:
            for line in file:
                print("memory_%s=%s" % tuple(line.split()))
    except OSError:
        pass
    if mode.split("-")[0] not in ("heat", "spill", "disks"):
        return
    tiers = json.loads(forebay("tier", "show", "scratch", "-o", "json"))["tiers"]
    print("moved_bytes=%d" % tiers["moved_bytes"])
    print("moving=%d" % tiers["moving"])
    for number, device in enumerate(tiers["devices"]):
        for key, value in device.items():
            if isinstance(value, int) and not isinstance(value, bool):
                print("tier%d_%s=%d" % (number, key, value))


def teardown(mode):
    what = mode.split("-")[0]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["umount", DIRECTORY], **quiet)
    subprocess.run(["swapoff", "-a"], **quiet)
    if os.path.exists(PID):
        with open(PID) as file:
            pid = int(file.read())
        try:
            forebay("volume", "remove", "scratch", "--force", "--yes")
        finally:
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not os.path.exists("/proc/%d" % pid), "forebayd did not end")
            with open(LOG) as file:
                sys.stderr.write(file.read())
            for name in (LOG, PID):
                os.unlink(name)
            subprocess.run(["rm", "-rf", STATE, "/tmp/pool"])
    for name in ("both", "ssd", "neighbour"):
        subprocess.run(["dmsetup", "remove", "--noudevsync", name], **quiet)
    subprocess.run(["rmmod", "brd"], **quiet)


def main():
    mode, what = sys.argv[1:]
    if what == "setup":
        setup(mode)
    elif what == "stats":
        stats(mode)
    elif what == "dirty":
        print(0)
    elif what == "teardown":
        teardown(mode)


if __name__ == "__main__":
    main()
