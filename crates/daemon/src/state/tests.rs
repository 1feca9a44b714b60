use super::*;
use forebay_api::tiers::Placement;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn pool(name: &str) -> PoolState {
    PoolState { name: name.to_string(), devices: vec!["/dev/a".to_string()], ram_bytes: None }
}

fn volume(name: &str, pool: &str) -> VolumeState {
    VolumeState {
        name: name.to_string(),
        pool: pool.to_string(),
        origin: "/srv/x".to_string(),
        mode: Mode::WriteThrough,
        export: Export::Auto,
        bytes: 4096,
        may_be_dirty: false,
        standing: Standing::Served,
        accepted_origin: None,
        rested: None,
        small_sectors: false,
    }
}

#[test]
fn what_was_changed_is_there_after_a_restart() {
    let dir = tempfile::TempDir::new().unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert!(store.get().pools.is_empty());
    store.change(|state| state.pools.push(pool("fast"))).unwrap();
    let again = Store::open(dir.path()).unwrap();
    assert_eq!(again.get().pools, [pool("fast")]);
}

#[test]
fn a_change_that_cannot_be_written_did_not_happen() {
    let dir = tempfile::TempDir::new().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fs::create_dir(dir.path().join("state.json.new")).unwrap();
    let error = store.change(|state| state.pools.push(pool("fast"))).unwrap_err();
    assert!(error.message.contains("state.json") && !error.message.contains("is full"));
    assert!(store.rewrite().is_err());
    assert!(store.get().pools.is_empty());
}

