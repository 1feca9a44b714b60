//! The daemon as its users run it: a pool on files, a volume in every mode, served to programs that
//! are not ours, killed and started again.

mod crash;
mod daemon;
mod modes;
// The host's tests look for the same programs in the same way.
#[path = "../../../host/tests/nbd_interop/tools.rs"]
mod tools;

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
