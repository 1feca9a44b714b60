use super::*;
use serde_json::json;

fn v() -> String {
    "v".to_string()
}

fn names() -> Names {
    Names(vec!["/dev/a".to_string(), "/dev/b".to_string()])
}

fn part(whole_tier: bool) -> TierPart {
    TierPart { tier: 1, devices: names().0, whole_tier }
}

/// Scripts and documents know these lines; the fields say the same.
#[test]
fn what_is_told_is_a_line_and_its_fields() {
    let pace = |window: &str| Pace::Moves {
        rate_bytes: 100 << 20,
        seconds: 7199,
        window: Times(window.parse().ok()),
    };
    let evacuate = |pace| Told::WouldEvacuate {
        used_bytes: Bytes(3 << 30),
        part: PartInFull(part(true)),
        pace,
    };
    let choices = Choices { pinned_bytes: 2 << 20, paused: true, ..Choices::default() };
    let keeper = |lack, is_chosen: bool| Keeper::Tiers {
        lack,
        ephemeral: !is_chosen,
        chosen: is_chosen.then(|| KeptHere(choices.clone())),
    };
    let lines = [
        (
            evacuate(pace("22:00-06:00")),
            "would move 3.0G off tier 1 (/dev/a, /dev/b); at most 100M/s, that takes at least 119 \
             min, but only in the time 22:00-06:00",
        ),
        (
            evacuate(Pace::Paused { volume: v() }),
            "would move 3.0G off tier 1 (/dev/a, /dev/b); moves are paused, until forebay tier \
             resume v",
        ),
        (
            Told::WouldRemoveTier { part: PartInFull(part(false)) },
            "would remove /dev/a, /dev/b (of tier 1)",
        ),
        (Told::TierIsEmpty { part: part(true) }, "tier 1 is empty"),
        (Told::TierIsEmpty { part: part(false) }, "all of /dev/a and /dev/b is empty"),
        (
            Told::Evacuates {
                used_bytes: Bytes(1 << 20),
                part: TierPart { devices: vec!["/dev/a".to_string()], ..part(false) },
            },
            "1.0M are moving off /dev/a",
        ),
        (
            Told::Grown { volume: v(), size: FromTo { from_bytes: 1 << 30, to_bytes: 2 << 30 } },
            "volume v has grown from 1.0G to 2.0G",
        ),
        (
            Told::WouldGrow {
                volume: v(),
                size: FromTo { from_bytes: 1 << 40, to_bytes: (1 << 40) + 4096 },
            },
            "would grow volume v from 1099511627776 bytes to 1099511631872 bytes",
        ),
        (
            Told::Detached { volume: v(), keeper: Keeper::Origin },
            "volume v is detached; its origin holds everything",
        ),
        (
            Told::Removed { volume: v(), keeper: keeper(Lack::LostBytes(1 << 20), true) },
            "volume v is removed; its tiers hold everything but 1.0M of it, which is lost; what \
             was chosen for it (pins of 2.0M, the pause) is kept here for the next volume create \
             with the same tiers, and is lost on another machine",
        ),
        (
            Told::Removed { volume: v(), keeper: keeper(Lack::Devices(names().0), false) },
            "volume v is removed; its tiers hold everything but what is on /dev/a, /dev/b, which \
             is missing, until the machine is started anew",
        ),
        (
            Told::Removed {
                volume: v(),
                keeper: Keeper::Nobody { devices: vec!["/dev/a".to_string()] },
            },
            "volume v is removed; what it held is gone with its memory; /dev/a may be used anew, \
             with --force",
        ),
        (
            Told::DegradedAction { hint: Hint::ListVolumes },
            "             see which there are: forebay volume list",
        ),
        (
            Told::Renumbered { tiers: Renumbered(vec![(2, 1), (3, 2)]) },
            "tier 2 is tier 1 now, tier 3 is tier 2 now",
        ),
        (
            Told::JobDone {
                job: JobKind::Mode,
                sent_bytes: Bytes(1 << 20),
                elapsed_ms: Milliseconds(1250),
            },
            "mode switch done: 1.0M sent home in 1.2 s",
        ),
        (
            Told::WouldLeave { dirty_bytes: Bytes(0), volume: v(), then: Then::RemoveReadable },
            "would send 0 of volume v home, but for what cannot be read, which is given up, and \
             forget it",
        ),
    ];
    for (told, line) in lines {
        assert_eq!(told.to_string(), line);
        let sent = serde_json::to_value(&told).unwrap();
        assert_eq!(serde_json::from_value::<Told>(sent).unwrap(), told);
    }
    let sent = serde_json::to_value(evacuate(pace("22:00-06:00"))).unwrap();
    let wanted = json!({
        "told": "would-evacuate",
        "used_bytes": 3_u64 << 30,
        "tier": 1,
        "devices": ["/dev/a", "/dev/b"],
        "whole_tier": true,
        "pace": {"moves": {
            "rate_bytes": 100 << 20,
            "seconds": 7199,
            "window": "22:00-06:00",
        }},
    });
    assert_eq!(sent, wanted);
}
