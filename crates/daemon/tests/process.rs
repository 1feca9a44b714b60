//! The process itself: its lock, its sockets, its log. What it serves is tested through the command
//! line.

use forebay_api::reply::State;
use forebay_api::request::CacheRequest;
use forebay_api::{Body, Client, Request};
use forebay_host::process::RIGHTS_KEPT;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);

fn forebayd(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebayd"));
    command.args(["--private", "--log", "json", "--state-dir"]).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Ends a process that a failed test left.
struct Guard(Option<Child>);

impl Guard {
    fn start(dir: &Path) -> Guard {
        let mut guard = Guard(Some(forebayd(dir).spawn().expect("start forebayd")));
        let client = Client::new(dir.join("control.sock"));
        let begin = Instant::now();
        while client.ask(&Request::Daemon).is_err() {
            if begin.elapsed() > PATIENCE {
                panic!("forebayd does not answer: {:?}", guard.end("-KILL"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        guard
    }

    fn end(&mut self, signal: &str) -> Output {
        let child = self.0.take().expect("a running daemon");
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        child.wait_with_output().unwrap()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_second_daemon_on_the_same_state_is_refused_and_the_first_goes_on() {
    let dir = TempDir::new().unwrap();
    let first = Guard::start(dir.path());
    let output = forebayd(dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("another forebayd (process "), "{text}");
    assert!(text.contains("choose another --state-dir"), "{text}");
    let told = Client::new(dir.path().join("control.sock")).ask(&Request::Daemon);
    let Ok(Body::Daemon(daemon)) = told else { panic!("{told:?}") };
    assert_eq!(Some(daemon.pid), first.0.as_ref().map(Child::id));
}

#[test]
fn a_killed_daemon_leaves_a_socket_that_the_next_one_replaces() {
    let dir = TempDir::new().unwrap();
    let mut first = Guard::start(dir.path());
    first.end("-KILL");
    let socket = dir.path().join("control.sock");
    assert!(socket.exists());
    let mut second = Guard::start(dir.path());
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let output = second.end("-TERM");
    assert!(output.status.success(), "{output:?}");
    let log = String::from_utf8(output.stderr).unwrap();
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
    }
    assert!(log.contains("SIGTERM: stopping"), "{log}");
}

#[test]
fn a_configuration_that_is_missing_or_wrong_is_an_error_that_names_it() {
    let dir = TempDir::new().unwrap();
    let config = dir.path().join("own.toml");
    let run = || {
        let output = forebayd(dir.path()).arg("--config").arg(&config).output().unwrap();
        // A service manager need not try again: no other failure has this code.
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let text = run();
    assert!(text.contains("own.toml") && text.contains("No such file"), "{text}");
    fs::write(&config, "nbd-listem = \"127.0.0.1:0\"\n").unwrap();
    let text = run();
    assert!(text.contains("own.toml:1: unknown key") && text.contains("nbd-listen"), "{text}");
}

/// What the kernel says of a process, in its status.
fn status_of(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap().trim().to_string()
}

#[test]
fn it_keeps_only_the_rights_that_it_uses_as_its_unit_says() {
    let dir = TempDir::new().unwrap();
    let daemon = Guard::start(dir.path());
    let pid = daemon.0.as_ref().unwrap().id();
    let kept = RIGHTS_KEPT.iter().fold(0, |kept, (_, number)| kept | 1_u64 << number);
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    for task in tasks.map(|task| task.unwrap().file_name().into_string().unwrap()) {
        let task = task.parse().unwrap();
        assert_eq!(status_of(task, "NoNewPrivs"), "1");
        for field in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            let set = u64::from_str_radix(&status_of(task, field), 16).unwrap();
            assert_eq!(set & !kept, 0, "{field} {set:x}");
        }
    }
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/forebayd.service");
    let unit = fs::read_to_string(unit).unwrap();
    let lines = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let mut in_unit: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let mut here = RIGHTS_KEPT.map(|(name, _)| name);
    in_unit.sort_unstable();
    here.sort_unstable();
    assert_eq!(in_unit, here);
    assert!(unit.contains("NoNewPrivileges=yes"));
}

/// Each 64 of them kept others out for as long as a request may take to come: 400 for half a
/// minute.
#[test]
fn clients_that_say_nothing_are_dropped_and_keep_nobody_out() {
    let dir = TempDir::new().unwrap();
    let _daemon = Guard::start(dir.path());
    let socket = dir.path().join("control.sock");
    // Many times more than may be connected at once.
    let silent: Vec<UnixStream> = (0..400)
        .map(|n| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            let part =
                ["", "POST /v1 HTT", "POST /v1 HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"][n % 3];
            stream.write_all(part.as_bytes()).unwrap();
            stream
        })
        .collect();
    let begin = Instant::now();
    let told = Client::new(&socket).ask(&Request::Daemon);
    assert!(matches!(told, Ok(Body::Daemon(_))), "{told:?}");
    // No time limit had to pass.
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    for mut stream in silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = String::new();
        match stream.read_to_string(&mut answer) {
            Ok(_) => {}
            // It was dropped before anything of it was read.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
        assert!(answer.is_empty() || answer.contains("no request came") || answer.contains("408"));
    }
}

#[test]
fn nbd_for_other_machines_without_tls_is_refused_with_what_to_do() {
    let dir = TempDir::new().unwrap();
    let listen = |address: &str| forebayd(dir.path()).args(["--nbd-listen", address]).output();
    let output = listen("0.0.0.0:0").unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("0.0.0.0:0 lets in everybody") && text.contains("nbd-plain = true"));
    fs::write(dir.path().join("forebay.toml"), "nbd-plain = true\n").unwrap();
    let mut command = forebayd(dir.path());
    command.args(["--nbd-listen", "0.0.0.0:0"]);
    let mut allowed = Guard(Some(command.spawn().unwrap()));
    let client = Client::new(dir.path().join("control.sock"));
    let begin = Instant::now();
    while client.ask(&Request::Daemon).is_err() {
        assert!(begin.elapsed() < PATIENCE, "{:?}", allowed.end("-KILL"));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_service_manager_is_told_that_it_serves_lives_and_stops() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = forebayd(dir.path());
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    let mut daemon = Guard(Some(command.spawn().expect("start forebayd")));
    let mut told: Vec<String> = Vec::new();
    let mut wait_for = |wanted: &str, count: usize| {
        told.clear();
        let begin = Instant::now();
        while told.iter().filter(|word| word.starts_with(wanted)).count() < count {
            assert!(begin.elapsed() < PATIENCE, "no {wanted}: {told:?}");
            let mut bytes = [0; 512];
            let len = socket.recv(&mut bytes).unwrap_or_else(|e| panic!("{e}: {told:?}"));
            let text = String::from_utf8(bytes[..len].to_vec()).unwrap();
            told.extend(text.lines().map(str::to_owned));
        }
        told.clone()
    };
    // How it is may be told before it is ready.
    let status = "STATUS=0 of 0 volumes served.";
    if !wait_for("READY=1", 1).iter().any(|word| word == status) {
        wait_for(status, 1);
    }
    let again = wait_for("WATCHDOG=1", 3);
    assert!(!again.contains(&"READY=1".to_owned()), "once is enough: {again:?}");
    // What does not run does not say that it lives.
    let pid = daemon.0.as_ref().unwrap().id().to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().is_ok());
    signal("-STOP");
    std::thread::sleep(Duration::from_millis(200));
    socket.set_nonblocking(true).unwrap();
    while socket.recv(&mut [0; 512]).is_ok() {}
    std::thread::sleep(Duration::from_millis(600));
    assert!(socket.recv(&mut [0; 512]).is_err(), "a process that is stopped speaks");
    socket.set_nonblocking(false).unwrap();
    signal("-CONT");
    signal("-TERM");
    let mut stopping = false;
    while !stopping {
        let mut bytes = [0; 512];
        let len = socket.recv(&mut bytes).unwrap();
        stopping = bytes[..len].starts_with(b"STOPPING=1");
    }
    assert!(daemon.0.take().unwrap().wait().unwrap().success());
}

/// The control socket answers before the known pools are opened. A pool that was made in between
/// was opened a second time, found in use, and given up.
#[test]
fn a_change_that_comes_before_everything_is_opened_waits_for_that() {
    for _ in 0..8 {
        let dir = TempDir::new().unwrap();
        let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        for name in ["origin", "cache"] {
            fs::File::create(file(name)).unwrap().set_len(32 << 20).unwrap();
        }
        let request = Request::Cache(CacheRequest {
            export: forebay_api::request::Export::Auto,
            origin: file("origin"),
            devices: vec![file("cache")],
            name: Some("data".to_owned()),
            mode: None,
            ram: None,
            dry_run: false,
            force: false,
        });
        let _daemon = Guard(Some(forebayd(dir.path()).spawn().expect("start forebayd")));
        let client = Client::new(dir.path().join("control.sock"));
        let begin = Instant::now();
        loop {
            match client.ask(&request) {
                Ok(_) => break,
                Err(error) => assert!(error.message.contains("no forebayd answers"), "{error:?}"),
            }
            assert!(begin.elapsed() < PATIENCE);
        }
        let Ok(Body::Status(status)) = client.ask(&Request::Status) else { panic!("no status") };
        assert_eq!(status.state, State::Ok, "{status:?}");
    }
}
