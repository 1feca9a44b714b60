//! Every mode, with every program.

use crate::daemon::Daemon;
use crate::tools::{nbd_python, outcome, run, tool};
use crate::{MIB, noise};
use forebay_api::Mode;

in_every_mode! {
    libnbd_copies_there_and_back: copies,
    qemu_converts_compares_and_pokes: qemu,
    fio_verifies: fio,
    nbdsh_meets_the_rules_of_the_protocol: nbdsh,
}

fn copies(mode: Mode) {
    let Some(mut nbdcopy) = tool("nbdcopy", "libnbd-bin") else { return };
    let before = noise(24 * MIB, 1);
    let mut daemon = Daemon::with_volume(&before, 64 << 20, mode);
    let uri = daemon.uri();
    // The cache is before a disk full of data, and changes none of it.
    run(nbdcopy.arg(&uri).arg(daemon.path("first")));
    assert!(std::fs::read(daemon.path("first")).unwrap() == before);
    let mut after = noise(24 * MIB, 2);
    after[5 * MIB..9 * MIB].fill(0);
    std::fs::write(daemon.path("new"), &after).unwrap();
    run(tool("nbdcopy", "").unwrap().arg(daemon.path("new")).arg(&uri));
    for name in ["second", "third"] {
        // Nothing was flushed: what was acknowledged is there all the same.
        daemon.kill();
        daemon.start_again();
        run(tool("nbdcopy", "").unwrap().arg(&uri).arg(daemon.path(name)));
        assert!(std::fs::read(daemon.path(name)).unwrap() == after);
    }
    let text = run(tool("nbdinfo", "").unwrap().arg("--json").arg(&uri));
    assert!(text.contains("\"export-size\": 25165824"), "{text}");
    let text = run(tool("nbdinfo", "").unwrap().arg("--map=forebay:cache").arg(&uri));
    let total: usize = text.lines().map(|line| field(line, 1)).sum();
    assert_eq!(total, 24 * MIB, "{text}");
    // A mode that keeps nothing dirty shows nothing dirty.
    let dirty = text.lines().any(|line| field(line, 2) == 3);
    assert!(!dirty || mode.plan().write_dirty, "{text}");
    daemon.drain();
    assert!(std::fs::read(daemon.path("origin")).unwrap() == after, "{}", daemon.log());
}

/// A number in a line of `nbdinfo --map`: offset, length, state.
fn field(line: &str, index: usize) -> usize {
    line.split_whitespace().nth(index).and_then(|word| word.parse().ok()).unwrap()
}

fn qemu(mode: Mode) {
    let Some(mut qemu_io) = tool("qemu-io", "qemu-utils") else { return };
    let mut wanted = noise(16 * MIB, 3);
    let mut daemon = Daemon::with_volume(&wanted, 48 << 20, mode);
    let uri = daemon.uri();
    let commands = [
        "write -f -P 0x11 0 64k",
        "write -P 0x22 65536 3584",
        "write -P 0x33 1049088 512",
        "write -z -u 128k 64k",
        "write -z 2M 1M",
        "write -z 5000704 512",
        "flush",
        "read -P 0x11 0 64k",
        "read -P 0x22 65536 3584",
        "read -P 0x33 1049088 512",
        "read -P 0 2M 1M",
    ];
    qemu_io.args(["-f", "raw"]);
    for command in commands {
        qemu_io.args(["-c", command]);
    }
    let text = run(qemu_io.arg(&uri));
    assert!(!text.contains("failed"), "{text}");
    // Zeroing that must be fast is refused where it would cost what writing does.
    let mut fast = tool("qemu-io", "").unwrap();
    let fast = outcome(fast.args(["-f", "raw", "-c", "write -z -n 8M 64k"]).arg(&uri));
    assert_eq!(fast.status.success(), mode.plan().write_dirty, "{fast:?}");
    if fast.status.success() {
        wanted[8 * MIB..8 * MIB + (64 << 10)].fill(0);
    }
    wanted[..64 << 10].fill(0x11);
    wanted[65536..69120].fill(0x22);
    wanted[1_049_088..1_049_600].fill(0x33);
    wanted[128 << 10..192 << 10].fill(0);
    wanted[2 * MIB..3 * MIB].fill(0);
    wanted[5_000_704..5_001_216].fill(0);
    std::fs::write(daemon.path("wanted"), &wanted).unwrap();
    let qemu_img = || tool("qemu-img", "").unwrap();
    let compare = || {
        let mut command = qemu_img();
        command.args(["compare", "-f", "raw", "-F", "raw"]);
        command
    };
    run(compare().arg(daemon.path("wanted")).arg(&uri));
    daemon.kill();
    daemon.start_again();
    run(compare().arg(daemon.path("wanted")).arg(&uri));
    run(qemu_img().args(["bench", "-f", "raw", "-c", "2000", "-d", "32"]).arg(&uri));
    run(qemu_img()
        .args(["convert", "-n", "-W", "-m", "8", "-f", "raw", "-O", "raw"])
        .arg(daemon.path("wanted"))
        .arg(&uri));
    run(compare().arg(daemon.path("wanted")).arg(&uri));
    daemon.drain();
    assert!(std::fs::read(daemon.path("origin")).unwrap() == wanted, "{}", daemon.log());
}

