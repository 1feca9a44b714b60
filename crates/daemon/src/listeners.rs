//! Where NBD clients are let in: on the thread of one open pool, whichever.

use crate::convert::shard_error;
use crate::lock::lock;
use crate::place::bind;
use forebay_api::hint::Choice;
use forebay_api::{ApiError, Hint};
use forebay_host::frontend::nbd::Tls;
use forebay_host::shard::{ListenerSocket, ShardHandle};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

const TCP_TRIES: u32 = 25;
const TCP_PAUSE: Duration = Duration::from_millis(20);

/// The sockets of the NBD server.
pub struct Listeners {
    unix: PathBuf,
    tcp: Option<SocketAddr>,
    /// For TCP. The unix socket belongs to one user anyway.
    tls: Tls,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    listening: Option<Listening>,
    /// What keeps clients out.
    unheard: Vec<ApiError>,
}

/// The pool whose thread lets clients in, and its listeners.
struct Listening {
    pool: String,
    handle: ShardHandle,
    unix: (u32, UnixListener),
    tcp: Option<(u32, TcpListener)>,
}

impl Listening {
    /// Its thread panicked. Who connects waits until another one listens on the same socket.
    fn fell(&self) -> bool {
        self.handle.fell().is_some()
    }
}

impl Listeners {
    /// Nobody is let in yet.
    pub fn new(unix: PathBuf, tcp: Option<SocketAddr>, tls: Tls) -> Listeners {
        // A daemon that was killed left it. Clients find it again when there is something to serve.
        let _ = std::fs::remove_file(&unix);
        Listeners { unix, tcp, tls, now: Mutex::default() }
    }

    /// Whether clients are let in.
    pub fn are_on(&self) -> bool {
        lock(&self.now).listening.as_ref().is_some_and(|it| !it.fell())
    }

    /// What keeps clients out.
    pub fn unheard(&self) -> Vec<ApiError> {
        lock(&self.now).unheard.clone()
    }

    /// Lets clients in on the thread of this pool, if nobody does yet. What hinders that is told:
    /// volumes are served without it. Where that may pass, `patiently` waits a moment.
    pub fn listen(&self, pool: Option<(String, ShardHandle)>, patiently: bool) {
        let tcp_tries = if patiently { TCP_TRIES } else { 0 };
        let unheard: Vec<ApiError> = [self.listen_unix(pool), self.listen_tcp(tcp_tries)]
            .into_iter()
            .filter_map(Result::err)
            .collect();
        let mut now = lock(&self.now);
        for error in &unheard {
            if !now.unheard.iter().any(|known| known.message == error.message) {
                tracing::error!("{}; it is tried again", error.message);
            }
        }
        if unheard.is_empty() && !now.unheard.is_empty() {
            tracing::info!("NBD clients are let in now");
        }
        now.unheard = unheard;
    }

    fn listen_unix(&self, pool: Option<(String, ShardHandle)>) -> Result<(), ApiError> {
        let Some((pool, handle)) = pool.filter(|_| !self.are_on()) else { return Ok(()) };
        let before = lock(&self.now).listening.take();
        let (unix, tcp) = match before {
            Some(before) => (before.unix.1, before.tcp.map(|(_, socket)| socket)),
            None => {
                let bound = bind(&self.unix);
                (bound.map_err(|error| ApiError::failed(format!("{error:#}")))?, None)
            }
        };
        let failed = |error| ApiError::failed(format!("keep an NBD socket: {error}"));
        let listen =
            |socket, tls| handle.listen(socket, tls).map_err(|error| shard_error(&pool, &error));
        let own = ListenerSocket::Unix(unix.try_clone().map_err(failed)?);
        let unix = (listen(own, Tls::Off)?, unix);
        let tcp = tcp.map(|socket| {
            let own = ListenerSocket::Tcp(socket.try_clone().map_err(failed)?);
            Ok::<_, ApiError>((listen(own, self.tls.clone())?, socket))
        });
        // What fails is bound anew.
        let tcp = tcp.and_then(Result::ok);
        lock(&self.now).listening = Some(Listening { pool, handle, unix, tcp });
        Ok(())
    }

    fn listen_tcp(&self, tries: u32) -> Result<(), ApiError> {
        let Some(address) = self.tcp else { return Ok(()) };
        let (pool, handle) = match &lock(&self.now).listening {
            Some(it) if it.tcp.is_none() && !it.fell() => (it.pool.clone(), it.handle.clone()),
            _ => return Ok(()),
        };
        let socket = bind_tcp(address, tries).map_err(|error| {
            ApiError::failed(format!("no NBD at {address}: {error}"))
                .hint(Hint::Choose { what: Choice::Listen })
        })?;
        let kept = socket.try_clone().map_err(|error| ApiError::failed(error.to_string()))?;
        let listener = handle
            .listen(ListenerSocket::Tcp(socket), self.tls.clone())
            .map_err(|error| shard_error(&pool, &error))?;
        if let Some(listening) = &mut lock(&self.now).listening {
            listening.tcp = Some((listener, kept));
        }
        Ok(())
    }

    /// Lets no more clients in on the thread of this pool, or on any. Tells whether it did.
    pub fn stop(&self, pool: Option<&str>) -> bool {
        let is_meant = |it: &mut Listening| pool.is_none_or(|pool| it.pool == pool);
        let stopped = lock(&self.now).listening.take_if(is_meant);
        let Some(listening) = stopped else { return false };
        let tcp = listening.tcp.map(|(listener, _)| listener);
        for listener in [Some(listening.unix.0), tcp].into_iter().flatten() {
            listening.handle.unlisten(listener);
        }
        let _ = std::fs::remove_file(&self.unix);
        true
    }
}

/// Listens on an address. The pool that listened there before may need a moment to let go of it.
fn bind_tcp(address: SocketAddr, mut tries: u32) -> std::io::Result<TcpListener> {
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && tries > 0 => {
                tries -= 1;
                std::thread::sleep(TCP_PAUSE);
            }
            bound => return bound,
        }
    }
}
