//! The model against the published figures of the drives, in virtual time; then the disk over a
//! real file.

use super::*;
use forebay_engine::Buf;
use std::collections::HashMap as Map;

const GIB: u64 = 1 << 30;
const SECOND: Time = 1_000_000_000;

/// A small generator of numbers: the tests are the same on each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((u128::from(self.0) * u128::from(end)) >> 64) as u64
    }
}

fn preset(name: &str) -> Drive {
    let found = Drive::PRESETS.iter().find(|(preset, _)| *preset == name);
    found.expect("a preset").1()
}

fn no_cache(mut drive: Drive) -> Drive {
    drive.cache_bytes = 0;
    drive
}

/// What a closed loop saw.
struct Run {
    count: u64,
    bytes: u64,
    nanos: Time,
    latencies: Vec<Time>,
}

impl Run {
    fn iops(&self) -> f64 {
        self.count as f64 * 1e9 / self.nanos as f64
    }

    fn mb_per_s(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.nanos as f64
    }

    fn mean_ms(&self) -> f64 {
        self.latencies.iter().sum::<Time>() as f64 / self.latencies.len() as f64 / 1e6
    }
}

/// Keeps `depth` commands under way from `start` on for `nanos`; `next` makes them.
fn closed_loop(
    model: &mut SpindleModel,
    start: Time,
    nanos: Time,
    depth: usize,
    mut next: impl FnMut() -> (Kind, u64, u64),
) -> Run {
    let mut run = Run { count: 0, bytes: 0, nanos, latencies: Vec::new() };
    let mut begun: Map<u64, (Time, u64)> = Map::new();
    let (mut id, mut now, mut ended) = (0, start, Vec::new());
    while now < start + nanos {
        while begun.len() < depth {
            let (kind, offset, len) = next();
            id += 1;
            begun.insert(id, (now, len));
            model.submit(Access { id, kind, offset, len }, now);
        }
        now = model.next_due().expect("commands are under way");
        model.poll(now, &mut ended);
        for id in ended.drain(..) {
            let (since, len) = begun.remove(&id).expect("a command of ours");
            run.count += 1;
            run.bytes += len;
            run.latencies.push(now - since);
        }
    }
    drain(model, now);
    run
}

/// Lets everything end; answers when the last command did.
fn drain(model: &mut SpindleModel, mut now: Time) -> Time {
    let mut ended = Vec::new();
    while model.pending() > 0 {
        now = model.next_due().expect("commands are under way");
        model.poll(now, &mut ended);
    }
    now
}

fn random(drive: Drive, kind: Kind, depth: usize, seconds: u64) -> Run {
    let bytes = 4 * GIB;
    let mut model = SpindleModel::new(drive, bytes);
    let mut numbers = Random(1);
    closed_loop(&mut model, 0, seconds * SECOND, depth, || {
        (kind, numbers.below(bytes / 4096) * 4096, 4096)
    })
}

fn sequential(drive: Drive, kind: Kind, from: u64, len: u64, depth: usize) -> Run {
    let mut model = SpindleModel::new(drive, 4 * GIB);
    let mut at = from;
    let mut next = || {
        at += len;
        (kind, at - len, len)
    };
    // The arm finds its place first.
    closed_loop(&mut model, 0, SECOND / 10, depth, &mut next);
    closed_loop(&mut model, SECOND, SECOND, depth, &mut next)
}

fn assert_within(what: &str, got: f64, want: f64, share: f64) {
    println!("{what}: {got:.2} (published or computed {want:.2})");
    assert!((got / want - 1.0).abs() <= share, "{what}: {got} is not {want} +- {share}");
}

#[test]
fn random_reads_at_depth_1_match_seek_and_rotation() {
    for (name, make) in Drive::PRESETS {
        let drive = make();
        let transfer = 4096.0 / drive.rate_outer as f64 * 1e9;
        let wait = drive.revolution_ns() as f64 / 2.0;
        let want = 1e9 / (drive.seek_average_ns as f64 + wait + transfer);
        let run = random(drive, Kind::Read, 1, 60);
        assert_within(&format!("{name} random 4k read IOPS, depth 1"), run.iops(), want, 0.10);
    }
}

