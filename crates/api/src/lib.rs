//! The words between daemon and clients.
