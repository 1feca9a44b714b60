use super::*;

fn problems(text: &str) -> Vec<String> {
    let problems = Config::parse(Path::new("forebay.toml"), text).unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_full_configuration_is_read() {
    let text = r#"
ram = "4G"
nbd-listen = "127.0.0.1:10809"

[[pool]]
name = "fast"
devices = ["/dev/nvme0n1", "/dev/nvme1n1"]
ram = 1073741824

[[volume]]
name = "vz"
origin = "/dev/sdb"
mode = "write-back"
export = "none"
"#;
    let config = Config::parse(Path::new("f"), text).unwrap();
    assert_eq!(config.ram, Some(Size::Bytes(4 << 30)));
    assert_eq!(config.pools[0].devices.len(), 2);
    assert_eq!(config.pools[0].ram, Some(Size::Bytes(1 << 30)));
    assert_eq!(config.volumes[0].mode, Some(Mode::WriteBack));
    assert_eq!(config.volumes[0].export, Export::None);
    assert_eq!(Config::parse(Path::new("f"), "").unwrap(), Config::default());
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
    let text = "rma = \"4G\"\n\n[[pool]]\nname = \"fast\"\ndevice = [\"/dev/sda\"]\n";
    let found = problems(text);
    assert_eq!(found[0], "forebay.toml:1: unknown key \"rma\" at the top; did you mean \"ram\"?");
    let wanted = "forebay.toml:5: unknown key \"device\" in [[pool]]; did you mean \"devices\"?";
    assert!(found.contains(&wanted.to_string()), "{found:#?}");
    assert!(found.contains(&"forebay.toml:3: this [[pool]] has no \"devices\"".to_string()));
    let found = problems("colour = 1");
    assert!(
        found[0].ends_with(
            "known are ram, nbd-listen, nbd-plain, nbd-certificate, nbd-key, nbd-client-ca, pool, \
             volume"
        ),
        "{found:#?}"
    );
}

#[test]
fn every_problem_is_reported_at_once() {
    let text = r#"
ram = "lots"
nbd-listen = "localhost"
[[pool]]
name = "a b"
devices = []
[[volume]]
name = "v"
origin = "sdb"
mode = "fast"
export = "iscsi"
[pools]
"#;
    let found = problems(text);
    for wanted in [
        "forebay.toml:2: \"lots\" is not a size",
        "forebay.toml:3: \"localhost\" is not an address and a port",
        "forebay.toml:5: the name \"a b\" is not allowed",
        "forebay.toml:6: write a list of paths",
        "forebay.toml:9: write the origin \"sdb\" as an absolute path",
        "forebay.toml:10: no mode \"fast\"",
        "forebay.toml:11: no export \"iscsi\"",
        "forebay.toml:12: unknown key \"pools\" at the top; did you mean \"pool\"?",
    ] {
        assert!(found.iter().any(|line| line.starts_with(wanted)), "{wanted}\n{found:#?}");
    }
    assert_eq!(found.len(), 8, "{found:#?}");
}

#[test]
fn syntax_errors_have_lines_and_duplicates_are_found() {
    assert!(problems("ram = \"4G\"\n[[pool\n")[0].starts_with("forebay.toml:2: "));
    let pool = "[[pool]]\nname = \"p\"\ndevices = [\"/dev/sda\"]\n";
    let found = problems(&format!("{pool}{pool}"));
    assert!(found.iter().any(|line| line == "forebay.toml:4: a second pool \"p\""), "{found:#?}");
    assert!(found.iter().any(|line| line.contains("/dev/sda is named more than once")));
    let found = problems("nbd-certificate = \"/c.pem\"\nnbd-client-ca = \"ca.pem\"");
    assert_eq!(found[0], "forebay.toml:2: write \"ca.pem\" as an absolute path");
    assert!(found[1].contains("\"nbd-certificate\" and \"nbd-key\" are needed together"));
    assert!(problems("pool = 3")[0].ends_with("write [[pool]], once for each"));
}

#[test]
fn nbd_beyond_this_machine_needs_tls_or_a_word_for_going_without() {
    let read = |text: &str| Config::parse(Path::new("f"), text).map_err(|all| all[0].to_string());
    for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(read(&format!("nbd-listen = \"{address}\"")).is_ok(), "{address}");
    }
    let tls = "nbd-certificate = \"/c.pem\"\nnbd-key = \"/k.pem\"";
    for address in ["0.0.0.0:1", "[::]:1", "192.0.2.1:10809", "[2001:db8::1]:1"] {
        let listen = format!("nbd-listen = \"{address}\"");
        let error = read(&listen).unwrap_err();
        assert!(error.contains(address) && error.contains("nbd-plain = true"), "{error}");
        assert!(read(&format!("{listen}\nnbd-plain = false")).is_err());
        assert!(read(&format!("{listen}\nnbd-plain = true")).unwrap().nbd_plain);
        assert!(read(&format!("{listen}\n{tls}")).is_ok());
    }
    assert!(read("nbd-plain = 1").unwrap_err().contains("true or false"));
    let none = Config::default();
    assert!(none.check_listen(None).is_ok());
    assert!(none.check_listen(Some("192.0.2.1:1".parse().unwrap())).is_err());
}

