//! What is printed: one model, five formats.

use crate::world::{Said, World};
use forebay_api::Client;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::Duration;

/// The keys of an object, sorted, with the type of each value.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.clone(), shape(value))).collect()
        }
        Value::Array(items) => items.iter().take(1).map(shape).collect(),
        Value::Number(number) if number.is_f64() => json!("ratio"),
        Value::Number(_) => json!("number"),
        Value::String(_) => json!("string"),
        Value::Bool(_) => json!("bool"),
        Value::Null => Value::Null,
    }
}

#[test]
fn the_json_of_status_has_the_shape_that_scripts_rely_on() {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    let status = world.forebay(&["status", "-o", "json"]).expect(0).json();
    let wanted = json!({
        "schema": "number",
        "kind": "string",
        "state": "string",
        "volumes": [{
            "name": "string",
            "pool": "string",
            "state": "string",
            "mode": "string",
            "origin": "string",
            "bytes": "number",
            "used_bytes": "number",
            "dirty_bytes": "number",
            "hit_ratio_5m": null,
            "hit_ratio_1h": null,
            "export": "string",
            "export_why": "string",
            "clients": "number",
        }],
        "pools": [{
            "name": "string",
            "uuid": "string",
            "state": "string",
            "devices": [{
                "path": "string",
                "bytes": "number",
                "segments": "number",
                "least_bytes": "number",
                "present": "bool",
            }],
            "capacity_bytes": "number",
            "used_bytes": "number",
            "dirty_bytes": "number",
            "dirty_two_copies_bytes": "number",
            "dirty_one_copy_bytes": "number",
            "segment_bytes": "number",
            "segments": "number",
            "segments_free": "number",
            "room": {
                "free_bytes": "number",
                "coming_bytes": "number",
                "writable_bytes": "number",
            },
            "ram": {
                "index_bytes": "number",
                "ghost_bytes": "number",
                "tier_bytes": "number",
                "total_bytes": "number",
            },
            "volumes": ["string"],
        }],
    });
    assert_eq!(shape(&status), wanted);
    assert_eq!(status["schema"], 1);
    assert_eq!(status["kind"], "status");
    assert_eq!(status["volumes"][0]["state"], "ok");
    assert_eq!(status["volumes"][0]["bytes"], 24 << 20);
}

#[test]
fn every_question_answers_in_every_format() {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    world.nbd("big").read_all();
    let questions: [&[&str]; 9] = [
        &["status"],
        &["pool", "list"],
        &["pool", "show", "ssd"],
        &["volume", "list"],
        &["volume", "show", "big"],
        &["iostat", "-l"],
        &["why", "big"],
        &["config", "keys"],
        &["inspect", "ssd.img"],
    ];
    for question in questions {
        for format in ["table", "wide", "json", "jsonl", "csv"] {
            let mut args = question.to_vec();
            args.extend(["-o", format]);
            let said = world.forebay(&args).expect(0);
            assert!(!said.out.trim().is_empty(), "{args:?}");
            match format {
                "json" => assert_eq!(said.json()["schema"], 1, "{args:?}"),
                "jsonl" => {
                    for line in said.out.lines() {
                        let value: Value = serde_json::from_str(line).unwrap();
                        assert!(value.is_array() || value["schema"] == 1, "{args:?}: {line}");
                    }
                }
                "csv" => {
                    let columns = |line: &str| line.split(',').count();
                    let heading = said.out.lines().next().unwrap();
                    assert!(columns(heading) >= 2, "{args:?}");
                }
                _ => {}
            }
        }
    }
}

#[test]
fn tables_show_what_the_json_says() {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--name", "vz"]).expect(0);
    let table = world.forebay(&["status"]).expect(0).out;
    let lines: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0].join(" "), "VOLUME STATE MODE SIZE USED DIRTY HIT 5m HIT 1h EXPORT");
    assert_eq!(lines[1][..4], ["vz", "ok", "writethrough", "24.0M"]);
    let csv = world.forebay(&["volume", "list", "-o", "csv"]).expect(0).out;
    assert!(csv.starts_with("volume,state,mode,pool,size_bytes,"), "{csv}");
    assert!(csv.contains("vz,ok,writethrough,ssd,25165824,"), "{csv}");
}

#[test]
fn nothing_is_shown_when_nothing_is_there_but_what_to_do() {
    let world = World::started();
    world.forebay(&["status"]).expect(0).says("forebay cache ORIGIN --with DEVICE");
    let status = world.forebay(&["status", "-o", "json"]).expect(0).json();
    assert_eq!(status["volumes"], json!([]));
    assert_eq!(status["state"], "ok");
}

#[test]
fn metrics_are_served_to_prometheus() {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    world.nbd("big").read(0, 4096).unwrap();
    let client = Client::new(world.state_dir().join("control.sock"));
    let (status, body) = client.http("GET", "/metrics", b"").unwrap();
    let text = String::from_utf8(body).unwrap();
    assert_eq!(status, 200);
    for metric in forebay_api::metrics::METRICS {
        assert!(text.contains(&format!("# TYPE {} ", metric.name)), "{}", metric.name);
    }
    let reads: f64 = text
        .lines()
        .filter(|line| line.starts_with("forebay_read_requests_total{volume=\"big\""))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
        .sum();
    assert!(reads >= 1.0, "{text}");
    assert!(text.contains("forebay_volume_state{volume=\"big\",pool=\"ssd\",state=\"ok\"} 1"));
}

