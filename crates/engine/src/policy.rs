//! Decisions: pure functions of what they are shown. Somebody else obeys.

pub mod admission;
pub mod eviction;
pub mod streams;
pub mod writeback;
