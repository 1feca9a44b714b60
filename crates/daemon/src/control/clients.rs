//! The connections of the control socket. Who has not finished his request makes room for who
//! comes, so a command gets through beside any number of clients that say nothing; who reads
//! nothing is dropped after a while.

use axum::Router;
use hyper::Method;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{Sleep, sleep};

/// Connections at once whose request has come as a whole; more wait until one ends.
const ANSWERED_MAX: usize = 64;
/// Connections at once whose request has not: of more the oldest ends.
const UNFINISHED_MAX: usize = 64;
/// How long the head of a request, and then its body, may take to come.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// How long a client may read nothing of its answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a connection that the system could not make.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who is connected.
struct Room {
    answered: Arc<Semaphore>,
    /// Those whose request has not come as a whole, the oldest first.
    unfinished: Mutex<BTreeMap<u64, AbortHandle>>,
}

impl Room {
    fn new() -> Arc<Room> {
        let answered = Arc::new(Semaphore::new(ANSWERED_MAX));
        Arc::new(Room { answered, unfinished: Mutex::default() })
    }

    fn unfinished(&self) -> MutexGuard<'_, BTreeMap<u64, AbortHandle>> {
        self.unfinished.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Somebody new is there. Of too many who have not said what they want the oldest ends.
    fn enter(&self, number: u64, task: AbortHandle) {
        let mut unfinished = self.unfinished();
        unfinished.retain(|_, task| !task.is_finished());
        if unfinished.len() >= UNFINISHED_MAX
            && let Some((_, oldest)) = unfinished.pop_first()
        {
            oldest.abort();
        }
        unfinished.insert(number, task);
    }
}

/// One connection's place among the others.
#[derive(Clone)]
pub struct Place {
    number: u64,
    room: Arc<Room>,
    /// Kept until the connection ends.
    answered: Arc<OnceLock<OwnedSemaphorePermit>>,
}

impl Place {
    fn new(number: u64, room: &Arc<Room>) -> Place {
        Place { number, room: Arc::clone(room), answered: Arc::default() }
    }

    /// The request has come as a whole: from now on the connection makes room for nobody. Waits
    /// while too many others are answered.
    pub async fn is_finished(&self) {
        self.room.unfinished().remove(&self.number);
        if self.answered.get().is_none() {
            let answered = Arc::clone(&self.room.answered).acquire_owned().await;
            let _ = self.answered.set(answered.expect("nobody closes it"));
        }
    }
}

/// Serves whoever connects: one request each.
pub async fn serve(listener: UnixListener, app: Router) {
    let room = Room::new();
    let mut number = 0;
    loop {
        // Where all places for answers are taken, who comes waits in the socket.
        drop(room.answered.acquire().await);
        match listener.accept().await {
            Ok((stream, _)) => {
                let place = Place::new(number, &room);
                let answered = serve_one(Patient::new(stream, ANSWER_LIMIT), app.clone(), place);
                let task = tokio::spawn(async move {
                    if let Err(error) = answered.await {
                        tracing::debug!("a client of the control socket: {error}");
                    }
                });
                room.enter(number, task.abort_handle());
                number += 1;
                // Many may come at once: what one has sent already is read before others can end
                // it.
                yield_now().await;
            }
            Err(error) => {
                tracing::warn!("a client of the control socket: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_one(stream: Patient, app: Router, place: Place) -> hyper::Result<()> {
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        let (app, place) = (app.clone(), place.clone());
        async move {
            // Of what is posted the page tells when it has come.
            if request.method() != Method::POST || request.body().is_end_stream() {
                place.is_finished().await;
            }
            request.extensions_mut().insert(place);
            app.call(request).await
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_LIMIT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

/// A connection that fails when its other end reads nothing for so long.
struct Patient {
    stream: UnixStream,
    limit: Duration,
    /// Since a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: UnixStream, limit: Duration) -> Patient {
        Patient { stream, limit, waiting: None }
    }

    fn written<T>(&mut self, cx: &mut Context, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.waiting = None;
            return done;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        into: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        parts: &[IoSlice],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.written(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::io::{Read, Write};
    use std::time::Instant;

    const ANSWER: usize = 8 << 20;

    fn answered(
        read: impl FnOnce(std::os::unix::net::UnixStream) + Send + 'static,
    ) -> (bool, Duration) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (&ours).write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let reading = std::thread::spawn(move || read(ours));
        let app = Router::new().route("/", get(|| async { "x".repeat(ANSWER) }));
        let begin = Instant::now();
        let served = runtime.block_on(async {
            let stream = UnixStream::from_std(theirs).unwrap();
            let place = Place::new(0, &Room::new());
            let served = serve_one(Patient::new(stream, Duration::from_millis(300)), app, place);
            tokio::time::timeout(Duration::from_secs(20), served).await.expect("it ends")
        });
        let took = begin.elapsed();
        reading.join().unwrap();
        (served.is_ok(), took)
    }

    #[test]
    fn who_reads_nothing_of_the_answer_is_dropped_and_who_reads_slowly_is_not() {
        let (served, took) = answered(|_ours| std::thread::sleep(Duration::from_secs(3)));
        assert!(!served);
        assert!((Duration::from_millis(300)..Duration::from_secs(2)).contains(&took), "{took:?}");
        let slowly = |mut ours: std::os::unix::net::UnixStream| {
            let (mut part, mut sum) = (vec![0; 1 << 20], 0);
            while sum < ANSWER {
                std::thread::sleep(Duration::from_millis(50));
                sum += ours.read(&mut part).unwrap();
            }
        };
        assert!(answered(slowly).0);
    }
}
