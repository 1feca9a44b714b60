//! The control device. Commands go through a ring of their own on a thread of its own, one after
//! the other, each with a time limit: there are kernels whose driver never answers, and a caller
//! must not hang with it.

use super::uapi::{self, ControlCommand, DeviceInfo, Verb};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Where the driver takes commands.
const CONTROL: &str = "/dev/ublk-control";
/// How long the kernel may take to answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Threads that wait for the kernel for ever before no more is asked.
const WORKERS_MAX: u64 = 16;
/// Bytes of a long command in a ring's entry.
const COMMAND_BYTES: usize = 80;

/// One command: to which device, with what.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What is asked.
    pub verb: Verb,
    /// All ones for a new one.
    pub device: u32,
    /// A number that belongs to it.
    pub data: u64,
    /// What the kernel reads, or fills.
    pub payload: Vec<u8>,
    /// The device is an unprivileged one: the kernel wants its path first.
    pub with_path: bool,
}

impl Ask {
    /// A command without data.
    pub fn new(verb: Verb, device: u32) -> Ask {
        Ask { verb, device, data: 0, payload: Vec::new(), with_path: false }
    }
}

/// Sends a command and returns the payload as the kernel left it.
///
/// # Errors
/// Says what could not be done. `TimedOut`: the kernel may still do it.
pub fn ask(ask: Ask) -> io::Result<Vec<u8>> {
    ask_for(ask, LIMIT)
}

/// As [`ask()`], with another time limit.
///
/// # Errors
/// As [`ask()`].
pub fn ask_for(ask: Ask, limit: Duration) -> io::Result<Vec<u8>> {
    let control = open()?;
    let name = ask.verb.name;
    let (reply, answer) = sync_channel(1);
    let (number, worker) = worker()?;
    let job = Job { control, ask, reply };
    if worker.send(job).is_err() {
        dismiss(number);
        return Err(io::Error::other(format!("ublk: {name}: its thread ended")));
    }
    match answer.recv_timeout(limit) {
        Ok(result) => result.map_err(|e| explain(name, &e)),
        Err(RecvTimeoutError::Timeout) => {
            dismiss(number);
            let text = format!("ublk: {name}: the kernel has not answered for {limit:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
        Err(RecvTimeoutError::Disconnected) => {
            dismiss(number);
            Err(io::Error::other(format!("ublk: {name}: it broke down")))
        }
    }
}

/// A command on its way to the thread.
struct Job {
    control: File,
    ask: Ask,
    reply: SyncSender<io::Result<Vec<u8>>>,
}

/// The thread that is used now, and its number.
#[derive(Default)]
struct Workers {
    now: Option<(u64, Sender<Job>)>,
    number_next: u64,
}

static WORKERS: Mutex<Workers> = Mutex::new(Workers { now: None, number_next: 0 });

fn workers() -> MutexGuard<'static, Workers> {
    WORKERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The thread and its ring last as long as the process: Linux 6.12 has crashed when a ring ended
/// right after a command.
fn worker() -> io::Result<(u64, Sender<Job>)> {
    let mut workers = workers();
    if let Some(now) = &workers.now {
        return Ok(now.clone());
    }
    if workers.number_next >= WORKERS_MAX {
        let text = "ublk: the kernel left too many commands unanswered; see its log, and reboot";
        return Err(io::Error::other(text));
    }
    let mut ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(4)?;
    let (send, jobs) = channel::<Job>();
    std::thread::Builder::new().name("forebay-ublk".to_owned()).spawn(move || {
        for job in jobs {
            let _ = job.reply.send(issue(&mut ring, &job.control, job.ask));
        }
    })?;
    let now = (workers.number_next, send);
    workers.number_next += 1;
    workers.now = Some(now.clone());
    Ok(now)
}

/// Has the next command use another thread: this one waits for the kernel.
fn dismiss(number: u64) {
    let mut workers = workers();
    if workers.now.as_ref().is_some_and(|(now, _)| *now == number) {
        workers.now = None;
    }
}

/// Keeps the number of the error: callers look at it.
fn explain(name: &str, error: &io::Error) -> io::Error {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "; it takes root, or an unprivileged device",
        Some(libc::EOPNOTSUPP | libc::ENOTTY) => "; this kernel's driver cannot",
        _ => "",
    };
    io::Error::new(
        error.kind(),
        Refused { text: format!("ublk: {name}: {error}{hint}"), code: error.raw_os_error() },
    )
}

/// The kernel's refusal, with its number.
#[derive(Debug)]
struct Refused {
    text: String,
    code: Option<i32>,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refused {}

/// The number of the kernel's error behind an error of this module.
pub fn code(error: &io::Error) -> Option<i32> {
    let refused = error.get_ref().and_then(|inner| inner.downcast_ref::<Refused>());
    refused.map_or(error.raw_os_error(), |refused| refused.code)
}

fn open() -> io::Result<File> {
    let opened = File::options().read(true).write(true).open(CONTROL);
    opened.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => {
                "load the driver: modprobe ublk_drv (kernel 6.5 or newer, CONFIG_BLK_DEV_UBLK)"
            }
            io::ErrorKind::PermissionDenied => "it takes root, or a rule of udev that allows it",
            _ => "see the kernel's log",
        };
        io::Error::new(error.kind(), format!("ublk: {CONTROL}: {error}; {hint}"))
    })
}

