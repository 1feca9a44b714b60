//! Certificates for tests, in the files and under the names that libnbd and QEMU look for.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A directory with an authority, a server certificate for `localhost` and a client certificate.
pub struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    pub fn make(directory: &Path) -> Certificates {
        std::fs::create_dir_all(directory).unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let made = Certificates { directory: directory.to_owned() };
        made.write("ca-cert.pem", &authority.pem());
        for who in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.key_usages =
                vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
            let certificate = params.signed_by(&key, &authority).unwrap();
            made.write(&format!("{who}-cert.pem"), &certificate.pem());
            made.write(&format!("{who}-key.pem"), &key.serialize_pem());
        }
        made
    }

    /// A directory that has the authority only: a client without a certificate.
    pub fn without_client(&self, directory: &Path) -> PathBuf {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::copy(self.path("ca-cert.pem"), directory.join("ca-cert.pem")).unwrap();
        directory.to_owned()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(self.path(name), private).unwrap();
    }
}
