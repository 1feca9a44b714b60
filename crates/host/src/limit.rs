//! Time limits for calls that cannot be interrupted.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Carries `act` out on a thread of its own and waits for it, but not for ever: a control call of a
/// broken driver must not take its caller along.
///
/// # Errors
/// Those of `act`. `TimedOut`: it goes on, and the thread with it.
pub fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (send, receive) = sync_channel(1);
    std::thread::Builder::new().name("forebay-control".to_owned()).spawn(move || {
        let _ = send.send(act());
    })?;
    match receive.recv_timeout(limit) {
        Ok(result) => result.map_err(|e| io::Error::new(e.kind(), format!("{what}: {e}"))),
        Err(RecvTimeoutError::Timeout) => {
            let text = format!("{what}: the kernel has not answered for {limit:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(io::Error::other(format!("{what}: it broke down")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_end_is_left_behind() {
        let (send, receive) = sync_channel::<()>(0);
        let stuck = move || receive.recv().map_err(|_| io::Error::other("ended"));
        let error = within(Duration::from_millis(20), "configure /dev/x", stuck).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().starts_with("configure /dev/x: "), "{error}");
        drop(send);
        let failed = || Err::<(), _>(io::Error::other("busy"));
        let error = within(Duration::from_secs(9), "open", failed).unwrap_err();
        assert_eq!(error.to_string(), "open: busy");
    }
}