#[test]
fn command_queueing_gains_what_it_does_on_real_drives() {
    for (name, make) in Drive::PRESETS {
        let alone = random(make(), Kind::Read, 1, 60).iops();
        let deep = random(make(), Kind::Read, 32, 60);
        let gain = deep.iops() / alone;
        let worst = *deep.latencies.iter().max().expect("latencies") as f64 / 1e6;
        println!("{name} depth 32: {:.0} IOPS, {gain:.2} x, worst {worst:.0} ms", deep.iops());
        assert!((1.8..=2.6).contains(&gain), "{name}: {gain}");
        // The age limit, and one access that was under way.
        assert!(
            worst < make().age_max_ns as f64 / 1e6 + 100.0,
            "{name}: a command waited {worst} ms"
        );
        let deeper = random(make(), Kind::Read, 64, 60).iops();
        assert!((deeper / deep.iops() - 1.0).abs() < 0.05, "{name}: the drive takes 32, no more");
    }
}

#[test]
fn uncached_random_writes_pay_the_settling_time() {
    for (name, make) in Drive::PRESETS {
        let drive = no_cache(make());
        let settle = drive.settle_write_ns as f64;
        let read = random(drive.clone(), Kind::Read, 1, 60).mean_ms();
        let write = random(drive, Kind::Write, 1, 60).mean_ms();
        assert_within(&format!("{name} write latency ms"), write, read + settle / 1e6, 0.03);
    }
}

#[test]
fn sequential_rates_by_zone() {
    for (name, make) in Drive::PRESETS {
        let drive = no_cache(make());
        let (outer, inner) = (drive.rate_outer as f64 / 1e6, drive.rate_inner as f64 / 1e6);
        for (kind, depth) in [(Kind::Read, 1), (Kind::Read, 8), (Kind::Write, 4)] {
            let what = format!("{name} {kind:?} depth {depth}");
            let run = sequential(drive.clone(), kind, 0, 256 << 10, depth);
            assert_within(&format!("{what} outer MB/s"), run.mb_per_s(), outer, 0.05);
            let from = 4 * GIB - drive.rate_inner * 12 / 10 - (16 << 20);
            let run = sequential(drive.clone(), kind, from / 4096 * 4096, 256 << 10, depth);
            assert_within(&format!("{what} inner MB/s"), run.mb_per_s(), inner, 0.05);
        }
        let middle = sequential(drive.clone(), Kind::Read, 2 * GIB, 1 << 20, 2).mb_per_s();
        assert!(inner * 1.1 < middle && middle < outer * 0.95, "{name}: {middle}");
        // The ninth of 16 zones from outside holds the middle of the stroke, and less than half of
        // the data.
        let steps: Vec<f64> =
            (0..16).map(|z| outer - (outer - inner) * f64::from(z) / 15.0).collect();
        let half: f64 = steps.iter().sum::<f64>() / 2.0;
        let mut sum = 0.0;
        let zone = steps.iter().position(|s| {
            sum += s;
            sum > half
        });
        let want = steps[zone.expect("a zone holds the middle")];
        assert_within(&format!("{name} middle MB/s"), middle, want, 0.05);
    }
}

#[test]
fn synchronous_uncached_writes_lose_a_revolution_each() {
    let drive = no_cache(preset("desktop-7200"));
    let run = sequential(drive, Kind::Write, 0, 4096, 1);
    assert_within(
        "desktop-7200 sequential 4k write IOPS, depth 1, no cache",
        run.iops(),
        120.0,
        0.02,
    );
}

#[test]
fn seek_curve_keeps_the_published_figures() {
    for (name, make) in Drive::PRESETS {
        let drive = make();
        let geometry = Geometry::new(&drive, 4 * GIB);
        let tracks = geometry.tracks();
        let ms = |ns: u64| ns as f64 / 1e6;
        let want = ms(drive.seek_track_ns);
        // Over a cylinder's edge: the last track of cylinder 99 to the first of 100.
        let edge = 100 * u64::from(drive.heads).min(tracks / 256);
        let next = ms(geometry.seek_ns(edge - 1, edge));
        assert_within(&format!("{name} track to track ms"), next, want, 0.01);
        let full = ms(geometry.seek_ns(0, tracks - 1));
        assert_within(&format!("{name} full stroke ms"), full, ms(drive.seek_full_ns), 0.01);
        let mut numbers = Random(3);
        let mean = (0..100_000)
            .map(|_| ms(geometry.seek_ns(numbers.below(tracks), numbers.below(tracks))))
            .sum::<f64>()
            / 100_000.0;
        assert_within(&format!("{name} average seek ms"), mean, ms(drive.seek_average_ns), 0.03);
        for pair in (1..1000).collect::<Vec<_>>().windows(2) {
            let x = |i: u32| f64::from(i) / 1000.0;
            assert!(geometry.curve_ns(x(pair[0])) <= geometry.curve_ns(x(pair[1])));
        }
    }
}

