use super::*;
use serde_json::json;

fn v() -> String {
    "v".to_string()
}

fn p() -> String {
    "p".to_string()
}

fn two() -> Devices {
    Devices::Paths(vec!["/dev/a".to_string(), "/dev/b".to_string()])
}

fn on(devices: Devices, dirty: Dirty, when: When) -> Hint {
    Hint::CreatePool { pool: p(), devices, dirty, when }
}

/// Scripts and documents know these lines.
#[test]
fn each_hint_is_a_line_with_its_names_and_its_command() {
    let drop_it = Hint::Attach { volume: v(), dirty: Dirty::Drop, when: When::OriginIsRight };
    let lose_all = Hint::Remove { volume: v(), dirty: Dirty::Drop, when: When::AllLost };
    let both = [Export::Loop, Export::Nbd];
    let lines = [
        (Hint::attach("v", When::BringBack), "bring it back: forebay volume attach v"),
        (
            Hint::keep_dirty("v", When::NewestIsHere),
            "if what is here is the newest state: forebay volume attach v --keep-dirty",
        ),
        (
            drop_it,
            "if the origin is right, and what the cache holds is to be lost: forebay volume attach \
             v --drop-dirty",
        ),
        (Hint::remove("v", When::First), "first: forebay volume remove v"),
        (
            lose_all,
            "if they will never be back, and all that is dirty is lost: forebay volume remove v \
             --drop-dirty",
        ),
        (
            Hint::GiveUpOrigin { volume: v(), dirty_bytes: Bytes(3 << 30) },
            "if it will never be back, and 3.0G of dirty data is lost with it: forebay volume \
             remove v --drop-dirty",
        ),
        (
            Hint::SwitchMode { volume: v(), mode: Mode::WriteBack },
            "switch it: forebay volume mode v writeback",
        ),
        (
            Hint::create_pool("p", &["/dev/a".to_string()], When::UseItsName),
            "use its name: forebay pool create p /dev/a",
        ),
        (
            on(Devices::Unknown, Dirty::Stays, When::OpenIt),
            "open it: forebay pool create p DEVICE…",
        ),
        (
            on(Devices::All, Dirty::Stays, When::UseThatPool),
            "to use that pool: forebay pool create p with all its devices",
        ),
        (
            on(Devices::AllOfThem, Dirty::Stays, When::DevicesBack),
            "bring its devices back, then: forebay pool create p with all of them",
        ),
        (
            on(two(), Dirty::Keep, When::IsNewest),
            "if it is the newest: forebay pool create p /dev/a /dev/b --keep-dirty",
        ),
        (
            Hint::RemakePool { pool: p(), devices: two() },
            "to have all of its devices again: forebay volume remove each of its volumes, forebay \
             pool destroy p, forebay pool create p /dev/a /dev/b",
        ),
        (
            Hint::CacheWith { devices: two() },
            "to use that pool as it is: forebay cache ORIGIN --with /dev/a /dev/b",
        ),
        (
            Hint::ChoosePool { pools: Pools(vec![p(), "q".to_string()]) },
            "choose one: --pool p or --pool q",
        ),
        (Hint::AllowMemory { bytes: Mib((5 << 20) + 1) }, "allow more: --ram 6M"),
        (
            Hint::RaiseRam { bytes: Mib(300 << 20), now_bytes: Bytes(256 << 20) },
            "raise \"ram\" in the configuration to 300M or more (now 256M for all pools and \
             clients)",
        ),
        (Hint::LargerDevice { bytes: AtLeast((10 << 30) + 1) }, "give it at least 11G"),
        (Hint::UseOnly { devices: two() }, "or leave it out, and use /dev/a /dev/b alone"),
        (Hint::FreeSpace { at: NoRoom::StateDirectory }, "make room there"),
        (
            Hint::AllowWriting { dir: "/s".to_string(), and: Writing::RightsAndRoom },
            "see to it that forebayd can write to /s, and has room there",
        ),
        (Hint::use_export(&both, Reach::Other), "or use --export loop or --export nbd"),
        (Hint::use_export(&both[1..], Reach::ByNbd), "or reach the volume by NBD: --export nbd"),
        (Hint::Again { with: Flag::Yes }, "to go on without being asked: --yes"),
        (Hint::Wait { until: Until::Opened }, "wait a moment: forebay status"),
    ];
    for (hint, line) in lines {
        assert_eq!(hint.to_string(), line);
        let json = serde_json::to_string(&hint).unwrap();
        assert_eq!(serde_json::from_str::<Hint>(&json).unwrap(), hint, "{json}");
    }
}

#[test]
fn programs_get_the_deed_the_names_and_the_case() {
    let sent = |hint: Hint| serde_json::to_value(hint).unwrap();
    assert_eq!(
        sent(Hint::keep_dirty("v", When::NewerLost)),
        json!({"hint": "attach", "volume": "v", "dirty": "keep", "when": "newer-lost"})
    );
    assert_eq!(
        sent(on(two(), Dirty::Stays, When::Mended)),
        json!({
            "hint": "create-pool",
            "pool": "p",
            "devices": {"paths": ["/dev/a", "/dev/b"]},
            "dirty": "stays",
            "when": "mended"
        })
    );
    assert_eq!(
        sent(Hint::GiveUpOrigin { volume: v(), dirty_bytes: Bytes(4096) }),
        json!({"hint": "give-up-origin", "volume": "v", "dirty_bytes": 4096})
    );
    assert_eq!(sent(Hint::ListPools), json!({"hint": "list-pools"}));
}
