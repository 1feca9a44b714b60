//! TLS settings: certificates, and whether clients must use them.

use forebay_sys::file::{open_plain, read_plain, read_up_to};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest file of a key or of certificates, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Whether clients may or must use TLS.
#[derive(Debug, Clone, Default)]
pub enum Tls {
    /// Not offered.
    #[default]
    Off,
    /// Offered; clients may go on without.
    On(TlsConfig),
    /// Without TLS a client learns nothing and reaches nothing.
    Require(TlsConfig),
}

/// The server's certificate and key, and whom it trusts.
#[derive(Debug, Clone)]
pub struct TlsConfig(pub(super) Arc<ServerConfig>);

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds no PEM of the wanted kind.
    #[error("read {what} from {path}: {reason}; give a PEM file that holds one")]
    Read {
        /// What was wanted.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Others than the owner may read the key.
    #[error("the key {path} has mode {mode:04o}: others can read it; chmod it to 0600")]
    KeyMode {
        /// Where.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The certificate, key and authority do not make a server.
    #[error("set up TLS: {0}; check that key and certificate belong together")]
    Refused(String),
}

impl TlsConfig {
    /// Reads a certificate chain and its key, both PEM. With `client_ca`, clients must show a
    /// certificate that one of these authorities signed.
    pub fn load(
        certificate: &Path,
        key: &Path,
        client_ca: Option<&Path>,
    ) -> Result<TlsConfig, TlsError> {
        let chain = certificates(certificate)?;
        let key = private_key(key)?;
        let refused = |error: &dyn std::fmt::Display| TlsError::Refused(error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| refused(&e))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|e| refused(&e))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                    .build()
                    .map_err(|e| refused(&e))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(|e| refused(&e))?;
        Ok(TlsConfig(Arc::new(config)))
    }
}

/// Reads a key. The mode is that of the file that is read, even if the path changes meanwhile.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let read = |e: &dyn std::fmt::Display| read_error("a key", path, e);
    let file = open_plain(path).map_err(|e| read(&e))?;
    let mode = file.metadata().map_err(|e| read(&e))?.mode();
    if mode & 0o077 != 0 {
        return Err(TlsError::KeyMode { path: path.to_owned(), mode: mode & 0o7777 });
    }
    let pem = read_up_to(&file, PEM_BYTES_MAX).map_err(|e| read(&e))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|e| read(&e))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = |e: &dyn std::fmt::Display| read_error("a certificate", path, e);
    let pem = read_plain(path, PEM_BYTES_MAX).map_err(|e| read(&e))?;
    let all = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| read(&e))?;
    if all.is_empty() { Err(read(&"none found")) } else { Ok(all) }
}

fn read_error(what: &'static str, path: &Path, reason: &dyn std::fmt::Display) -> TlsError {
    TlsError::Read { what, path: path.to_owned(), reason: reason.to_string() }
}
