#!/usr/bin/env python3
"""Tiers in real time on this machine, where a row is about processor time: real.py FOREBAY_DIRECTORY CHURN ROUNDS ROW...

As root. FOREBAY_DIRECTORY holds forebay and forebayd, CHURN is churn.c compiled. All lies in /dev/shm (6 GiB of memory); the SSD is a
loop device there, limited to 500 MB/s by the control group of who uses it (blkio of version 1). Volumes are exported with
--export loop. In each round each candidate has its turn, in an order of its own; each measurement is a line of JSON.
  dd       dd, 1 MiB, O_DIRECT, 512 MiB: a loop device on a tmpfs file, and the RAM tier of a scratch volume
  rand     fio, 4 KiB, depth 1 and 16, 256 MiB: a RAM tier, and a file on tmpfs that a volume without tiers passes through to
  through  churn seq: 2.5 GiB through 512 MiB of RAM, on the SSD alone, heat, spill and linear (a loop device on tmpfs, then the SSD)
  burst    churn seq: bursts into 512 MiB of RAM of which 2 % are kept free, after 30 s of rest
  churn    churn files: old files stay, the newest fifth is deleted and written anew, depth 16 and 1; heat, spill, linear
"""
import json, os, random, re, shutil, signal, subprocess, sys, time

PROGRAMS, CHURN, ROUNDS, ROWS = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
BASE, GROUP, LIMIT = "/dev/shm/forebay-real", "/sys/fs/cgroup/blkio/forebay-real", 500_000_000
MB = 1 << 20
USE = re.compile(r"use it at +(\S+)")


def run(*words, **more):
    p = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if p.returncode:
        raise RuntimeError("%s: %s %s" % (words, p.stdout[-500:], p.stderr[-500:]))
    return p.stdout


def forebay(*words):
    return run(PROGRAMS + "/forebay", "--socket", BASE + "/state/control.sock", *words)


def sparse(name, mb):
    run("truncate", "-s", "%dM" % mb, BASE + "/" + name)
    return BASE + "/" + name


def say(**what):
    print(json.dumps({**what, "load": os.getloadavg()[0]}), flush=True)


def join():
    with open(GROUP + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


class World:
    """A daemon, loop devices, a control group; all of it goes when it ends."""

    def __enter__(self):
        shutil.rmtree(BASE, ignore_errors=True)
        os.makedirs(BASE + "/state")
        os.makedirs(GROUP, exist_ok=True)
        self.loops = []
        log = open(BASE + "/log", "wb")
        command = [PROGRAMS + "/forebayd", "--state-dir", BASE + "/state", "--private"]
        self.daemon = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=join)
        while not os.path.exists(BASE + "/state/control.sock"):
            time.sleep(0.1)
        return self

    def __exit__(self, *_):
        for volume in json.loads(forebay("volume", "list", "-o", "json")).get("volumes", []):  # else its memory is kept for the next start
            forebay("volume", "remove", volume["name"], "--force", "--yes")
        self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait()
        for loop in self.loops:
            subprocess.run(["losetup", "-d", loop])
        shutil.rmtree(BASE, ignore_errors=True)
        time.sleep(0.2)
        os.rmdir(GROUP)

    def loop(self, name, mb):
        self.loops.append(run("losetup", "--find", "--show", sparse(name, mb)).strip())
        return self.loops[-1]

    def ssd(self, mb):
        device = self.loop("ssd", mb)
        number = os.stat(device).st_rdev
        for how in ("read", "write"):
            with open("%s/blkio.throttle.%s_bps_device" % (GROUP, how), "w") as file:
                file.write("%d:%d %d" % (os.major(number), os.minor(number), LIMIT))
        return device

    def scratch(self, ram_mb, slow, *words):
        made = forebay("volume", "create", "scratch", "--tier", "ram:%dM" % ram_mb, "--tier", slow, "--export", "loop", "--force", "--yes", *words)
        return os.path.realpath(USE.search(made).group(1))

    def made(self, name, ram_mb, ssd_mb):
        """The device that is called so, of so much memory and SSD."""
        ssd = self.ssd(ssd_mb)
        if name == "ssd":
            return ssd
        if name == "linear":
            return self.loop("ram", ram_mb) + "+" + ssd
        return self.scratch(ram_mb, ssd, "--placement", name)


