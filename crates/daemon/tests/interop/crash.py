"""Writes to a volume until its server is killed, and checks afterwards what is there.

Each sector has one number at a time: of the last write that was acknowledged. A sector that a write
was under way to may hold the new number or the old one. No write overlaps one that is under way.
"""
import json
import random
import struct
import sys
import nbd

SECTOR, DEPTH = 512, 24
verb, uri, seed, origin, journal = sys.argv[1:]
first = open(origin, "rb").read()


def content(sector, number):
    """What write `number` puts into `sector`; 0 is the content before the first, -1 is zeros."""
    if number == 0:
        return first[sector * SECTOR:(sector + 1) * SECTOR]
    return bytes(SECTOR) if number == -1 else struct.pack("<QQ", sector, number) * (SECTOR // 16)


def load():
    try:
        with open(journal) as file:
            return json.load(file)
    except FileNotFoundError:
        return {"acked": [0] * (len(first) // SECTOR), "flying": {}, "number": 0}


def save(state):
    with open(journal, "w") as file:
        json.dump(state, file)


def write(h, state):
    dice, acked, flying = random.Random(int(seed)), state["acked"], {}
    done, sectors, begin = [], len(acked), state["number"]

    def finish(key, number):
        def callback(error):
            done.append((key, number, error.value if hasattr(error, "value") else error))
            return 1
        return callback

    while True:
        while len(flying) < DEPTH:
            count = dice.choice([1, 3, 8, 8, 8, 8, 16, 64])
            start = dice.randrange(sectors - count)
            start -= start % 8 if count >= 8 else 0
            if any(s < start + count and start < s + c for s, (c, _) in flying.items()):
                continue
            state["number"] += 1
            number = state["number"] if dice.random() < 0.9 else -1
            flying[start] = (count, number)
            callback = finish(start, number)
            if number == -1:
                h.aio_zero(count * SECTOR, start * SECTOR, callback)
            else:
                data = b"".join(content(s, number) for s in range(start, start + count))
                flags = nbd.CMD_FLAG_FUA if dice.random() < 0.05 else 0
                buffer = nbd.Buffer.from_bytearray(bytearray(data))
                h.aio_pwrite(buffer, start * SECTOR, callback, flags)
        try:
            h.poll(-1)
        except nbd.Error:
            break
        for key, number, error in done:
            assert error == 0 or not h.aio_is_ready(), error
            if error == 0:
                count, _ = flying.pop(key)
                acked[key:key + count] = [number] * count
        done.clear()
        if begin is not None and state["number"] - begin > 100:
            print("going", flush=True)
            begin = None
        if h.aio_is_dead() or h.aio_is_closed():
            break
    for key, number, error in done:
        if error == 0:
            count, _ = flying.pop(key)
            acked[key:key + count] = [number] * count
    state["flying"] = flying
    save(state)


def check(h, state):
    may = {}
    for start, (count, number) in state["flying"].items():
        for sector in range(int(start), int(start) + count):
            may[sector] = number
    size = h.get_size()
    data = b"".join(h.pread(1 << 20, at) for at in range(0, size, 1 << 20))
    again = b"".join(h.pread(1 << 20, at) for at in range(0, size, 1 << 20))
    assert data == again, "the volume changes its answer"
    wrong, written = [], 0
    for sector, number in enumerate(state["acked"]):
        got = data[sector * SECTOR:(sector + 1) * SECTOR]
        written += number != 0
        if sector in may and got == content(sector, may[sector]):
            state["acked"][sector] = may[sector]
        elif got != content(sector, number):
            wrong.append((sector, number, may.get(sector), struct.unpack("<QQ", got[:16])))
    assert not wrong, f"{len(wrong)} sectors are wrong, as {wrong[:5]}"
    state["flying"] = {}
    save(state)
    print(f"{state['number']} writes, {written} of {len(state['acked'])} sectors written")


h = nbd.NBD()
h.connect_uri(uri)
if verb == "write":
    write(h, load())
elif verb == "check":
    check(h, load())
else:
    with open(journal + ".dump", "wb") as file:
        for at in range(0, h.get_size(), 1 << 20):
            file.write(h.pread(1 << 20, at))