#[test]
fn dry_runs_change_nothing() {
    let world = World::started();
    let before = std::fs::read(world.path("ssd.img")).unwrap();
    let said = world.forebay(&["cache", "big.img", "--with", "ssd.img", "--dry-run"]).expect(0);
    said.says("memory needed").says("as volume big").says("nothing was changed");
    let plan = ["pool", "create", "fast", "ssd.img", "--dry-run", "-o", "json"];
    let plan = world.forebay(&plan).expect(0).json();
    assert_eq!(plan["outcome"], "planned");
    assert_eq!(plan["plan"]["devices"][0]["holds"], json!([]));
    let ram = &plan["plan"]["ram"];
    let slots = plan["plan"]["capacity_bytes"].as_u64().unwrap() / 4096;
    assert_eq!(ram["index_bytes"], slots * 10);
    assert!(std::fs::read(world.path("ssd.img")).unwrap() == before);
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    for args in [
        &["volume", "mode", "big", "writeback", "--dry-run"][..],
        &["volume", "drain", "big", "--dry-run"],
        &["volume", "detach", "big", "--dry-run"],
        &["volume", "remove", "big", "--dry-run"],
    ] {
        world.forebay(args).expect(0).says("would").says("nothing was changed");
    }
    assert_eq!(world.volume("big")["mode"], "writethrough");
    assert_eq!(world.volume("big")["state"], "ok");
}

#[test]
fn inspect_reads_a_device_without_a_daemon_and_names_what_is_wrong() {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"]).expect(0);
    world.nbd("big").write(0, &[7; 65_536]).unwrap();
    world.kill();
    let before = std::fs::read(world.path("ssd.img")).unwrap();
    let found = world.forebay(&["inspect", "ssd.img", "-o", "json"]).expect(0).json();
    assert_eq!(found["pool"]["name"], "ssd");
    assert_eq!(found["pool"]["volumes"][0]["name"], "big");
    let text = world.forebay(&["inspect", "ssd.img"]).expect(0);
    text.says("pool ssd").says("volume 1 (big): 24.0M, writeback").says("record");
    assert!(std::fs::read(world.path("ssd.img")).unwrap() == before, "it never writes");
    world.forebay(&["inspect", "big.img"]).expect(1).says("magic number missing");
    world.forebay(&["inspect", "none.img"]).expect(1).complains("open none.img");
}

#[test]
fn completions_know_the_verbs() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        let said = world.forebay(&["completions", shell]).expect(0);
        said.says("iostat").says("destroy");
    }
    // Whoever reads nothing of it sees no panic.
    let mut command = world.command(&["completions", "bash"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let said = Said::of(child.wait_with_output().unwrap());
    assert!(said.code != 101 && !said.err.contains("panicked"), "{said:?}");
    // What the usage says can be typed.
    let help = world.forebay(&["cache", "--help"]).expect(0);
    help.says("Usage: forebay cache <ORIGIN> --with <DEVICE>... [OPTIONS]");
}

/// Scripts got sentences only, and those of a plan name devices and sizes.
#[test]
fn what_is_done_or_planned_has_fields_beside_its_sentences() {
    let world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "-o", "json"];
    let plan = world.forebay(&[&cache[..], &["--dry-run"]].concat()).expect(0).json();
    let messages = plan["messages"].as_array().unwrap();
    assert_eq!(messages.len(), plan["told"].as_array().unwrap().len(), "{plan}");
    assert_eq!(messages[0], "would make the pool ssd");
    assert_eq!(plan["told"][0], json!({"told": "would-make-pool", "pool": "ssd"}));
    let origin = world.text("big.img");
    let volume = json!({"told": "would-put-before", "origin": origin, "volume": "big"});
    assert_eq!(plan["told"][1], volume);
    let done = world.forebay(&cache).expect(0).json();
    let told = &done["told"][0];
    assert_eq!((&told["told"], &told["size_bytes"]), (&json!("cached"), &json!(24 << 20)));
    assert_eq!(told["mode"], "writethrough");
    let mode = ["volume", "mode", "big", "writeback", "--dry-run", "-o", "json"];
    let planned = world.forebay(&mode).expect(0).json();
    let switch = json!({
        "told": "would-switch-mode", "volume": "big", "from": "writethrough", "to": "writeback"
    });
    assert_eq!(planned["told"], json!([switch]));
}

