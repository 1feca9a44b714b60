//! The connections of the control socket. Who says nothing, or reads nothing, is dropped after a
//! while, so that the next one gets its turn.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep};

/// Connections at once; more wait until one ends.
const CONNECTIONS_MAX: usize = 64;
/// How long the head of a request, and then its body, may take to come.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// How long a client may read nothing of its answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a connection that the system could not make.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves whoever connects: one request each.
pub async fn serve(listener: UnixListener, app: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&room).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let answered = serve_one(Patient::new(stream, ANSWER_LIMIT), app.clone());
                tokio::spawn(async move {
                    if let Err(error) = answered.await {
                        tracing::debug!("a client of the control socket: {error}");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("a client of the control socket: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_one(stream: Patient, app: Router) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_LIMIT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app))
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
            let served = serve_one(Patient::new(stream, Duration::from_millis(300)), app);
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
