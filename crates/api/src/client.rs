//! A client of the control socket: one request, one connection, HTTP/1.1.
//!
//! The daemon's side is a full HTTP server, so that `curl` and a web page can talk to it. This side
//! needs only what that server sends: a status line, headers, and a body that ends with the
//! connection.

use crate::hint::{Care, Choice, Log, Start};
use crate::{ApiError, Body, Hint, Reply, Request, SCHEMA};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most bytes of a reply.
const REPLY_BYTES_MAX: u64 = 64 << 20;
const HEADERS_MAX: usize = 64;
/// Making a pool writes and flushes superblocks, on disks that may be busy or asleep.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How often it is looked whether the daemon still runs.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The unit of an installed daemon.
const UNIT: &str = "/usr/lib/systemd/system/forebayd.service";

/// A client of one control socket.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the daemon at `socket`. Nothing is sent yet.
    pub fn new(socket: impl Into<PathBuf>) -> Client {
        Client { socket: socket.into() }
    }

    /// A client of the first daemon that answers at one of `sockets`.
    ///
    /// # Errors
    /// Names the places where no daemon answered, and how to start one.
    pub fn find(sockets: &[PathBuf]) -> Result<Client, ApiError> {
        let mut tried = Vec::new();
        for socket in sockets {
            match UnixStream::connect(socket) {
                Ok(_) => return Ok(Client::new(socket)),
                Err(error) => {
                    tried.push(format!("{}: {}", socket.display(), connect_error(&error)))
                }
            }
        }
        let error = ApiError::failed(format!("no forebayd answers ({})", tried.join("; ")));
        let error = match crate::socket::is_root() && Path::new(UNIT).exists() {
            true => error.hint(Hint::StartDaemon { how: Start::Machine }),
            false => error,
        };
        let named = match sockets {
            [only] => crate::socket::state_dir_of(only),
            _ => None,
        };
        let dir = named.unwrap_or_else(|| PathBuf::from("~/forebay"));
        Err(error
            .hint(Hint::StartDaemonIn { dir: dir.display().to_string() })
            .hint(Hint::Choose { what: Choice::Socket }))
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends `request` and returns the daemon's answer.
    ///
    /// # Errors
    /// The daemon's own error, or what went wrong on the way.
    pub fn ask(&self, request: &Request) -> Result<Body, ApiError> {
        let json = serde_json::to_vec(request)
            .map_err(|error| ApiError::failed(format!("encode the request: {error}")))?;
        let (status, body) = self.http("POST", "/v1", &json)?;
        let reply: Reply = serde_json::from_slice(&body).map_err(|error| {
            let text = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
            ApiError::failed(format!("the daemon's answer (status {status}): {error}: {text:?}"))
                .hint(Hint::SeeTo { what: Care::Version })
        })?;
        if reply.schema != SCHEMA {
            let (theirs, ours) = (reply.schema, SCHEMA);
            let text = format!("the daemon speaks schema {theirs}, this program schema {ours}");
            return Err(ApiError::failed(text).hint(Hint::SeeTo { what: Care::Version }));
        }
        match reply.body {
            Body::Error { error } => Err(error),
            body => Ok(body),
        }
    }

    fn broken(&self, error: &std::io::Error) -> ApiError {
        let text = format!("talk to forebayd at {}: {error}", self.socket.display());
        ApiError::failed(text).hint(Hint::SeeLog { of: Log::HungUp })
    }

    /// Reads until the other end has closed.
    fn receive(&self, stream: UnixStream, answer: &mut Vec<u8>) -> Result<(), ApiError> {
        let end = Instant::now() + TIMEOUT;
        let mut stream = stream.take(REPLY_BYTES_MAX);
        loop {
            let error = match stream.read_to_end(answer) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
                return Err(self.broken(&error));
            }
            let at = self.socket.display();
            match why_silent(stream.get_ref()) {
                Some(Silent::Stopped(process)) => {
                    let text =
                        format!("forebayd at {at} (process {process}) was stopped by a signal");
                    return Err(ApiError::failed(text).hint(Hint::LetGoOn { process }));
                }
                Some(Silent::Killed(process)) => {
                    let text = format!(
                        "forebayd at {at} (process {process}) was killed, and cannot end before a \
                         disk answers that it waits for"
                    );
                    return Err(
                        ApiError::failed(text).hint(Hint::SeeTo { what: Care::DiskOrServer })
                    );
                }
                None => {}
            }
            if Instant::now() >= end {
                let seconds = TIMEOUT.as_secs();
                let text = format!("forebayd at {at} has not answered for {seconds} s");
                return Err(ApiError::failed(text).hint(Hint::SeeLog { of: Log::Daemon }));
            }
        }
    }

    /// One HTTP exchange; returns status and body.
    ///
    /// # Errors
    /// Says what went wrong on the way. A status other than 200 is no error here.
    pub fn http(&self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>), ApiError> {
        let broken = |error: std::io::Error| self.broken(&error);
        let mut stream = UnixStream::connect(&self.socket).map_err(|error| {
            let why = connect_error(&error);
            ApiError::failed(format!("no forebayd answers at {}: {why}", self.socket.display()))
                .hint(Hint::StartDaemon { how: Start::Own })
        })?;
        stream.set_read_timeout(Some(LOOK_EVERY)).map_err(broken)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(broken)?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: forebay\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        // A server that refuses a request early answers before it has read everything: look first.
        let mut answer = Vec::new();
        let got = self.receive(stream, &mut answer);
        if answer.is_empty() {
            sent.map_err(broken)?;
            got?;
        }
        parse_answer(&answer).map_err(|why| {
            let at = self.socket.display();
            match why {
                Unread::Cut => ApiError::failed(format!(
                    "forebayd at {at} ended while it answered: what was asked for may be done, or \
                     not"
                ))
                .hint(Hint::SeeTo { what: Care::Ended }),
                Unread::Foreign(why) => ApiError::failed(format!("the answer at {at}: {why}"))
                    .hint(Hint::SeeTo { what: Care::Socket }),
            }
        })
    }
}

