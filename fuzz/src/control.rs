//! Requests to the control socket, and what is in them; replies to its clients.
//!
//! What is decoded is encoded and decoded to the same; what is refused is the asker's fault, says
//! what to do, and stays on its line; and the texts in a request are read without harm.

use crate::input::Input;
use forebay_api::request::{Export, REQUEST_BYTES_MAX, check_name, name_from_origin};
use forebay_api::{Body, ErrorKind, Mode, Reply, Request, Size};
use std::str::FromStr;

/// Words of requests and replies, for inputs of choices.
const WORDS: [&str; 32] = [
    "{\"verb\":\"cache\"",
    "{\"verb\":\"volume-mode\"",
    "{\"verb\":\"pool-create\"",
    "{\"verb\":\"volume-resize\"",
    "{\"verb\":\"volume-attach\"",
    "{\"verb\":\"volume-remove\"",
    "{\"verb\":\"status\"",
    "{\"schema\":1,\"kind\":\"done\"",
    "{\"schema\":1,\"kind\":\"error\",\"error\":{\"kind\":\"usage\"",
    "{\"schema\":1,\"kind\":\"job\",\"job\":null",
    ",\"name\":\"vz\"",
    ",\"name\":\"\\u001b\"",
    ",\"origin\":\"/dev/sda\"",
    ",\"devices\":[\"/dev/sdb\"]",
    ",\"devices\":[]",
    ",\"mode\":\"writeback\"",
    ",\"export\":\"ublk\"",
    ",\"ram\":\"10%\"",
    ",\"size\":\"4G\"",
    ",\"dry_run\":true",
    ",\"force\":true",
    ",\"changed\":\"keep-dirty\"",
    ",\"drop_dirty\":false",
    ",\"message\":\"\"",
    ",\"actions\":[\"a\"]",
    ",\"outcome\":\"changed\"",
    "}",
    "[",
    "\"",
    "null",
    "1e999",
    ",",
];

fn body(input: &mut Input) -> Vec<u8> {
    if input.byte() & 1 == 0 {
        return input.0.to_vec();
    }
    let mut body = Vec::new();
    while !input.is_empty() {
        match input.byte() {
            word @ 0..=223 => body.extend(WORDS[usize::from(word) % WORDS.len()].as_bytes()),
            len => body.extend(input.bytes(usize::from(len & 31))),
        }
    }
    body
}

/// A size is read or refused; what is read, written as a number of bytes, is the same.
fn size(text: &str) {
    let Ok(size) = Size::from_str(text) else { return };
    let bytes = size.of(1 << 40);
    if let Size::Bytes(_) = size {
        assert_eq!(Size::from_str(&bytes.to_string()), Ok(size));
    } else {
        assert!(bytes <= 1 << 40, "a share is at most the whole");
    }
    assert!(!size.to_string().is_empty());
}

/// What the daemon and the command line do with each text of a request.
fn texts(request: &Request) {
    let (size_text, origin) = match request {
        Request::Cache(cache) => (cache.ram.as_deref(), Some(&cache.origin)),
        Request::PoolCreate(pool) => (pool.ram.as_deref(), None),
        Request::VolumeCreate(volume) => (None, Some(&volume.origin)),
        Request::VolumeResize(volume) => (volume.size.as_deref(), None),
        _ => (None, None),
    };
    size_text.into_iter().for_each(size);
    if let Some(origin) = origin {
        assert_eq!(check_name(&name_from_origin(origin)), Ok(()), "{origin:?}");
    }
}

/// The target.
pub fn run(bytes: &[u8]) {
    let body = body(&mut Input(bytes));
    assert!(body.len() <= REQUEST_BYTES_MAX);
    match Request::decode(&body) {
        Ok(request) => {
            texts(&request);
            let again = serde_json::to_vec(&request).expect("a request is JSON");
            assert_eq!(Request::decode(&again), Ok(request));
        }
        Err(error) => {
            assert!(error.kind == ErrorKind::Usage && !error.hints.is_empty());
            assert!(!error.message.contains(char::is_control), "{:?}", error.message);
            let reply = Reply::from(Body::Error { error });
            let again = serde_json::to_vec(&reply).expect("a reply is JSON");
            assert_eq!(serde_json::from_slice::<Reply>(&again).ok(), Some(reply));
        }
    }
    if let Ok(reply) = serde_json::from_slice::<Reply>(&body) {
        let again = serde_json::to_vec(&reply).expect("a reply is JSON");
        let reply = serde_json::from_slice::<Reply>(&again).expect("what was encoded is decoded");
        assert_eq!(serde_json::to_vec(&reply).expect("a reply is JSON"), again);
    }
    let text = String::from_utf8_lossy(&body);
    size(&text);
    assert_eq!(check_name(&name_from_origin(&text)), Ok(()));
    if let Ok(mode) = Mode::from_str(&text) {
        assert_eq!(Mode::from_str(mode.name()), Ok(mode));
    }
    if let Ok(export) = Export::from_str(&text) {
        assert_eq!(export.name(), text);
    }
}