#[test]
fn published_iops_of_a_nearline_drive() {
    // Seagate publishes for Exos 7E8 (7200 rpm, 249 MB/s): random 4k at depth 16 without write
    // cache, 170 IOPS to read. The HC310 seeks a little faster.
    let run = random(no_cache(preset("nearline-7200")), Kind::Read, 16, 60);
    assert_within("nearline-7200 random 4k read IOPS, depth 16", run.iops(), 170.0, 0.15);
}

#[test]
fn write_cache_takes_a_burst_and_then_the_rate_of_the_arm() {
    for (name, make) in Drive::PRESETS {
        let (drive, bytes) = (make(), 4 * GIB);
        let ranges = drive.cache_ranges as u64;
        let mut model = SpindleModel::new(drive.clone(), bytes);
        let mut numbers = Random(5);
        let mut next = || (Kind::Write, numbers.below(bytes / 4096) * 4096, 4096);
        let burst = closed_loop(&mut model, 0, SECOND / 100, 1, &mut next);
        println!("{name} burst {:.0} IOPS", burst.iops());
        assert!(burst.iops() > 5_000.0, "{name}: {}", burst.iops());
        assert!(burst.count <= ranges, "{name}: the burst fits the table of {ranges}");
        let now = SECOND / 50;
        closed_loop(&mut model, now, 5 * SECOND, 32, &mut next);
        let steady = closed_loop(&mut model, now + 10 * SECOND, 60 * SECOND, 32, &mut next);
        let bare = random(no_cache(drive), Kind::Write, 1, 60).iops();
        let gain = steady.iops() / bare;
        println!("{name} steady {:.0} IOPS, {gain:.2} x of uncached depth 1", steady.iops());
        assert!((2.0..=4.5).contains(&gain), "{name}: {gain}");
    }
}

#[test]
fn sequential_writes_through_the_cache_run_at_the_rate_of_the_media() {
    for (name, make) in Drive::PRESETS {
        let drive = make();
        // Large, so that the test ends within the outermost zone.
        let mut model = SpindleModel::new(drive.clone(), 16 * GIB);
        let mut at = 0;
        let mut next = || {
            at += 256 << 10;
            (Kind::Write, at - (256 << 10), 256 << 10)
        };
        closed_loop(&mut model, 0, SECOND, 4, &mut next);
        let run = closed_loop(&mut model, SECOND, 2 * SECOND, 4, &mut next);
        let what = format!("{name} sequential write MB/s with cache");
        assert_within(&what, run.mb_per_s(), drive.rate_outer as f64 / 1e6, 0.05);
    }
}

#[test]
fn flush_empties_the_cache_and_is_alone() {
    let drive = preset("nas-5400");
    let mut model = SpindleModel::new(drive.clone(), 4 * GIB);
    model.submit(Access { id: 1, kind: Kind::Flush, offset: 0, len: 0 }, 0);
    let empty = drain(&mut model, 0);
    assert_eq!(empty, drive.overhead_ns);

    let mut numbers = Random(9);
    let mut now = SECOND;
    for id in 0..100 {
        let offset = numbers.below(GIB / 1024) * 4096;
        model.submit(Access { id, kind: Kind::Write, offset, len: 4096 }, now);
    }
    now = drain(&mut model, now);
    assert!(now < SECOND + 20_000_000, "the burst went into the cache");
    assert!(!model.is_clean());
    model.submit(Access { id: 200, kind: Kind::Flush, offset: 0, len: 0 }, now);
    model.submit(Access { id: 201, kind: Kind::Discard, offset: 0, len: 4096 }, now);
    let mut ended = Vec::new();
    let mut flushed = 0;
    while model.pending() > 0 {
        let due = model.next_due().expect("commands are under way");
        model.poll(due, &mut ended);
        if flushed == 0 && ended == [200] {
            assert!(model.is_clean());
            flushed = due - now;
        }
    }
    assert_eq!(ended, [200, 201], "nothing else runs during a FLUSH");
    let each_ms = flushed as f64 / 100.0 / 1e6;
    println!("flush of 100 random blocks: {:.0} ms", flushed as f64 / 1e6);
    assert!(
        (5.0..16.0).contains(&each_ms),
        "sorted, each takes less than a random access: {each_ms}"
    );
}

