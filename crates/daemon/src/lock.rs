//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whoever panicked with the lock held.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked changed nothing halfway: each change ends in one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