#[test]
fn a_name_in_the_file_is_checked_as_one_that_is_typed() {
    let dir = tempfile::TempDir::new().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store
        .change(|state| {
            state.pools.push(pool("fast-p"));
            state.put_volume(volume("data", "fast-v"));
            state.given_up.push(GivenUp { pool: "00".into(), volume: Some("gone".into()) });
            let (boot, backend) = (String::new(), String::new());
            state.nbd.push(NbdState { volume: "nbd-v".into(), boot, index: 1, backend });
        })
        .unwrap();
    Store::open(dir.path()).unwrap();
    let path = dir.path().join(FILE);
    let good = fs::read_to_string(&path).unwrap();
    for name in ["fast-p", "fast-v", "data", "gone", "nbd-v"] {
        let quoted = format!("\"{name}\"");
        assert!(good.contains(&quoted), "{good}");
        for bad in ["../etc", "x\\nSYSTEMD_WANTS=y", "\\u001b[2J", ""] {
            fs::write(&path, good.replace(&quoted, &format!("\"{bad}\""))).unwrap();
            let error = format!("{:#}", Store::open(dir.path()).unwrap_err());
            assert!(error.contains("moving it away"), "{error}");
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
}

#[test]
fn the_file_is_its_owners_alone() {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("state.json.new");
    fs::write(&path, "left behind").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.change(|state| state.pools.push(pool("fast"))).unwrap();
    let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Store::open(dir.path()).unwrap();
}

#[test]
fn a_damaged_file_is_refused_with_advice_and_left_as_it_is() {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join(FILE);
    for text in ["", "{", "{\"schema\":1}", "{\"schema\":9,\"pools\":[],\"volumes\":[]}"] {
        fs::write(&path, text).unwrap();
        let error = format!("{:#}", Store::open(dir.path()).unwrap_err());
        assert!(error.contains("moving it away") || error.contains("newer"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn names_of_devices_follow_what_was_found_and_stay_apart() {
    let member = |(uuid, uri): (&str, &str)| MemberState {
        uri: uri.into(),
        uuid: uuid.into(),
        tier: 0,
        use_percent: 100,
        unsettled: false,
    };
    let renamed = |found: &[(&str, &str)]| {
        let mut tiers = TieredState {
            name: "big".into(),
            set: String::new(),
            members: [("1", "a"), ("2", "b"), ("3", "c")].map(member).into(),
            overcommit: false,
            overcommit_lent: false,
            placement: Placement::Heat,
            rate: None,
            pins: Vec::new(),
            paused: false,
            window: None,
            boot: None,
            emptied: None,
            witness: WitnessState::default(),
        };
        tiers.rename(&found.iter().map(|(it, uri)| ((*it).into(), (*uri).into())).collect());
        tiers.members.into_iter().map(|it| it.uri).collect::<Vec<_>>().concat()
    };
    assert_eq!(renamed(&[("1", "a"), ("2", "b"), ("3", "c")]), "abc");
    assert_eq!(renamed(&[]), "abc");
    assert_eq!(renamed(&[("1", "c"), ("2", "a"), ("3", "b")]), "cab");
    assert_eq!(renamed(&[("1", "c")]), "cba", "the third is missing where the first was");
    assert_eq!(renamed(&[("1", "b"), ("3", "a")]), "bca");
}

#[test]
fn what_is_pinned_goes_with_its_tier_and_not_with_its_number() {
    let member = |uuid: &str, tier| MemberState {
        uri: format!("/dev/{uuid}"),
        uuid: uuid.into(),
        tier,
        use_percent: 100,
        unsettled: false,
    };
    let pin = |first, tier| PinState { first, count: 1, tier };
    let mut tiers = TieredState {
        name: "big".into(),
        set: "00".into(),
        members: vec![member("a", 1), member("b", 3), member("new", 4)],
        overcommit: false,
        overcommit_lent: false,
        placement: Placement::Heat,
        rate: None,
        pins: vec![pin(0, 1), pin(1, 3), pin(2, 7)],
        paused: false,
        window: None,
        boot: None,
        emptied: None,
        witness: WitnessState::default(),
    };
    // Nobody has heard of the new one, and there is no tier 7.
    tiers.renumber(&[("a".to_string(), 1), ("b".to_string(), 0)].into());
    assert_eq!(tiers.pins, [pin(0, 1), pin(1, 0)]);
    let members: Vec<(&str, u8)> = tiers.members.iter().map(|it| (&*it.uuid, it.tier)).collect();
    assert_eq!(members, [("b", 0), ("a", 1), ("new", 4)]);
}

#[test]
fn names_of_devices_are_kept_of_as_many_removed_volumes_as_the_limit() {
    let mut state = State::default();
    for number in 0..LEFT_MAX + 5 {
        let name = format!("v{number}");
        let (uri, uuid) = ("/dev/x".to_string(), "ab".to_string());
        state.tiered.push(TieredState {
            name: name.clone(),
            set: number.to_string(),
            members: vec![MemberState { uri, uuid, tier: 0, use_percent: 100, unsettled: false }],
            overcommit: false,
            overcommit_lent: false,
            placement: Placement::Heat,
            rate: None,
            pins: Vec::new(),
            paused: false,
            window: None,
            boot: None,
            emptied: None,
            witness: WitnessState::default(),
        });
        state.forget_volume(&name);
    }
    assert_eq!((state.left.len(), &*state.left[0].set), (LEFT_MAX, "5"));
    assert_eq!(state.left[0].uris["ab"], "/dev/x");
}

#[test]
fn what_was_seen_of_a_set_never_grows_younger() {
    let mut witness = WitnessState::default();
    assert!(!witness.is_older((1, 1, 1)), "nothing is known");
    witness.see((2, 2, 9));
    witness.see((2, 2, 7));
    assert!(witness.is_older((2, 2, 8)) && witness.is_older((1, 9, 9)));
    assert!(!witness.is_older((2, 2, 9)) && !witness.is_older((3, 3, 1)));
    witness.was_cut("a".to_string());
    assert!(witness.is_cut("a") && !witness.is_cut("b"));
    witness.believe();
    assert!(!witness.is_cut("a") && witness.is_older((2, 2, 8)));
}
