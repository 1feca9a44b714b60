//! `forebay demo`: the whole product on simulated disks.
