//! What is printed: one model, five formats.

use crate::world::World;
use forebay_api::Client;
use serde_json::{Value, json};

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
                "present": "bool",
            }],
            "capacity_bytes": "number",
            "used_bytes": "number",
            "dirty_bytes": "number",
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
}