/// A script that asked for JSON could not read that it was used wrongly.
#[test]
fn wrong_usage_is_told_in_json_where_that_was_asked_for() {
    let world = World::new();
    for args in [
        &["-o", "json", "volume", "shwo", "v"][..],
        &["volume", "mode", "v", "fast", "--output=json"],
        &["volume", "show", "-ojsonl"],
    ] {
        let said = world.forebay(args).expect(2);
        let error: Value = serde_json::from_str(&said.err).unwrap_or_else(|_| panic!("{said:#?}"));
        assert_eq!((&error["schema"], &error["kind"]), (&json!(1), &json!("error")), "{args:?}");
        assert_eq!(error["error"]["kind"], "usage", "{args:?}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.starts_with("error"), "{message}");
        assert!(said.out.is_empty(), "{said:#?}");
    }
    world.forebay(&["volume", "shwo"]).expect(2).complains("error: ").complains("Usage");
    // Help is for people, whatever they asked for before.
    world.forebay(&["-o", "json", "--help"]).expect(0).says("Usage: forebay");
}

#[test]
fn each_document_says_of_which_kind_it_is() {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    world.empty_file("slow.img", 32 << 20);
    world.forebay(&["volume", "create", "t", "--tier", "slow.img"]).expect(0);
    for (question, kind) in [
        (&["volume", "show", "big"][..], "volume"),
        (&["pool", "show", "ssd"], "pool"),
        (&["tier", "show", "t"], "tiers"),
    ] {
        for format in ["json", "jsonl"] {
            let said = world.forebay(&[question, &["-o", format]].concat()).expect(0);
            assert_eq!(said.json()["kind"], kind, "{question:?}");
        }
    }
}

#[test]
fn iostat_goes_on_with_the_next_daemon() {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    let mut command = world.command(&["iostat", "0.2", "6", "-o", "json"]);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = output.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    world.kill();
    std::thread::sleep(Duration::from_millis(500));
    world.start();
    let said = Said::of(child.wait_with_output().unwrap()).expect(0).complains("looking again");
    assert_eq!(said.out.lines().count(), 6, "{}", said.out);
}

#[test]
fn several_reports_of_iostat_are_a_line_of_json_each() {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    let said = world.forebay(&["iostat", "0.1", "2", "-o", "json"]).expect(0);
    let reports: Vec<Value> =
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2, "{said:#?}");
    let is_report = |it: &Value| it["kind"] == "iostat" && it["volumes"][0]["volume"] == "big";
    assert!(reports.iter().all(is_report), "{said:#?}");
}

/// It looked as if nobody used it, and as if its cache never had anything.
#[test]
fn what_has_no_cache_has_no_hits_and_the_clients_that_it_has() {
    let world = World::started();
    world.empty_file("slow.img", 32 << 20);
    world.forebay(&["volume", "create", "t", "--tier", "slow.img", "--export", "nbd"]).expect(0);
    let mut nbd = world.nbd("t");
    nbd.read(0, 4096).unwrap();
    let volume = world.volume("t");
    assert_eq!((&volume["hit_ratio_5m"], &volume["clients"]), (&Value::Null, &json!(1)));
    let rates = world.forebay(&["iostat", "-o", "json"]).expect(0).json();
    assert_eq!(rates["volumes"][0]["hit_ratio"], Value::Null);
    let csv = world.forebay(&["iostat", "-v", "-o", "csv"]).expect(0).out;
    let device = world.text("slow.img");
    assert!(csv.lines().nth(2).unwrap().contains(&device), "{csv}");
}

/// During an upgrade `forebay` is older than the daemon for a while, or newer.
#[test]
fn what_a_daemon_of_another_version_tells_is_shown_in_its_words() {
    let world = World::new();
    std::fs::create_dir(world.state_dir()).unwrap();
    let listener = UnixListener::bind(world.state_dir().join("control.sock")).unwrap();
    let newer = json!({
        "schema": 1, "kind": "done", "outcome": "changed", "messages": ["a new deed", "and more"],
        "told": [{"told": "new-deed", "size": {}}, {"told": "detached", "volume": 7}],
    });
    let older = json!({
        "schema": 1, "kind": "done", "outcome": "planned", "messages": ["an old deed"],
        "asks": ["all is lost"],
    });
    let server = std::thread::spawn(move || {
        for body in [&newer, &newer, &older].map(Value::to_string) {
            let (mut stream, mut request) = loop {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = vec![0; 4096];
                // Who only looks whether somebody is there sends nothing.
                match stream.read(&mut request).unwrap() {
                    0 => {}
                    read => break (stream, request[..read].to_vec()),
                }
            };
            while !request.ends_with(b"}") {
                let mut more = [0; 4096];
                let read = stream.read(&mut more).unwrap();
                request.extend(&more[..read]);
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).unwrap();
        }
    });
    let drain = ["volume", "drain", "v"];
    world.forebay(&drain).expect(0).says("a new deed\nand more\n");
    let said = world.forebay(&[&drain[..], &["-o", "json"]].concat()).expect(0).json();
    assert_eq!(said["messages"], json!(["a new deed", "and more"]));
    assert_eq!(said["told"], Value::Null);
    let said = world.forebay(&[&drain[..], &["--dry-run"]].concat()).expect(0);
    said.says("an old deed").says("would ask first: all is lost");
    server.join().unwrap();
}
