//! Clients that are not ours: what they negotiate, read and write must come out right.

use crate::server::Server;
use crate::tools::{nbd_python, outcome, run, tool};
use forebay_host::frontend::nbd::Tls;

const MIB: usize = 1 << 20;

/// Bytes without a pattern that a bug could repeat.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn nbdinfo_shows_what_the_export_can_do() {
    let Some(mut nbdinfo) = tool("nbdinfo", "libnbd-bin") else { return };
    let server = Server::start(8 * MIB, Tls::Off);
    let text = run(nbdinfo.arg("--json").arg(server.uri("disk")));
    for wanted in [
        "\"export-size\": 8388608",
        "\"is_read_only\": false",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"can_fast_zero\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 67108864",
        "base:allocation",
        "forebay:cache",
        "a test disk, disk",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing in {text}");
    }
    let text = run(tool("nbdinfo", "").unwrap().arg("--json").arg(server.uri("locked")));
    assert!(text.contains("\"is_read_only\": true"), "{text}");
    assert!(text.contains("\"can_trim\": false"), "{text}");
}

#[test]
fn nbdinfo_lists_exports_and_refuses_unknown_ones() {
    let Some(mut nbdinfo) = tool("nbdinfo", "libnbd-bin") else { return };
    let server = Server::start(MIB, Tls::Off);
    let text = run(nbdinfo.args(["--list", &server.uri("")]));
    assert!(text.contains("export=\"disk\""), "{text}");
    assert!(text.contains("export=\"locked\""), "{text}");
    let output = outcome(tool("nbdinfo", "").unwrap().arg(server.uri("absent")));
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("No such file") || errors.contains("no export has this name"),
        "{errors}"
    );
}

#[test]
fn nbdinfo_maps_both_contexts() {
    let Some(mut nbdinfo) = tool("nbdinfo", "libnbd-bin") else { return };
    let server = Server::start(MIB, Tls::Off);
    let text = run(nbdinfo.arg("--map").arg(server.uri("disk")));
    let words: Vec<_> = text.split_whitespace().collect();
    assert_eq!(words, ["0", "1048576", "0", "data"]);
    let mut nbdinfo = tool("nbdinfo", "").unwrap();
    let text = run(nbdinfo.arg("--map=forebay:cache").arg(server.uri("disk")));
    let states: Vec<_> = text
        .lines()
        .map(|line| line.split_whitespace().take(3).map(|w| w.parse().unwrap()).collect())
        .collect::<Vec<Vec<u64>>>();
    // Sixteen blocks each: not cached, clean, dirty.
    let wanted: Vec<_> =
        (0..16).map(|n| vec![n * 65536, 65536, [0, 1, 3][n as usize % 3]]).collect();
    assert_eq!(states, wanted, "{text}");
}

#[test]
fn nbdcopy_brings_the_same_bytes_there_and_back() {
    let Some(mut there) = tool("nbdcopy", "libnbd-bin") else { return };
    let server = Server::start(48 * MIB, Tls::Off);
    let mut data = noise(48 * MIB, 1);
    data[20 * MIB..30 * MIB].fill(0);
    std::fs::write(server.path("from"), &data).unwrap();
    server.disk.bytes.lock().unwrap().fill(0xee);
    run(there.arg(server.path("from")).arg(server.uri("disk")).arg("--flush"));
    assert!(*server.disk.bytes.lock().unwrap() == data);
    assert!(server.disk.counts().flushes > 0);
    assert!(server.disk.counts().zeroes_unmap > 0, "zeros should travel as zeros");
    let mut back = tool("nbdcopy", "").unwrap();
    run(back.arg(server.uri("disk")).arg(server.path("to")));
    assert!(std::fs::read(server.path("to")).unwrap() == data);
    let mut back = tool("nbdcopy", "").unwrap();
    run(back.arg("--synchronous").arg(server.uri("locked")).arg(server.path("slow")));
    assert!(std::fs::read(server.path("slow")).unwrap() == data);
    assert_eq!(server.budget.used_bytes(), 0);
}