/// What keeps the process behind a socket from answering.
enum Silent {
    /// It was stopped by a signal: it will not answer before it goes on.
    Stopped(u32),
    /// It was killed: it does not end before what its threads wait for.
    Killed(u32),
}

/// What keeps the process behind a socket from answering, if that can be seen.
fn why_silent(stream: &UnixStream) -> Option<Silent> {
    let process = forebay_sys::pass::peer_process(stream.as_raw_fd()).ok()?;
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    why_silent_as(process, &status)
}

/// The same, by what the kernel says of the process.
fn why_silent_as(process: u32, status: &str) -> Option<Silent> {
    const KILL: u64 = 1 << (9 - 1);
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim_start).unwrap_or_default()
    };
    if !field("Name:").starts_with("forebayd") {
        return None;
    }
    let pending = |name: &str| u64::from_str_radix(field(name).trim_end(), 16).unwrap_or(0);
    let is_killed = (pending("ShdPnd:") | pending("SigPnd:")) & KILL != 0;
    match field("State:").chars().next()? {
        'Z' | 'X' => Some(Silent::Killed(process)),
        _ if is_killed => Some(Silent::Killed(process)),
        'T' | 't' => Some(Silent::Stopped(process)),
        _ => None,
    }
}

fn connect_error(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such socket".to_string(),
        ErrorKind::ConnectionRefused => "nobody listens".to_string(),
        ErrorKind::PermissionDenied => "permission denied (another user's daemon)".to_string(),
        _ => error.to_string(),
    }
}

/// Why an answer cannot be read.
#[derive(Debug, PartialEq, Eq)]
enum Unread {
    /// It ends in the middle, or before it began.
    Cut,
    /// It is none of ours.
    Foreign(String),
}

