//! The whole product, as a user has it: `forebayd` in a directory of its own, `forebay`, and an NBD
//! client.

mod damaged;
mod fallen;
mod gone;
mod guest_disk;
mod hostile;
mod jobs;
mod late;
mod lost;
mod main_job;
mod memory;
mod missing;
mod nbd;
mod older;
mod output;
mod refused;
mod renamed;
mod replaced;
mod sizes;
mod starting;
mod taken;
mod tiers;
mod tiers_changed;
mod witness;
mod world;
mod written;
