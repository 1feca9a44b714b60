//! An internal error on request, for tests: a write whose data begins with certain words. A release
//! has none of it.

use forebay_engine::Request;

#[cfg(debug_assertions)]
const WORDS: &[u8] = b"forebay: a planted panic";

/// Panics where a test wants it. Tests of the daemon say so in its environment.
#[cfg(debug_assertions)]
pub(super) fn look(request: &Request) {
    use std::sync::LazyLock;
    static IS_WANTED: LazyLock<bool> = LazyLock::new(|| {
        cfg!(test) || std::env::var_os("FOREBAY_PLANTED_PANIC").is_some_and(|value| value == "1")
    });
    assert!(!request.buf.bytes().starts_with(WORDS) || !*IS_WANTED, "a planted panic");
}

#[cfg(not(debug_assertions))]
pub(super) fn look(_: &Request) {}