/// Splits an answer into status and body.
fn parse_answer(answer: &[u8]) -> Result<(u16, Vec<u8>), Unread> {
    let foreign = |why: &str| Unread::Foreign(why.to_string());
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let parsed =
        response.parse(answer).map_err(|error| Unread::Foreign(format!("not HTTP ({error})")))?;
    let httparse::Status::Complete(start) = parsed else {
        return Err(Unread::Cut);
    };
    let status = response.code.ok_or_else(|| foreign("no status"))?;
    let body = &answer[start..];
    let length = response.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
    let Some(length) = length else {
        return Ok((status, body.to_vec()));
    };
    let text = std::str::from_utf8(length.value).unwrap_or_default();
    let length: usize = text.trim().parse().map_err(|_| foreign("a bad content-length"))?;
    body.get(..length).map(|body| (status, body.to_vec())).ok_or(Unread::Cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(parse_answer(answer), Ok((200, b"{}".to_vec())));
        let answer = b"HTTP/1.1 404 Not Found\r\nX: y\r\n\r\nno";
        assert_eq!(parse_answer(answer), Ok((404, b"no".to_vec())));
    }

    #[test]
    fn a_cut_or_foreign_answer_is_an_error() {
        for (answer, is_cut) in [
            (&b""[..], true),
            (b"NBDMAGIC", false),
            (b"HTTP/1.1 200 OK\r\nContent-", true),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", true),
            (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}", false),
        ] {
            let why = parse_answer(answer).unwrap_err();
            assert_eq!(why == Unread::Cut, is_cut, "{:?}", String::from_utf8_lossy(answer));
        }
    }

    #[test]
    fn what_keeps_a_daemon_from_answering_is_told_from_its_state() {
        let status = |name: &str, state: &str, pending: u64| {
            format!(
                "Name:\t{name}\nState:\t{state}\nSigPnd:\t{:016x}\nShdPnd:\t{pending:016x}\n",
                0
            )
        };
        let why = |text: String| why_silent_as(7, &text);
        assert!(matches!(why(status("forebayd", "T (stopped)", 0)), Some(Silent::Stopped(7))));
        assert!(matches!(why(status("forebayd", "Z (zombie)", 0)), Some(Silent::Killed(7))));
        assert!(matches!(
            why(status("forebayd", "D (disk sleep)", 0x100)),
            Some(Silent::Killed(7))
        ));
        assert!(why(status("forebayd", "D (disk sleep)", 0x4000)).is_none());
        assert!(why(status("forebayd", "S (sleeping)", 0)).is_none());
        assert!(why(status("sshd", "T (stopped)", 0)).is_none());
    }

    /// Whoever asked a daemon that was killed read of the middle of headers.
    #[test]
    fn a_daemon_that_ends_while_it_answers_is_said_to_have_ended() {
        let dir = std::env::temp_dir().join(format!("forebay-cut-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let socket = dir.join("control.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for answer in [&b""[..], b"HTTP/1.1 200 OK\r\nContent-"] {
            let error = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut stream = listener.accept().unwrap().0;
                    let mut asked = [0; 4096];
                    let _ = stream.read(&mut asked).unwrap();
                    stream.write_all(answer).unwrap();
                });
                Client::new(&socket).ask(&Request::Status).unwrap_err()
            });
            assert!(error.message.contains("ended while it answered"), "{error:?}");
            assert!(error.hints.texts()[0].contains("ask again"), "{error:?}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_missing_daemon_is_named_with_what_to_do() {
        let error = Client::find(&[PathBuf::from("/nonexistent/control.sock")]).unwrap_err();
        assert!(error.message.contains("/nonexistent/control.sock: no such socket"), "{error}");
        assert!(error.hints.texts()[0].contains("forebayd --state-dir"));
    }

    #[test]
    fn the_directory_that_was_named_is_the_one_to_start_a_daemon_in() {
        let dir = "/nonexistent/fast";
        for named in [dir.to_owned(), format!("{dir}/control.sock")] {
            let error = Client::find(&[PathBuf::from(named)]).unwrap_err();
            let start = format!("start one without root: forebayd --state-dir {dir} &");
            assert!(error.hints.texts().contains(&start), "{error:?}");
        }
        let both = ["/nonexistent/control.sock", "/nowhere/control.sock"].map(PathBuf::from);
        let error = Client::find(&both).unwrap_err();
        let texts = error.hints.texts();
        assert!(texts.iter().any(|it| it.contains("--state-dir ~/forebay")), "{texts:?}");
    }
}
