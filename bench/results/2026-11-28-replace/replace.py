#!/usr/bin/env python3
"""A cache device gives its place to another one, again and again, under load: replace.py FOREBAY_DIRECTORY FOLDER ROUNDS [MIB]

A write-back pool of two files of MIB before a modelled hard disk. Two clients of their own halves of the volume (4 KiB, 70 % writes, a FLUSH after 32)
remember what they wrote. In each round the older of the two devices is replaced by a third, which then is the spare; in each tenth the daemon is killed
meanwhile and started anew. Each round is a line of JSON: p50, p99 and the longest request of the second before, and while it was replaced. At the end the daemon is killed, one
device is taken away, and all that was acknowledged is read again from the other.
"""
import json, os, random, shutil, signal, subprocess, sys, threading, time
import nbd

PROGRAMS, FOLDER, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
MIB = int(sys.argv[4]) if len(sys.argv) > 4 else 256
SIZE, BLOCK, CLIENTS = 512 << 20, 4096, 2
STATE = FOLDER + "/state"


def start():
    log = open(FOLDER + "/log", "ab")
    daemon = subprocess.Popen([PROGRAMS + "/forebayd", "--state-dir", STATE, "--private"], stdout=log, stderr=log)
    while subprocess.run([PROGRAMS + "/forebay", "--socket", STATE + "/control.sock", "status"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode not in (0, 3):
        time.sleep(0.02)
    return daemon


def forebay(*words, ok=(0,)):
    p = subprocess.run([PROGRAMS + "/forebay", "--socket", STATE + "/control.sock", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode not in ok:
        raise RuntimeError("%s: %d %s %s" % (words, p.returncode, p.stdout[-800:], p.stderr[-800:]))
    return p.stdout


def pattern(block, version):
    return random.Random(block << 32 | version).randbytes(64) * 64


class Client(threading.Thread):
    def __init__(self, number):
        super().__init__(daemon=True)
        self.number, self.random = number, random.Random(number)
        self.written, self.seen, self.failed, self.stopped, self.cut = {}, [], [], False, 0
        self.connect()

    def connect(self):
        self.nbd = nbd.NBD()
        self.nbd.connect_uri("nbd+unix:///v?socket=%s/nbd.sock" % STATE)

    def one(self):
        block = self.number * (SIZE // BLOCK // CLIENTS) + int(self.random.random() ** 2 * 8000)
        if self.random.random() < 0.7:
            version = self.written.get(block, [0])[-1] + 1
            self.written.setdefault(block, [0]).append(version)  # either, until it is acknowledged
            self.nbd.pwrite(pattern(block, version), block * BLOCK)
            self.written[block] = [version]
        elif block in self.written:
            self.check(block)

    def check(self, block):
        held = self.nbd.pread(BLOCK, block * BLOCK)
        if not any(v and held == pattern(block, v) for v in self.written[block]) and self.written[block][0] != 0:
            self.failed.append("block %d is not version %s" % (block, self.written[block]))

    def run(self):
        count = 0
        while not self.stopped:
            begun = time.monotonic()
            try:
                self.one()
                count += 1
                if count % 32 == 0:
                    self.nbd.flush()
            except nbd.Error as error:
                if not KILLED.is_set():
                    self.failed.append(str(error))
                    return
                self.cut += 1
                time.sleep(0.02)
                try:
                    self.connect()
                except nbd.Error:
                    pass
                continue
            self.seen.append((begun, (time.monotonic() - begun) * 1e3))


KILLED = threading.Event()


def of(clients, a, b):
    ms = sorted(ms for client in clients for at, ms in client.seen if a <= at < b)
    return {"requests": len(ms), "p50_ms": ms[len(ms) // 2], "p99_ms": ms[int(len(ms) * 0.99)], "longest_ms": ms[-1]} if ms else {}


def verify(clients, what):
    for client in clients:
        client.connect()
        for block in client.written:
            client.check(block)
        if client.failed:
            sys.exit("%s: %s" % (what, client.failed[:5]))
    print(json.dumps({"what": what, "blocks": sum(len(c.written) for c in clients), "bad": 0}), flush=True)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(STATE)
    device = ["%s/%d" % (FOLDER, n) for n in range(3)]
    for path in device:
        open(path, "wb").truncate(MIB << 20)
    open(FOLDER + "/origin", "wb").truncate(SIZE)
    daemon = start()
    forebay("cache", "spindle:%s/origin?preset=nas-5400" % FOLDER, "--with", device[0], device[1], "--mode", "writeback", "--name", "v", "--export", "nbd", "--yes")
    pool = json.loads(forebay("volume", "show", "v", "-o", "json"))["pool"]
    clients = [Client(n) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    time.sleep(5)
    old, kept, spare = device
    for number in range(ROUNDS):
        KILLED.clear()
        time.sleep(1)
        begun = time.monotonic()
        kills = number % 10 == 9
        dirty = json.loads(forebay("volume", "show", "v", "-o", "json"))["dirty_bytes"]
        forebay("pool", "replace", pool, old, spare, "--force", "--yes", *(["--no-wait"] if kills else []))
        if kills:
            time.sleep(random.random() * 0.5)
            KILLED.set()
            daemon.kill()
            daemon.wait()
            daemon = start()
        while True:
            shown = json.loads(forebay("pool", "show", pool, "-o", "json", ok=(0, 1, 3)) or "{\"state\": \"opening\"}")
            if shown["state"] == "ok" and shown["dirty_one_copy_bytes"] == 0:
                break
            time.sleep(0.05)
        end = time.monotonic()
        print(json.dumps({"round": number, "killed": kills, "s": end - begun, "dirty_mib": dirty >> 20, "before": of(clients, begun - 1, begun), "meanwhile": of(clients, begun, end)}), flush=True)
        for client in clients:
            if client.failed:
                sys.exit(str(client.failed[:5]))
            client.seen.clear()
        old, kept, spare = kept, spare, old
    for client in clients:
        client.stopped = True
    for client in clients:
        client.join()
    KILLED.set()
    daemon.kill()
    daemon.wait()
    os.rename(old, old + ".away")
    daemon = start()
    verify(clients, "without one device")
    daemon.kill()
    daemon.wait()


main()
