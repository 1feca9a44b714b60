//! One target under libFuzzer: that of the environment's `FOREBAY_FUZZ_TARGET`. `cargo xtask fuzz`
//! builds and starts it.
#![forbid(unsafe_code)]
#![no_main]

use forebay_fuzz::{Target, find};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FOREBAY_FUZZ_TARGET").unwrap_or_default();
    find(&name).unwrap_or_else(|| panic!("FOREBAY_FUZZ_TARGET names no target: {name:?}"))
});

fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
