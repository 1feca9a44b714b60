//! Open files that outlive the daemon: a process of ours, or systemd, holds them, and the next
//! daemon takes them over. What is held is a name and an open file; nothing is ever read from it.

use forebay_sys::{pass, process, socket};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// Bytes of every message: a verb, the length of a name, and the name.
const MESSAGE_BYTES: usize = 128;
/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = MESSAGE_BYTES - 2;
/// Files held at once.
const HELD_MAX: usize = 4096;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a holder that holds nothing waits for a daemon.
const IDLE: Duration = Duration::from_secs(30);
/// How often it looks whether its socket is still where a daemon would look for it.
const LOOK: Duration = Duration::from_secs(5);
/// The first descriptor that systemd passes.
const PASSED_FIRST: RawFd = 3;

const PUT: u8 = b'p';
const DROP: u8 = b'd';
const LIST: u8 = b'l';
const HAVE: u8 = b'h';
const OK: u8 = b'o';
const FULL: u8 = b'f';

fn message(verb: u8, name: &str) -> io::Result<[u8; MESSAGE_BYTES]> {
    if name.len() > NAME_BYTES_MAX {
        return Err(io::Error::other("the name is too long to be held"));
    }
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[0] = verb;
    bytes[1] = name.len() as u8;
    bytes[2..2 + name.len()].copy_from_slice(name.as_bytes());
    Ok(bytes)
}

/// The verb and the name of a message; `None` if it is broken.
fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Option<(u8, &str)> {
    let name = bytes.get(2..2 + usize::from(bytes[1]))?;
    Some((bytes[0], std::str::from_utf8(name).ok()?))
}

fn send(stream: &UnixStream, verb: u8, name: &str, fd: Option<BorrowedFd>) -> io::Result<()> {
    let fd = fd.map(|fd| fd.as_raw_fd());
    pass::send_with(stream.as_raw_fd(), &message(verb, name)?, fd)
}

/// The next message; `None` at the end.
fn receive(stream: &UnixStream) -> io::Result<Option<(u8, String, Option<OwnedFd>)>> {
    let mut bytes = [0; MESSAGE_BYTES];
    let (count, fd) = pass::receive_with(stream.as_raw_fd(), &mut bytes)?;
    if count < MESSAGE_BYTES {
        return Ok(None);
    }
    let (verb, name) = parse(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((verb, name.to_owned(), fd)))
}

/// The daemon's way to whoever holds its files.
#[derive(Debug)]
pub enum Holder {
    /// A process of ours.
    Process(UnixStream),
    /// systemd, by its notification socket.
    Systemd(UnixDatagram),
}

impl Holder {
    /// The process that listens at `path`.
    ///
    /// # Errors
    /// There is none, or it belongs to another user.
    pub fn process(path: &Path) -> io::Result<Holder> {
        let stream = UnixStream::connect(path)?;
        if pass::peer_user(stream.as_raw_fd())? != process::own_user() {
            return Err(io::Error::other("the holder of open files belongs to another user"));
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Holder::Process(stream))
    }

    /// systemd, if it started this process and keeps files for it.
    ///
    /// # Errors
    /// Its socket cannot be reached.
    pub fn systemd() -> io::Result<Option<Holder>> {
        let keeps = std::env::var("FDSTORE").ok().and_then(|count| count.parse::<u32>().ok());
        match keeps {
            Some(1..) => Ok(systemd_socket()?.map(Holder::Systemd)),
            _ => Ok(None),
        }
    }

    /// Has a file held under this name.
    ///
    /// # Errors
    /// The holder does not answer, or has no room.
    pub fn put(&self, name: &str, file: BorrowedFd) -> io::Result<()> {
        match self {
            Holder::Process(stream) => {
                send(stream, PUT, name, Some(file))?;
                expect_ok(stream)
            }
            Holder::Systemd(socket) => {
                let text = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0");
                pass::send_with(socket.as_raw_fd(), text.as_bytes(), Some(file.as_raw_fd()))
            }
        }
    }

    /// Has the file under this name held no longer.
    ///
    /// # Errors
    /// The holder does not answer.
    pub fn drop_file(&self, name: &str) -> io::Result<()> {
        match self {
            Holder::Process(stream) => {
                send(stream, DROP, name, None)?;
                expect_ok(stream)
            }
            Holder::Systemd(socket) => {
                let text = format!("FDSTOREREMOVE=1\nFDNAME={name}");
                pass::send_with(socket.as_raw_fd(), text.as_bytes(), None)
            }
        }
    }

