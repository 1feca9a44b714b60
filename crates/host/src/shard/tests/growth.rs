//! A volume that grows while it is in use.

use super::*;

const MORE: u64 = 4 << 20;

fn resize(rig: &Rig, volume: VolumeId, bytes: u64) -> CommandReply {
    rig.shard.command(Command::Resize(volume, bytes), SECONDS).unwrap()
}

#[test]
fn what_is_behind_the_old_end_is_cached_too_and_survives_a_restart() {
    on_both(|backend| {
        let rig = rig(backend);
        let volume = rig.add_as("disk", &new_file(&rig, "disk"), Mode::WriteBack);
        let path = rig.dir.path().join("disk");
        let socket = rig.listen();
        let mut old = Client::connect(&socket, "disk");
        old.send(wire::Command::Write, 1, ORIGIN_BYTES, 4096, &[9; 4096]);
        assert_ne!(old.reply().0, 0, "behind the end");
        assert_eq!(rig.shard.origin_bytes(volume).unwrap(), Some(ORIGIN_BYTES));
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(ORIGIN_BYTES + MORE)
            .unwrap();
        assert_eq!(rig.shard.origin_bytes(volume).unwrap(), Some(ORIGIN_BYTES + MORE));

        assert_eq!(resize(&rig, volume, ORIGIN_BYTES), CommandReply::Unchanged);
        let smaller = resize(&rig, volume, ORIGIN_BYTES - 4096);
        assert!(matches!(&smaller, CommandReply::Failed(why) if why.contains("smaller")));
        assert_eq!(resize(&rig, volume, ORIGIN_BYTES + MORE), CommandReply::Changed);
        rig.server.exports.find("disk").unwrap().bytes.grow(ORIGIN_BYTES + MORE);
        // A client that is connected may go there too, once it knows.
        old.send(wire::Command::Write, 2, ORIGIN_BYTES + MORE - 4096, 4096, &[9; 4096]);
        assert_eq!(old.reply(), (0, 2));
        old.send(wire::Command::Flush, 3, 0, 0, &[]);
        assert_eq!(old.reply(), (0, 3));
        let snapshot = rig.shard.snapshot().unwrap();
        assert_eq!(snapshot.volumes[0].view.bytes, ORIGIN_BYTES + MORE);
        assert!(snapshot.volumes[0].stats.dirty_blocks > 0, "it is in the cache, not at home");
        rig.shard.stop(SECONDS).unwrap();

        let Rig { dir, server, .. } = rig;
        let origins = vec![(volume, Origin::open(path.to_str().unwrap()).unwrap())];
        let mut rig = start_on(&dir, dir.path().join("cache1"), origins, 1, backend, &server);
        rig.dir = dir;
        let answer =
            rig.ask(volume, RequestKind::Read, ORIGIN_BYTES + MORE - 4096, Buf::zeroed(4096));
        assert_eq!((answer.result, answer.buf.bytes()), (Ok(()), &[9; 4096][..]));
        let behind = rig.ask(volume, RequestKind::Read, ORIGIN_BYTES + MORE, Buf::zeroed(4096));
        assert!(behind.result.is_err());
    });
}

fn new_file(rig: &Rig, name: &str) -> String {
    let path = rig.dir.path().join(name);
    create_file(&path, ORIGIN_BYTES).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The second volume does not stand in the way of the first; an odd end does.
#[test]
fn volumes_grow_beside_each_other_but_not_from_within_a_block() {
    let rig = rig(Backend::Auto);
    let (first, second) = (rig.add("first"), rig.add("second"));
    let grow = |name: &str, bytes: u64| {
        let file = std::fs::File::options().write(true).open(rig.dir.path().join(name)).unwrap();
        file.set_len(bytes).unwrap();
    };
    grow("first", 1 << 30);
    assert_eq!(resize(&rig, first, 1 << 30), CommandReply::Changed);
    grow("second", ORIGIN_BYTES + 512);
    assert_eq!(resize(&rig, second, ORIGIN_BYTES + 512), CommandReply::Changed);
    grow("second", ORIGIN_BYTES + 8192);
    let odd = resize(&rig, second, ORIGIN_BYTES + 8192);
    assert!(
        matches!(&odd, CommandReply::Failed(why) if why.contains("multiple of 4096")),
        "{odd:?}"
    );
    for volume in [first, second] {
        assert_eq!(rig.ask(volume, RequestKind::Write, 0, filled(4096, 3)).result, Ok(()));
    }
    let answer = rig.ask(first, RequestKind::Read, (1 << 30) - 4096, Buf::zeroed(4096));
    assert_eq!(answer.buf.bytes(), [0; 4096]);
    rig.shard.stop(SECONDS).unwrap();
}