#[test]
fn qemu_img_converts_compares_maps_and_benchmarks() {
    let Some(mut convert) = tool("qemu-img", "qemu-utils") else { return };
    let server = Server::start(32 * MIB, Tls::Off);
    let mut data = noise(32 * MIB, 2);
    data[8 * MIB..20 * MIB].fill(0);
    let (from, uri) = (server.path("from"), server.uri("disk"));
    std::fs::write(&from, &data).unwrap();
    server.disk.bytes.lock().unwrap().fill(0xee);
    run(convert
        .args(["convert", "-n", "-W", "-m", "16", "-f", "raw", "-O", "raw"])
        .arg(&from)
        .arg(&uri));
    assert!(*server.disk.bytes.lock().unwrap() == data);
    let qemu_img = || tool("qemu-img", "").unwrap();
    run(qemu_img().args(["compare", "-f", "raw", "-F", "raw"]).arg(&from).arg(&uri));
    let text = run(qemu_img().args(["map", "--output=json", "-f", "raw"]).arg(&uri));
    assert!(text.contains("\"length\": 33554432"), "{text}");
    run(qemu_img().args(["convert", "-f", "raw", "-O", "raw"]).arg(&uri).arg(server.path("to")));
    assert!(std::fs::read(server.path("to")).unwrap() == data);
    run(qemu_img().args(["bench", "-f", "raw", "-c", "4000", "-d", "32", "-s", "4096"]).arg(&uri));
    run(qemu_img()
        .args(["bench", "-f", "raw", "-w", "--flush-interval=64", "-c", "2000", "-d", "32"])
        .arg(&uri));
    assert!(server.disk.counts().flushes >= 16);
}

#[test]
fn qemu_io_uses_fua_zeroes_discard_and_flush() {
    let Some(mut qemu_io) = tool("qemu-io", "qemu-utils") else { return };
    let server = Server::start(4 * MIB, Tls::Off);
    server.disk.bytes.lock().unwrap().fill(0xee);
    let text = run(qemu_io.args([
        "-f",
        "raw",
        "-c",
        "write -f -P 0x11 0 64k",
        "-c",
        "write -P 0x22 64k 3584",
        "-c",
        "write -z -u -n 128k 64k",
        "-c",
        "write -z 256k 64k",
        "-c",
        "discard 1M 1M",
        "-c",
        "flush",
        "-c",
        "read -P 0x11 0 64k",
        "-c",
        "read -P 0x22 65536 3584",
        "-c",
        "read -P 0 128k 64k",
        "-c",
        "read -P 0 256k 64k",
        "-c",
        "read -P 0xee 320k 64k",
        &server.uri("disk"),
    ]));
    assert!(!text.contains("failed"), "{text}");
    let counts = server.disk.counts();
    assert!(counts.fua > 0, "{counts:?}");
    assert!(counts.zeroes_unmap > 0, "{counts:?}");
    assert!(counts.zeroes_no_hole > 0, "{counts:?}");
    assert!(counts.discards > 0, "{counts:?}");
    assert!(counts.flushes > 0, "{counts:?}");
    assert!(server.disk.bytes.lock().unwrap()[65536..69120].iter().all(|b| *b == 0x22));
}

#[test]
fn fio_verifies_what_it_wrote() {
    let Some(mut fio) = tool("fio", "fio") else { return };
    let server = Server::start(16 * MIB, Tls::Off);
    let directory = server.path("fio");
    std::fs::create_dir(&directory).unwrap();
    run(fio.current_dir(&directory).args([
        "--name=verify",
        "--ioengine=nbd",
        &format!("--uri={}", server.uri("disk")),
        "--rw=randrw",
        "--bsrange=512-256k",
        "--iodepth=16",
        "--size=16M",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--randseed=7",
    ]));
    let counts = server.disk.counts();
    assert!(counts.writes > 0 && counts.reads > counts.writes, "{counts:?}");
}

#[test]
fn nbdkit_passes_requests_on() {
    let Some(mut nbdkit) = tool("nbdkit", "nbdkit") else { return };
    let server = Server::start(4 * MIB, Tls::Off);
    let uri = format!("uri={}", server.uri("disk"));
    let text = run(nbdkit.args(["-U", "-", "nbd", &uri, "--run", "nbdinfo --size \"$uri\""]));
    assert_eq!(text.trim(), "4194304");
}