fn fio(mode: Mode) {
    let Some(mut fio) = tool("fio", "fio") else { return };
    let daemon = Daemon::with_volume(&vec![0; 32 * MIB], 24 << 20, mode);
    std::fs::create_dir(daemon.path("fio")).unwrap();
    run(fio.current_dir(daemon.path("fio")).args([
        "--name=verify",
        "--ioengine=nbd",
        &format!("--uri={}", daemon.uri()),
        "--rw=randrw",
        "--bssplit=512/10:4k/60:64k/20:256k/10",
        "--iodepth=16",
        "--size=32M",
        "--io_size=48M",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_backlog=512",
        "--fsync=64",
        "--randseed=7",
    ]));
}

fn nbdsh(mode: Mode) {
    let Some(mut python) = nbd_python() else { return };
    let daemon = Daemon::with_volume(&noise(16 * MIB, 4), 48 << 20, mode);
    let keeps_dirty = if mode.plan().write_dirty { "dirty" } else { "clean" };
    let script = r#"
import errno, nbd, sys

def fails(wanted, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == wanted, (error.errnum, wanted, str(error))
        return
    raise AssertionError("no error")

h = nbd.NBD()
h.add_meta_context("forebay:cache")
h.connect_uri(sys.argv[1])
h.set_strict_mode(0)
size = h.get_size()
fails(errno.EINVAL, lambda: h.pread(512, size))
fails(errno.ENOSPC, lambda: h.pwrite(bytes(512), size))
fails(errno.EINVAL, lambda: h.pwrite(bytes(512), 7))
h.cache(1 << 20, 8 << 20)
h.pwrite(b"x" * 512, 512, nbd.CMD_FLAG_FUA)
assert h.pread(1024, 512)[:512] == b"x" * 512
h.trim(1 << 20, 1 << 20)
fast = lambda: h.zero(1 << 20, 2 << 20, nbd.CMD_FLAG_FAST_ZERO)
if sys.argv[2] == "dirty":
    fast()
else:
    fails(errno.EOPNOTSUPP, fast)
    h.zero(1 << 20, 2 << 20)
assert h.pread(1 << 20, 2 << 20) == bytes(1 << 20)
states = []
h.block_status(4096, 0, lambda name, at, entries, err: states.extend(entries))
assert states[1] & 2 == (2 if sys.argv[2] == "dirty" else 0), states
# A second connection sees what the first has flushed, and its flush covers the first's writes.
g = nbd.NBD()
g.connect_uri(sys.argv[1])
assert g.can_multi_conn()
h.pwrite(b"y" * 4096, 65536)
g.flush()
assert g.pread(4096, 65536) == b"y" * 4096
h.shutdown()
g.shutdown()
"#;
    run(python.args(["-c", script, &daemon.uri(), keeps_dirty]));
}

#[test]
fn an_unknown_volume_is_refused() {
    let Some(mut nbdinfo) = tool("nbdinfo", "libnbd-bin") else { return };
    let daemon = Daemon::with_volume(&noise(MIB, 5), 48 << 20, Mode::WriteThrough);
    let uri = daemon.uri().replace("/data?", "/other?");
    assert!(!outcome(nbdinfo.arg(uri)).status.success());
    let text = run(tool("nbdinfo", "").unwrap().arg("--list").arg(daemon.uri()));
    assert!(text.contains("export=\"data\""), "{text}");
}

/// What the origin has no space for is a hole, unless the cache holds something newer.
#[test]
fn holes_of_the_origin_are_told() {
    let Some(mut python) = nbd_python() else { return };
    let mut origin = vec![0; 4 * MIB];
    origin[..MIB].fill(7);
    let daemon = Daemon::with_volume(&origin, 48 << 20, Mode::WriteBack);
    let file = std::fs::File::options().write(true).open(daemon.path("origin")).unwrap();
    // Written zeros take space; a file that is cut and grown again has a hole.
    file.set_len(MIB as u64).unwrap();
    file.set_len(4 * MIB as u64).unwrap();
    let map = || run(tool("nbdinfo", "").unwrap().arg("--map").arg(daemon.uri()));
    let lines = |text: &str| -> Vec<Vec<usize>> {
        text.lines().map(|line| (0..3).map(|index| field(line, index)).collect()).collect()
    };
    assert_eq!(lines(&map()), [[0, MIB, 0], [MIB, 3 * MIB, 3]]);
    let script = "import nbd, sys; h = nbd.NBD(); h.connect_uri(sys.argv[1]); \
                  h.pwrite(b'x' * 512, 2 << 20)";
    run(python.args(["-c", script, &daemon.uri()]));
    let wanted =
        [[0, MIB, 0], [MIB, MIB, 3], [2 * MIB, 4096, 0], [2 * MIB + 4096, 2 * MIB - 4096, 3]];
    assert_eq!(lines(&map()), wanted);
    daemon.drain();
    assert_eq!(lines(&map()), wanted);
    run(tool("nbdcopy", "").unwrap().arg(daemon.uri()).arg(daemon.path("copy")));
    let copy = std::fs::read(daemon.path("copy")).unwrap();
    assert!(copy == std::fs::read(daemon.path("origin")).unwrap());
}