#[test]
fn idle_disk_cleans_itself_and_serves_its_cache() {
    let mut model = SpindleModel::new(preset("desktop-7200"), GIB);
    model.submit(Access { id: 1, kind: Kind::Write, offset: GIB / 2, len: 4096 }, 0);
    let now = drain(&mut model, 0);
    assert!(!model.is_clean());
    model.submit(Access { id: 2, kind: Kind::Read, offset: GIB / 2, len: 4096 }, now);
    assert!(drain(&mut model, now) < now + 1_000_000, "read from the write cache");
    model.poll(SECOND, &mut Vec::new());
    assert!(model.is_clean());
    assert_eq!(model.next_due(), None);
}

#[test]
fn reading_ahead_serves_the_next_read_after_a_pause() {
    let mut model = SpindleModel::new(preset("desktop-7200"), GIB);
    model.submit(Access { id: 1, kind: Kind::Read, offset: 0, len: 4096 }, 0);
    drain(&mut model, 0);
    let mut now = SECOND;
    model.submit(Access { id: 2, kind: Kind::Read, offset: 4096, len: 4096 }, now);
    assert!(drain(&mut model, now) < now + 1_000_000);
    // Elsewhere and back: the range stays in the track buffer.
    now = 2 * SECOND;
    model.submit(Access { id: 3, kind: Kind::Read, offset: GIB / 2, len: 4096 }, now);
    assert!(drain(&mut model, now) > now + 2_000_000);
    now = 3 * SECOND;
    model.submit(Access { id: 4, kind: Kind::Read, offset: 64 << 10, len: 4096 }, now);
    assert!(drain(&mut model, now) < now + 1_000_000);
}

#[test]
fn part_of_the_stroke_seeks_less() {
    let iops = |stroke| {
        let mut drive = preset("nearline-7200");
        drive.stroke = stroke;
        random(drive, Kind::Read, 1, 30).iops()
    };
    let (full, tenth, real) =
        (iops(Stroke::Share(1.0)), iops(Stroke::Share(0.1)), iops(Stroke::Real));
    println!("full {full:.0}, 10 % {tenth:.0}, real {real:.0}");
    assert!(full * 1.3 < tenth && tenth * 1.2 < real);
    let mut drive = preset("nearline-7200");
    drive.stroke = Stroke::Share(0.5);
    let from = 4 * GIB - (600 << 20);
    let run = sequential(drive.clone(), Kind::Read, from, 1 << 20, 2);
    assert!(run.mb_per_s() > drive.rate_inner as f64 / 1e6 * 1.3, "the inner half is not used");
}

#[test]
fn the_same_commands_end_at_the_same_times() {
    let trace = || {
        let mut model = SpindleModel::new(preset("nas-5400"), 64 << 20);
        let mut numbers = Random(11);
        let mut ends = Vec::new();
        let kinds = [Kind::Read, Kind::Read, Kind::Write, Kind::Zero, Kind::Discard];
        let mut now = 0;
        for id in 0..3000 {
            let kind = match numbers.below(50) {
                0 => Kind::Flush,
                n => kinds[n as usize % kinds.len()],
            };
            let len = if kind == Kind::Flush { 0 } else { 512 * (1 + numbers.below(600)) };
            let offset = numbers.below(((64 << 20) - len) / 512) * 512;
            model.submit(Access { id, kind, offset, len }, now);
            now += numbers.below(8_000_000);
            let mut ended = Vec::new();
            model.poll(now, &mut ended);
            ends.extend(ended.into_iter().map(|id| (now, id)));
        }
        ends.push((drain(&mut model, now), 0));
        assert_eq!(model.pending(), 0);
        ends
    };
    let first = trace();
    assert!(first.len() > 1000);
    assert_eq!(first, trace());
}

fn disk(len: u64, query: &str) -> (tempfile::TempDir, Spindle) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("disk");
    File::create(&path).and_then(|f| f.set_len(len)).expect("a sparse file");
    let spindle = Spindle::open(&format!("{}{query}", path.display())).expect("a disk");
    (dir, spindle)
}