    /// What is held: of systemd, what it passed to this process at its start.
    ///
    /// # Errors
    /// The holder does not answer.
    pub fn list(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let Holder::Process(stream) = self else { return passed() };
        send(stream, LIST, "", None)?;
        let mut held = Vec::new();
        loop {
            match receive(stream)? {
                Some((HAVE, name, Some(fd))) => held.push((name, fd)),
                Some((OK, ..)) => return Ok(held),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Whether the holder is still there.
    pub fn is_there(&self) -> bool {
        match self {
            Holder::Process(stream) => {
                // It never speaks unasked: anything but silence is its end.
                let quiet = stream.set_nonblocking(true).and_then(|()| (&*stream).read(&mut [0]));
                let _ = stream.set_nonblocking(false);
                quiet.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
            }
            Holder::Systemd(_) => true,
        }
    }
}

/// The socket on which systemd listens to the service that it started; `None` if it did not start
/// this one.
///
/// # Errors
/// If the socket that systemd named cannot be reached.
pub fn systemd_socket() -> io::Result<Option<UnixDatagram>> {
    let path = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty());
    let Some(path) = path else { return Ok(None) };
    let socket = UnixDatagram::unbound()?;
    match path.to_str().and_then(|path| path.strip_prefix('@')) {
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.connect_addr(&address)?;
        }
        None => socket.connect(path)?,
    }
    Ok(Some(socket))
}

fn expect_ok(stream: &UnixStream) -> io::Result<()> {
    match receive(stream)? {
        Some((OK, ..)) => Ok(()),
        Some((FULL, ..)) => Err(io::Error::other("the holder of open files is full")),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The files that systemd passed to this process.
fn passed() -> io::Result<Vec<(String, OwnedFd)>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let mine = number("LISTEN_PID") == Some(std::process::id());
    let count = number("LISTEN_FDS").filter(|_| mine).unwrap_or(0) as RawFd;
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
    let fds = PASSED_FIRST..PASSED_FIRST + count;
    fds.zip(names).map(|(fd, name)| Ok((name, pass::take_inherited(fd)?))).collect()
}

/// Holds files for the daemons that connect to `listener`, one at a time, until a daemon has left
/// and nothing is held, or nobody can come any more because the socket at `path` is gone. Goes on
/// as a process of its own.
///
/// # Errors
/// The system refuses a process or the socket.
pub fn serve(listener: &UnixListener, path: &Path) -> io::Result<()> {
    process::leave_parent()?;
    let mut held = BTreeMap::new();
    let mut idle = Duration::ZERO;
    loop {
        if !socket::wait_readable(listener.as_raw_fd(), LOOK)? {
            idle += LOOK;
            // What nobody can ask for any more is held for nobody.
            if (held.is_empty() && idle >= IDLE) || !path.exists() {
                return Ok(());
            }
            continue;
        }
        idle = Duration::ZERO;
        let (stream, _) = listener.accept()?;
        if pass::peer_user(stream.as_raw_fd())? == process::own_user() {
            stream.set_write_timeout(Some(PATIENCE))?;
            // A daemon that was killed in the middle of a message is as one that left.
            let _ = serve_one(&stream, &mut held);
        }
        if held.is_empty() {
            return Ok(());
        }
    }
}

fn serve_one(stream: &UnixStream, held: &mut BTreeMap<String, OwnedFd>) -> io::Result<()> {
    while let Some((verb, name, fd)) = receive(stream)? {
        match (verb, fd) {
            (PUT, Some(fd)) if held.len() < HELD_MAX || held.contains_key(&name) => {
                held.insert(name, fd);
            }
            (PUT, Some(_)) => {
                send(stream, FULL, "", None)?;
                continue;
            }
            (DROP, _) => drop(held.remove(&name)),
            (LIST, _) => {
                for (name, fd) in held.iter() {
                    send(stream, HAVE, name, Some(fd.as_fd()))?;
                }
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        send(stream, OK, "", None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Seek, Write};

    fn pair() -> (Holder, std::thread::JoinHandle<BTreeMap<String, OwnedFd>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let serving = std::thread::spawn(move || {
            let mut held = BTreeMap::new();
            let _ = serve_one(&theirs, &mut held);
            held
        });
        (Holder::Process(ours), serving)
    }

    #[test]
    fn what_is_put_comes_back_as_the_same_open_file() {
        let (holder, serving) = pair();
        assert!(holder.list().unwrap().is_empty());
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"held").unwrap();
        holder.put("disk", file.as_fd()).unwrap();
        holder.put("other", file.as_fd()).unwrap();
        holder.drop_file("other").unwrap();
        holder.drop_file("unknown").unwrap();
        drop(file);
        let held = holder.list().unwrap();
        assert_eq!(held.len(), 1);
        let (name, fd) = held.into_iter().next().unwrap();
        let mut file = File::from(fd);
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((name.as_str(), text.as_str()), ("disk", "held"));
        assert!(holder.is_there());
        drop(holder);
        assert_eq!(serving.join().unwrap().len(), 1, "it is held when the daemon is gone");
    }

    #[test]
    fn systemd_is_told_name_and_file_in_its_own_words() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let holder = Holder::Systemd(ours);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"held").unwrap();
        holder.put("disk", file.as_fd()).unwrap();
        holder.drop_file("disk").unwrap();
        let mut bytes = [0; 256];
        let (count, fd) = pass::receive_with(theirs.as_raw_fd(), &mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"FDSTORE=1\nFDNAME=disk\nFDPOLL=0");
        let mut passed = File::from(fd.unwrap());
        passed.rewind().unwrap();
        let mut text = String::new();
        passed.read_to_string(&mut text).unwrap();
        assert_eq!(text, "held");
        let (count, fd) = pass::receive_with(theirs.as_raw_fd(), &mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"FDSTOREREMOVE=1\nFDNAME=disk");
        assert!(fd.is_none());
        assert!(holder.is_there());
    }

    #[test]
    fn noise_ends_the_conversation_and_not_the_holding() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut held = BTreeMap::new();
        held.insert("disk".to_owned(), OwnedFd::from(tempfile::tempfile().unwrap()));
        for noise in [&[0xff; MESSAGE_BYTES][..], b"short"] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (&ours).write_all(noise).unwrap();
            drop(ours);
            let _ = serve_one(&theirs, &mut held);
        }
        // A name that says it is longer than the message.
        let mut long = message(PUT, "x").unwrap();
        long[1] = 127;
        (&ours).write_all(&long).unwrap();
        assert!(serve_one(&theirs, &mut held).is_err());
        assert_eq!(held.len(), 1);
        assert!(message(PUT, &"x".repeat(127)).is_err());
    }

    #[test]
    fn a_holder_that_is_gone_is_noticed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let holder = Holder::Process(ours);
        assert!(holder.is_there());
        drop(theirs);
        assert!(!holder.is_there());
    }
}
