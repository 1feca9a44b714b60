//! The keys of the configuration.

/// Every key, with its section (empty for the top), value and meaning. Help and checks come from
/// here.
pub const KEYS: &[(&str, &str, &str, &str)] = &[
    (
        "",
        "ram",
        "size",
        "most memory that all pools and clients together may take; half of what there is",
    ),
    ("", "nbd-listen", "address:port", "serve NBD over TCP too; not set"),
    ("", "nbd-plain", "true or false", "serve NBD over TCP to other machines without TLS; false"),
    ("", "nbd-certificate", "path", "PEM file of the certificate: clients over TCP must use TLS"),
    ("", "nbd-key", "path", "PEM file of its key, which nobody else may read"),
    (
        "",
        "nbd-client-ca",
        "path",
        "PEM file: clients must show a certificate signed by one of these",
    ),
    ("pool", "name", "name", "name of the pool; required"),
    ("pool", "devices", "list of paths", "its cache devices; required"),
    ("pool", "ram", "size", "most memory that it may take"),
    ("volume", "name", "name", "name of the volume; required"),
    ("volume", "origin", "URI", "its origin; either this or tiers is required"),
    (
        "volume",
        "tiers",
        "list",
        "its tiers, the fastest first: ram:SIZE, or a device; several in one with commas between",
    ),
    ("volume", "size", "size", "of a volume over tiers; all that they hold"),
    ("volume", "placement", "heat or spill", "how data is placed on tiers; heat"),
    ("volume", "pool", "name", "its pool; over an origin it may be left out if there is only one"),
    ("volume", "mode", "mode", "the mode when it is made; writethrough"),
    ("volume", "export", "export", "how it is made visible; auto"),
];