def churn(kind, device, **arguments):
    words = [CHURN, kind, device] + ["%s=%s" % it for it in arguments.items()]
    return json.loads(run(*words, preexec_fn=join))


def dd(device, write):
    how = ["if=/dev/zero", "of=" + device, "oflag=direct"] if write else ["if=" + device, "of=/dev/null", "iflag=direct"]
    begin = time.monotonic()
    run("dd", "bs=1M", "count=512", "conv=notrunc", *how)
    return 512 * MB / 1e6 / (time.monotonic() - begin)


def fio(device, how, depth):
    raw = run("fio", "--name=x", "--filename=" + device, "--direct=1", "--bs=4k", "--ioengine=libaio", "--iodepth=%d" % depth, "--readwrite=" + how,
              "--size=256m", "--norandommap=1", "--time_based=1", "--runtime=3", "--output-format=json", "--randseed=%d" % random.randrange(1 << 30))
    job = json.loads(raw[raw.index("{"):])["jobs"][0]["read" if how == "randread" else "write"]
    return {"iops": job["iops"], "p99_us": job["clat_ns"]["percentile"]["99.000000"] / 1e3}


def devices_alone(row):
    with World() as world:
        plain = forebay("cache", sparse("plain", 1024), "--with", sparse("pool", 64), "--mode", "passthrough", "--name", "plain", "--export", "loop", "--yes")
        devices = {"tier": world.scratch(1024, sparse("slow", 512)), "loop": world.loop("loop", 1024), "plain": os.path.realpath(USE.search(plain).group(1))}
        del devices["plain" if row == "dd" else "loop"]
        for device in devices.values():  # memory is there from now on
            dd(device, True)
        for number in range(ROUNDS):
            order = list(devices)
            random.Random(number).shuffle(order)
            if row == "dd":
                for name in order:
                    say(what="dd", round=number, device=name, write_mbs=dd(devices[name], True), read_mbs=dd(devices[name], False))
                continue
            for how in ("randread", "randwrite"):
                for depth in (1, 16):
                    for name in order:
                        say(what=how, depth=depth, round=number, device=name, **fio(devices[name], how, depth))


def each(row, names, measure):
    for number in range(ROUNDS):
        order = list(names)
        random.Random(number).shuffle(order)
        for name in order:
            with World() as world:
                say(what=row, round=number, device=name, **measure(world, name, number + 1))


def through(world, name, seed):
    device = world.made(name, 512, 2560)
    it = churn("seq", device, size=2048 if name == "ssd" else 2560, seed=seed)
    windows = it["windows_mbs"]
    return dict(it, worst_second_mbs=min(sum(windows[i:i + 4]) / 4 for i in range(len(windows) - 3)))


def burst(world, name, seed):
    device, out = world.made(name, 512, 1792), {}
    churn("seq", device, size=10, seed=seed)
    out["empty"] = churn("seq", device, off=16, size=10, window_ms=5, seed=seed)
    churn("seq", device, off=64, size=1229)
    at = 64 + 1229
    for which in ("first", "second", "third"):
        time.sleep(30)
        tiers = json.loads(forebay("tier", "show", "scratch", "-o", "json"))["tiers"]["devices"][0]
        out[which] = dict(churn("seq", device, off=at, size=10, window_ms=5), free_mb=(tiers["bytes"] - tiers["used_bytes"]) / MB)
        at += 10
    return out


def files(depth):
    def measure(world, name, seed):
        device = world.made(name, 512, 1664)
        warm, ops = (600000, 200000) if depth > 1 else (200000, 50000)
        out = churn("files", device, file=32, old=38, newest=10, size=2048, seed=seed, depth=depth, warm=warm, ops=ops, secs=60)
        if name != "linear":
            out["moved_bytes"] = json.loads(forebay("tier", "show", "scratch", "-o", "json"))["tiers"]["moved_bytes"]
        return out
    return measure


def main():
    for row in ROWS:
        if row in ("dd", "rand"):
            devices_alone(row)
        elif row == "through":
            each(row, ("ssd", "heat", "spill", "linear"), through)
        elif row == "burst":
            each(row, ("heat", "spill"), burst)
        elif row == "churn":
            for depth in (16, 1):
                each("churn%d" % depth, ("heat", "spill", "linear"), files(depth))
        else:
            sys.exit("no row " + row)


if __name__ == "__main__":
    main()
