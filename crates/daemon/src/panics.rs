//! What a panic leaves: words and a backtrace in the log, and the rest of the daemon. The thread of
//! a pool is a matter of its own, see [`crate::supervisor`].

use std::backtrace::Backtrace;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::thread;
use std::time::Duration;

/// How long after a panic the same is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Has the log tell of each panic, and where it came from.
pub fn log_them() {
    panic::set_hook(Box::new(|panic: &PanicHookInfo<'_>| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("without a name");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let words = panic.payload_as_str().unwrap_or("it says nothing");
        let backtrace = Backtrace::force_capture();
        tracing::error!("internal error in thread {name} at {place}: {words}\n{backtrace}");
    }));
}

/// Does something that may panic. Whether it did not.
pub fn passes(act: impl FnOnce()) -> bool {
    panic::catch_unwind(AssertUnwindSafe(act)).is_ok()
}

/// Does what is to go on as long as the daemon lives, anew after a panic.
pub fn again(act: impl Fn()) {
    while !passes(&act) {
        thread::sleep(PAUSE);
    }
}

/// Panics while it has `held`, where a test of a daemon that is no release wants it: if this name
/// is asked for.
#[cfg(debug_assertions)]
pub fn plant<T>(name: &str, held: impl FnOnce() -> T) {
    let is_wanted = std::env::var_os("FOREBAY_PLANTED_PANIC").is_some_and(|value| value == "1");
    if is_wanted && name == "a-planted-panic" {
        let _held = held();
        panic!("a planted panic of a request");
    }
}

#[cfg(not(debug_assertions))]
pub fn plant<T>(_: &str, _: impl FnOnce() -> T) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn what_panics_is_done_again_until_it_ends() {
        let count = AtomicUsize::new(0);
        again(|| assert!(count.fetch_add(1, Ordering::Relaxed) > 0, "the first time"));
        assert_eq!(count.into_inner(), 2);
    }
}
