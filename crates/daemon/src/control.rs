//! The control socket: HTTP and JSON, on a thread of its own, far from the data path.
//!
//! `POST /v1` takes a [`Request`] and answers with a [`Reply`]; some questions have a `GET` of
//! their own for `curl`, and `GET /metrics` is for Prometheus.

mod clients;

use crate::manager::Manager;
use crate::supervisor::Supervisor;
use anyhow::Context;
use axum::body::{Body as HttpBody, to_bytes};
use axum::extract::{Extension, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use clients::{Place, REQUEST_LIMIT};
use forebay_api::hint::{Choice, Log};
use forebay_api::request::REQUEST_BYTES_MAX;
use forebay_api::{ApiError, Body, Hint, Reply, Request, metrics};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

/// Requests worked on at once; more wait.
const THREADS_MAX: usize = 16;

type Shared = Arc<Supervisor>;

/// Serves the control socket until SIGTERM or SIGINT, then stops the pools in order. A second
/// signal ends the wait; the next start then recovers.
///
/// # Errors
/// The system refuses the socket or the signals.
pub fn serve(socket: UnixListener, supervisor: &Shared, manager: &Manager) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS_MAX)
        .build()
        .context("start the control thread")?;
    let done = runtime.block_on(async {
        socket.set_nonblocking(true).context("set up the control socket")?;
        let listener = tokio::net::UnixListener::from_std(socket).context("listen")?;
        let mut term = signal(SignalKind::terminate()).context("catch SIGTERM")?;
        let mut int = signal(SignalKind::interrupt()).context("catch SIGINT")?;
        let app = axum::Router::new()
            .route("/v1", post(ask))
            .route("/v1/status", get(|State(s)| answer(s, Request::Status)))
            .route("/v1/counters", get(|State(s)| answer(s, Request::Counters)))
            .route("/v1/pools", get(|State(s)| answer(s, Request::PoolList)))
            .route("/v1/volumes", get(|State(s)| answer(s, Request::VolumeList)))
            .route("/metrics", get(prometheus))
            .fallback(unknown)
            .with_state(Arc::clone(supervisor));
        tokio::select! {
            () = clients::serve(listener, app) => {}
            _ = term.recv() => tracing::info!("SIGTERM: stopping"),
            _ = int.recv() => tracing::info!("SIGINT: stopping"),
        }
        manager.stopping();
        let stopping = Arc::clone(supervisor);
        let stopped = tokio::task::spawn_blocking(move || stopping.shutdown());
        tokio::select! {
            stopped = stopped => stopped.context("stop the pools"),
            _ = term.recv() => Err(anyhow::anyhow!("stopped at once; the next start recovers")),
            _ = int.recv() => Err(anyhow::anyhow!("stopped at once; the next start recovers")),
        }
    });
    // Requests that still wait for a pool must not hold the process.
    runtime.shutdown_background();
    done
}

async fn ask(
    State(supervisor): State<Shared>,
    Extension(place): Extension<Place>,
    body: HttpBody,
) -> Response {
    let refused = |error| json(&Reply::from(Body::Error { error }));
    let body = match timeout(REQUEST_LIMIT, to_bytes(body, REQUEST_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            let text = format!("a request has up to {REQUEST_BYTES_MAX} bytes: {error}\n");
            return response(413, "text/plain", text);
        }
        Err(_) => {
            return refused(ApiError::usage(format!("no request came within {REQUEST_LIMIT:?}")));
        }
    };
    place.is_finished().await;
    match Request::decode(&body) {
        Ok(request) => answer(supervisor, request).await,
        Err(error) => refused(error),
    }
}

async fn answer(supervisor: Shared, request: Request) -> Response {
    let reply = tokio::task::spawn_blocking(move || supervisor.handle(&request)).await;
    let body = reply.unwrap_or_else(|error| {
        let error = ApiError::failed(format!("the request was not finished: {error}"))
            .hint(Hint::SeeLog { of: Log::Daemon });
        Body::Error { error }
    });
    json(&Reply::from(body))
}

fn json(reply: &Reply) -> Response {
    let status = match &reply.body {
        Body::Error { error } => error.kind.http_status(),
        _ => 200,
    };
    match serde_json::to_vec(reply) {
        Ok(bytes) => response(status, "application/json", bytes),
        Err(error) => response(500, "text/plain", format!("encode the reply: {error}\n")),
    }
}

fn response(status: u16, kind: &str, body: impl Into<HttpBody>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(status).expect("a status of this program");
    let kind = kind.parse().expect("a content type of this program");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn prometheus(State(supervisor): State<Shared>) -> Response {
    let both = tokio::task::spawn_blocking(move || (supervisor.counters(), supervisor.status()));
    match both.await {
        Ok((counters, status)) => {
            let text = metrics::prometheus(&counters, &status);
            response(200, "text/plain; version=0.0.4", text)
        }
        Err(error) => response(500, "text/plain", format!("{error}\n")),
    }
}

async fn unknown() -> Response {
    let error = ApiError::not_found("no such page").hint(Hint::Choose { what: Choice::Page });
    json(&Reply::from(Body::Error { error }))
}