#[test]
fn a_file_that_is_none_is_a_problem_and_no_wait() {
    let dir = std::env::temp_dir().join(format!("forebay-fifo-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let fifo = dir.join("forebay.toml");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let problems = Config::read(&[fifo, "/dev/zero".into()]).unwrap_err();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(problems.len(), 2);
    assert!(problems.iter().all(|it| it.message.contains("no regular file")), "{problems:?}");
}

#[test]
fn any_bytes_are_read_without_panic() {
    let base = "ram = \"4G\"\n[[pool]]\nname = \"p\"\ndevices = [\"/dev/sda\", 'é']\n";
    for cut in 0..base.len() {
        let _ = Config::parse(Path::new("f"), &String::from_utf8_lossy(&base.as_bytes()[cut..]));
        let _ = Config::parse(Path::new("f"), &String::from_utf8_lossy(&base.as_bytes()[..cut]));
    }
}

#[test]
fn files_are_read_together_and_in_order() {
    let dir = std::env::temp_dir().join(format!("forebay-config-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("conf.d")).unwrap();
    let main = dir.join("forebay.toml");
    std::fs::write(&main, "ram = \"1G\"\n").unwrap();
    std::fs::write(dir.join("conf.d/b.toml"), "rum = 1\n").unwrap();
    std::fs::write(dir.join("conf.d/ignored.txt"), "rum = 1\n").unwrap();
    let files = files_of(&main);
    assert_eq!(files.len(), 2);
    let found = Config::read(&files).unwrap_err();
    assert!(found[0].to_string().contains("conf.d/b.toml:1: unknown key \"rum\""));
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(files_of(&main).is_empty());
}

#[test]
fn a_volume_over_tiers_is_read() {
    let text = r#"
[[pool]]
name = "a"
devices = ["/dev/sda"]
[[pool]]
name = "b"
devices = ["/dev/sdb"]

[[volume]]
name = "scratch"
tiers = ["ram:40G", "/dev/sdc,/dev/sdd"]
size = "80%"
placement = "spill"
"#;
    let config = Config::parse(Path::new("f"), text).unwrap();
    let tiers = vec![vec!["ram:40G".to_string()], vec!["/dev/sdc".into(), "/dev/sdd".into()]];
    let (size, placement) = (Some(Size::PerMille(800)), Some(Placement::Spill));
    assert_eq!(config.volumes[0].on, VolumeOn::Tiers { tiers, size, placement });
    assert_eq!((&config.volumes[0].pool, config.volumes[0].mode), (&None, None));
}

#[test]
fn keys_that_do_not_go_together_are_told() {
    let of = |keys: &str| problems(&format!("[[volume]]\nname = \"v\"\n{keys}"))[0].clone();
    assert!(of("").ends_with("has no \"origin\" and no \"tiers\""), "{}", of(""));
    let both = of("origin = \"/a\"\ntiers = [\"/b\"]");
    assert!(both.ends_with("it is on either"), "{both}");
    let size = of("origin = \"/a\"\nsize = \"1G\"");
    assert!(size.ends_with("are for volumes with \"tiers\""), "{size}");
    let mode = of("tiers = [\"/b\"]\nmode = \"writeback\"");
    assert!(mode.ends_with("name its \"pool\", too"), "{mode}");
    let path = of("tiers = [\"/b,c\"]");
    assert_eq!(path, "forebay.toml:3: write \"c\" as an absolute path or as ram:SIZE");
    let none = of("tiers = []");
    assert!(none.contains("write a list of tiers"), "{none}");
}