/// Sends a command and waits for ever.
fn issue(
    ring: &mut IoUring<squeue::Entry128, cqueue::Entry>,
    control: &File,
    ask: Ask,
) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if ask.with_path {
        bytes.extend(char_path(ask.device).as_os_str().as_encoded_bytes());
        bytes.push(0);
    }
    let path_len = bytes.len();
    bytes.extend(&ask.payload);
    let command = ControlCommand {
        device: ask.device,
        queue: u16::MAX,
        len: u16::try_from(bytes.len()).expect("payloads are small"),
        address: if bytes.is_empty() { 0 } else { bytes.as_mut_ptr() as u64 },
        data: ask.data,
        path_len: path_len as u16,
        ..ControlCommand::default()
    };
    let mut words = [0; COMMAND_BYTES];
    words[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
    let fd = types::Fd(control.as_raw_fd());
    let entry = opcode::UringCmd80::new(fd, ask.verb.operation()).cmd(words).build();
    // SAFETY: the command points to `bytes`, which stays until the completion, waited for below.
    let pushed = unsafe { ring.submission().push(&entry) };
    assert!(pushed.is_ok(), "an empty ring has room");
    let result = loop {
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Leaving would give the kernel memory that is freed.
            Err(e) => panic!("io_uring cannot wait: {e}"),
        }
        if let Some(completion) = ring.completion().next() {
            break completion.result();
        }
    };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(bytes.split_off(path_len))
}

/// What the driver can do.
///
/// # Errors
/// There is no driver, or it may not be used.
pub fn features() -> io::Result<u64> {
    let mut ask_features = Ask::new(uapi::GET_FEATURES, u32::MAX);
    ask_features.payload = vec![0; 8];
    let bytes = ask(ask_features)?;
    Ok(u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
}

/// How a device is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// `N` of `/dev/ublkbN`.
    pub device: u32,
    /// What kernel and server agreed on.
    pub flags: u64,
    /// Queues.
    pub queues: u16,
    /// Requests of a queue that are under way at once.
    pub depth: u16,
    /// Bytes of the longest read or write.
    pub request_bytes_max: u32,
}

/// A device as the kernel has told of it, which nobody else can make up: memory is lent to the
/// kernel by what is said here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known(Shape);

impl Deref for Known {
    type Target = Shape;

    fn deref(&self) -> &Shape {
        &self.0
    }
}

impl Known {
    fn read(bytes: &[u8]) -> (Known, DeviceInfo) {
        let info = DeviceInfo::read_from_bytes(bytes).expect("as long as it was");
        let DeviceInfo { device, flags, queues, depth, request_bytes_max, .. } = info;
        (Known(Shape { device, flags, queues, depth, request_bytes_max }), info)
    }
}

/// Makes a device. The kernel says what it became.
///
/// # Errors
/// `EEXIST` as the [`code`]: another has its number.
pub fn add(info: &DeviceInfo) -> io::Result<Known> {
    let payload = info.as_bytes().to_vec();
    let bytes = ask(Ask { payload, ..Ask::new(uapi::ADD_DEV, info.device) })?;
    Ok(Known::read(&bytes).0)
}

/// A device as the kernel knows it now.
///
/// # Errors
/// `ENODEV` as the [`code`]: there is none with this number.
pub fn info(device: u32) -> io::Result<(Known, DeviceInfo)> {
    let payload = vec![0; size_of::<DeviceInfo>()];
    // This command wants the path of every device: the caller cannot know of which kind it is.
    let with_path = true;
    let bytes = ask(Ask { payload, with_path, ..Ask::new(uapi::GET_DEV_INFO2, device) })?;
    Ok(Known::read(&bytes))
}

/// The device through which a server is asked.
pub fn char_path(device: u32) -> PathBuf {
    Path::new("/dev").join(format!("ublkc{device}"))
}

/// The block device.
pub fn block_path(device: u32) -> PathBuf {
    Path::new("/dev").join(format!("ublkb{device}"))
}
