//! The NBD server against clients that are not ours, and against clients that mean harm.

mod certificates;
mod clients;
mod hostile;
mod server;
mod tls;
mod tools;
