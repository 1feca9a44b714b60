//! The daemon as its users run it: a pool on files, a volume in every mode, served to programs that
//! are not ours, killed and started again.

/// Tests for each mode, in modules that have the modes' names: `in_every_mode! { test: function }`.
macro_rules! in_every_mode {
    ($($test:ident: $function:ident,)*) => {
        in_every_mode!(@mode writethrough WriteThrough $($test: $function,)*);
        in_every_mode!(@mode writeback WriteBack $($test: $function,)*);
        in_every_mode!(@mode writearound WriteAround $($test: $function,)*);
        in_every_mode!(@mode writeonly WriteOnly $($test: $function,)*);
        in_every_mode!(@mode passthrough PassThrough $($test: $function,)*);
    };
    (@mode $name:ident $mode:ident $($test:ident: $function:ident,)*) => {
        mod $name {
            $(
                #[test]
                fn $test() {
                    super::$function(forebay_api::Mode::$mode);
                }
            )*
        }
    };
}

mod crash;
mod daemon;
mod modes;
// The host's tests look for the same programs in the same way.
#[path = "../../../host/tests/nbd_interop/tools.rs"]
mod tools;

const MIB: usize = 1 << 20;

/// Bytes without a pattern that a bug could repeat.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