fn one(spindle: &mut Spindle, io: OriginIo, now: &mut Time) -> Completion {
    spindle.submit(OpId(3), io, *now);
    let mut out = Vec::new();
    while out.is_empty() {
        *now = spindle.next_due().expect("one is under way");
        spindle.poll(*now, &mut out);
    }
    out.pop().expect("one completion").1
}

#[test]
fn data_is_in_the_file_when_acknowledged() {
    let (dir, mut spindle) = disk(8 << 20, "?preset=desktop-7200");
    let mut now = 0;
    let mut buf = Buf::zeroed(8192);
    buf.bytes_mut().fill(7);
    let io = OriginIo::Write { offset: 4096, buf };
    assert_eq!(one(&mut spindle, io, &mut now).result, Ok(()));
    assert!(now < 1_000_000, "the write cache answered");
    let bytes = std::fs::read(dir.path().join("disk")).expect("the file");
    assert!(bytes[4096..12288].iter().all(|&b| b == 7));
    let io = OriginIo::Zero { offset: 4096, len: 4096, unmap: false };
    assert_eq!(one(&mut spindle, io, &mut now).result, Ok(()));
    let io = OriginIo::Discard { offset: 1 << 20, len: 1 << 20 };
    assert_eq!(one(&mut spindle, io, &mut now).result, Ok(()));
    let read = one(&mut spindle, OriginIo::Read { offset: 0, buf: Buf::zeroed(12288) }, &mut now);
    assert_eq!(read.result, Ok(()));
    assert!(read.buf.bytes()[..8192].iter().all(|&b| b == 0));
    assert!(read.buf.bytes()[8192..].iter().all(|&b| b == 7));
    let before = now;
    assert_eq!(one(&mut spindle, OriginIo::Flush, &mut now).result, Ok(()));
    assert!(now > before + 1_000_000, "the FLUSH waited for the arm");
    let io = OriginIo::Read { offset: 8 << 20, buf: Buf::zeroed(512) };
    let outside = one(&mut spindle, io, &mut now);
    assert_eq!((outside.result, outside.buf.len()), (Err(IoError::Invalid), 512));
}

#[test]
fn opening_says_what_is_wrong() {
    let text = |uri: &str| Spindle::open(uri).expect_err("a bad URI").to_string();
    assert!(text("").contains("spindle:PATH"));
    let presets = "nas-5400, desktop-7200, nearline-7200";
    assert!(text("x?preset=floppy").contains(presets), "{}", text("x?preset=floppy"));
    assert!(text("x?cahce=0").contains("nearest is \"cache\""), "{}", text("x?cahce=0"));
    assert!(text("x?cache").contains("KEY=VALUE"));
    assert!(text("x?seek=fast").contains("seek=8.5"));
    assert!(text("x?stroke=10").contains("stroke=10%"));
    assert!(text("x?stroke=0%").contains("more than 0 %"));
    assert!(text("x?rpm=99999999999").contains("rpm must be"));
    assert!(text("x?seek=30").contains("seek-track <= seek < seek-full"));
    assert!(text("/nonexistent/disk").contains("truncate"));
    let (dir, spindle) = disk(8 << 20, "");
    let path = dir.path().join("disk");
    assert!(text(&path.display().to_string()).contains("in use by another process"));
    drop(spindle);
    let small = dir.path().join("small");
    std::fs::write(&small, [0; 100]).expect("a small file");
    assert!(text(&small.display().to_string()).contains("has 100 bytes"));
}

#[test]
fn parameters_change_the_preset() {
    let (path, drive) =
        parse("a/b?cache=0&stroke=25%&preset=nearline-7200&seek=9ms&rate=200MB/s&ncq=1&rpm=5900")
            .expect("a URI");
    assert_eq!(path, Path::new("a/b"));
    assert_eq!((drive.cache_bytes, drive.queue_depth, drive.rpm), (0, 1, 5900));
    assert_eq!(drive.stroke, Stroke::Share(0.25));
    assert_eq!((drive.seek_average_ns, drive.rate_outer), (9_000_000, 200_000_000));
    assert!((93_000_000..95_000_000).contains(&drive.rate_inner), "keeps its share of the rate");
    assert_eq!(parse("p").expect("a path").1, Drive::nas_5400());
}
