//! TLS with clients that are not ours, and certificates that are refused.

use crate::certificates::Certificates;
use crate::server::Server;
use crate::tools::{outcome, run, tool};
use forebay_host::frontend::nbd::{Tls, TlsConfig};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const MIB: usize = 1 << 20;

fn config(certificates: &Certificates, mutual: bool) -> TlsConfig {
    let authority = certificates.path("ca-cert.pem");
    TlsConfig::load(
        &certificates.path("server-cert.pem"),
        &certificates.path("server-key.pem"),
        mutual.then_some(authority.as_path()),
    )
    .unwrap()
}

fn tls_uri(server: &Server, directory: &Path) -> String {
    let (socket, directory) = (server.socket(), directory.display());
    format!("nbds+unix:///disk?socket={}&tls-certificates={directory}", socket.display())
}

#[test]
fn libnbd_copies_through_tls_and_learns_nothing_without() {
    let Some(mut nbdinfo) = tool("nbdinfo", "libnbd-bin") else { return };
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(&directory.path().join("pki"));
    let server = Server::start(24 * MIB, Tls::Require(config(&certificates, true)));
    let uri = tls_uri(&server, &directory.path().join("pki"));
    let text = run(nbdinfo.arg(&uri));
    assert!(text.contains("TLS"), "{text}");
    assert!(text.contains("export-size: 25165824"), "{text}");
    let data: Vec<u8> = (0..24 * MIB as u64).map(|n| (n * n / 511) as u8).collect();
    std::fs::write(server.path("from"), &data).unwrap();
    run(tool("nbdcopy", "libnbd-bin").unwrap().arg(server.path("from")).arg(&uri));
    assert!(*server.disk.bytes.lock().unwrap() == data);
    run(tool("nbdcopy", "libnbd-bin").unwrap().arg(&uri).arg(server.path("to")));
    assert!(std::fs::read(server.path("to")).unwrap() == data);
    assert_eq!(server.budget.used_bytes(), 0);

    for arguments in [vec![server.uri("disk")], vec!["--list".to_owned(), server.uri("")]] {
        let output = outcome(tool("nbdinfo", "").unwrap().args(&arguments));
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!text.contains("size") && !text.contains("export="), "{text}");
    }
    // A client without a certificate gets no further than TLS.
    let bare = certificates.without_client(&directory.path().join("bare"));
    let output = outcome(tool("nbdinfo", "").unwrap().arg(tls_uri(&server, &bare)));
    assert!(!output.status.success());
}

#[test]
fn qemu_uses_tls_where_it_is_offered() {
    let Some(mut qemu_io) = tool("qemu-io", "qemu-utils") else { return };
    let directory = tempfile::tempdir().unwrap();
    let pki = directory.path().join("pki");
    let certificates = Certificates::make(&pki);
    let server = Server::start(8 * MIB, Tls::On(config(&certificates, false)));
    let creds = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", pki.display());
    let image = format!(
        "driver=nbd,server.type=unix,server.path={},export=disk,tls-creds=tls0,\
         tls-hostname=localhost",
        server.socket().display()
    );
    let commands = ["-c", "write -P 7 0 5M", "-c", "flush", "-c", "read -P 7 0 5M"];
    let text = run(qemu_io.args(["--object", &creds, "--image-opts"]).args(commands).arg(&image));
    assert!(!text.contains("failed"), "{text}");
    assert!(server.disk.bytes.lock().unwrap()[..5 * MIB].iter().all(|byte| *byte == 7));
    // And without, since it is not required.
    run(tool("qemu-img", "").unwrap().args(["info", &server.uri("disk")]));
}

#[test]
fn certificates_that_cannot_serve_are_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(directory.path());
    let (certificate, key) =
        (certificates.path("server-cert.pem"), certificates.path("server-key.pem"));
    let load = |certificate: &Path, key: &Path| {
        TlsConfig::load(certificate, key, None).unwrap_err().to_string()
    };
    let message = load(&certificates.path("absent.pem"), &key);
    assert!(message.contains("absent.pem") && message.contains("a certificate"), "{message}");
    let message = load(&certificate, &certificate);
    assert!(message.contains("a key"), "{message}");
    let message = load(&certificate, &certificates.path("client-key.pem"));
    assert!(message.contains("belong together"), "{message}");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let message = load(&certificate, &key);
    assert!(message.contains("mode 0640") && message.contains("chmod"), "{message}");
}