#[test]
fn nbdsh_gets_the_errors_of_the_specification() {
    let Some(mut python) = nbd_python() else { return };
    let server = Server::start(80 * MIB, Tls::Off);
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
h.add_meta_context("base:allocation")
h.add_meta_context("forebay:cache")
h.connect_uri(sys.argv[1])
h.set_strict_mode(0)
size = h.get_size()
fails(errno.EINVAL, lambda: h.pread(512, size))
fails(errno.EINVAL, lambda: h.pread(1024, size - 512))
fails(errno.ENOSPC, lambda: h.pwrite(bytes(512), size))
fails(errno.ENOSPC, lambda: h.zero(512, size))
fails(errno.EINVAL, lambda: h.trim(512, size))
fails(errno.EINVAL, lambda: h.cache(512, size))
fails(errno.EINVAL, lambda: h.pread(100, 0))
fails(errno.EINVAL, lambda: h.pwrite(bytes(512), 7))
fails(errno.EINVAL, lambda: h.trim(0x200, 0xffffffffffffff00))
fails(errno.EINVAL, lambda: h.flush(nbd.CMD_FLAG_DF))
fails(errno.EINVAL, lambda: h.trim(512, 0, nbd.CMD_FLAG_REQ_ONE))
# All is well after that.
h.pwrite(b"x" * 1024, 512, nbd.CMD_FLAG_FUA)
assert h.pread(1536, 0) == bytes(512) + b"x" * 1024
# The largest request, across many parts, at an odd place.
data = bytes(range(256)) * (64 * 4096 - 2)
h.pwrite(data, 512)
assert h.pread(len(data), 512, nbd.CMD_FLAG_DF) == data
chunks = []
got = h.pread_structured(len(data), 512, lambda buf, at, kind, err: chunks.append((at, len(buf))))
assert got == data
assert sum(n for _, n in chunks) == len(data)
h.cache(2 << 20, 4096)
h.trim(40 << 20, 1 << 20)
h.zero(1 << 20, 0, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(1 << 20, 0) == bytes(1 << 20)
h.flush()
seen = {}
h.block_status(1 << 20, 4608, lambda name, at, ext, err: seen.update({name: (at, ext)}))
assert seen["base:allocation"] == (4608, [1 << 20, 0]), seen
assert seen["forebay:cache"][1][:4] == [65536 - 4608, 0, 65536, 1], seen
assert sum(seen["forebay:cache"][1][::2]) == 1 << 20, seen
seen = {}
one = nbd.CMD_FLAG_REQ_ONE
h.block_status(1 << 20, 65536, lambda name, at, ext, err: seen.update({name: ext}), one)
assert seen["forebay:cache"] == [65536, 1], seen
h.shutdown()

h = nbd.NBD()
h.connect_uri(sys.argv[2])
h.set_strict_mode(0)
fails(errno.EPERM, lambda: h.pwrite(bytes(512), 0))
fails(errno.EPERM, lambda: h.zero(512, 0))
fails(errno.EPERM, lambda: h.trim(512, 0))
fails(errno.EINVAL, lambda: h.block_status(512, 0, lambda *a: 0))
assert len(h.pread(512, 0)) == 512
h.shutdown()

# Without structured replies, and as an old client.
h = nbd.NBD()
h.set_request_structured_replies(False)
h.set_handshake_flags(nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE)
h.connect_uri(sys.argv[1])
h.set_strict_mode(0)
fails(errno.EINVAL, lambda: h.pread(512, size))
assert len(h.pread(8 << 20, 512)) == 8 << 20
h.shutdown()

h = nbd.NBD()
h.set_handshake_flags(0)
h.connect_uri(sys.argv[1])
assert h.get_protocol() == "newstyle", h.get_protocol()
assert len(h.pread(4096, 0)) == 4096
h.shutdown()

h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(sys.argv[1])
names = []
h.opt_list(lambda name, text: names.append(name))
assert names == ["disk", "locked"], names
contexts = []
h.add_meta_context("forebay:")
h.opt_list_meta_context(lambda name: contexts.append(name))
assert contexts == ["forebay:cache"], contexts
h.opt_info()
assert h.get_block_size(nbd.SIZE_MINIMUM) == 512
h.opt_abort()
"#;
    run(python.args(["-c", script, &server.uri("disk"), &server.uri("locked")]));
    let counts = server.disk.counts();
    assert_eq!(counts.prefetched_bytes, 2 << 20);
    assert_eq!(counts.fua, 1);
    assert_eq!(counts.discards, 11, "40 MiB that begin within 4");
    assert_eq!(server.budget.used_bytes(), 0);
}
