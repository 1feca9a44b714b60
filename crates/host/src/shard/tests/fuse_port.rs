//! A port at work without the kernel's FUSE: a socket that keeps messages apart takes the place of
//! `/dev/fuse`, and the test speaks the kernel's side of the protocol.

use super::*;
use crate::frontend::fuse::FuseSetup;
use crate::frontend::fuse::wire::{self, Agreed, opcode};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

/// The kernel's end.
struct Kernel(std::fs::File);

fn pair() -> (Kernel, OwnedFd) {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (kernel, ours) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    (Kernel(kernel.into()), ours)
}

impl Kernel {
    fn ask(&mut self, opcode: u32, unique: u64, args: &[u8]) {
        let len = (wire::IN_HEADER_BYTES + args.len()) as u32;
        let mut bytes = [len, opcode].map(u32::to_ne_bytes).concat();
        bytes.extend(unique.to_ne_bytes());
        bytes.extend(1_u64.to_ne_bytes());
        bytes.extend([0; 16]);
        bytes.extend(args);
        self.0.write_all(&bytes).unwrap();
    }

    fn ask_io(&mut self, opcode: u32, unique: u64, offset: u64, len: u32, data: &[u8]) {
        let mut args = [0, offset].map(u64::to_ne_bytes).concat();
        args.extend(len.to_ne_bytes());
        args.extend([0; 20]);
        args.extend(data);
        self.ask(opcode, unique, &args);
    }

    fn ask_range(&mut self, unique: u64, mode: i32, offset: u64, len: u64) {
        let mut args = [0, offset, len].map(u64::to_ne_bytes).concat();
        args.extend(mode.to_ne_bytes());
        args.extend([0; 4]);
        self.ask(opcode::FALLOCATE, unique, &args);
    }

    /// Name, error and body of the next reply.
    fn reply(&mut self) -> (u64, i32, Vec<u8>) {
        let mut bytes = vec![0; 2 << 20];
        let count = self.0.read(&mut bytes).unwrap();
        bytes.truncate(count);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(0) as usize, count);
        let unique = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
        (unique, word(4) as i32, bytes[16..].to_vec())
    }
}

fn attach(rig: &Rig, volume: VolumeId, taken_over: bool) -> (Kernel, u32) {
    let (kernel, device) = pair();
    let agreed = Agreed { minor: 45, flags: 0, bytes_max: 128 << 10 };
    let bytes = ORIGIN_BYTES;
    let setup = FuseSetup {
        device,
        volume,
        bytes: VolumeBytes::new(bytes),
        agreed,
        punch: true,
        taken_over,
    };
    let key = rig.shard.attach_port(PortSetup::Fuse(setup), SECONDS).unwrap();
    (kernel, key)
}

#[test]
fn requests_of_a_port_reach_the_volume_and_come_back() {
    on_both(|backend| {
        let rig = rig(backend);
        let volume = rig.add("disk");
        let (mut kernel, key) = attach(&rig, volume, false);
        assert_eq!(rig.shard.snapshot().unwrap().volumes[0].ports, 1);
        kernel.ask(opcode::GETATTR, 2, &[0; 16]);
        let (unique, error, body) = kernel.reply();
        assert_eq!((unique, error, body.len()), (2, 0, 104));
        assert_eq!(body[24..32], ORIGIN_BYTES.to_ne_bytes());
        // A short write has one part, a long one two.
        for (unique, len) in [(4, 4096), (6, 128 << 10)] {
            let data: Vec<u8> = (0..len).map(|n| (n / 512 % 251) as u8 + 1).collect();
            kernel.ask_io(opcode::WRITE, unique, 1 << 20, len, &data);
            let written = [len.to_ne_bytes(), [0; 4]].concat();
            assert_eq!(kernel.reply(), (unique, 0, written));
            kernel.ask_io(opcode::READ, unique + 100, 1 << 20, len, &[]);
            assert_eq!(kernel.reply(), (unique + 100, 0, data));
        }
        kernel.ask(opcode::FSYNC, 8, &[0; 16]);
        assert_eq!(kernel.reply(), (8, 0, Vec::new()));
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        kernel.ask_range(10, punch, 0, ORIGIN_BYTES);
        assert_eq!(kernel.reply(), (10, 0, Vec::new()));
        kernel.ask_io(opcode::READ, 12, 1 << 20, 4096, &[]);
        assert_eq!(kernel.reply(), (12, 0, vec![0; 4096]));
        // Requests that another owner read are asked for first of all.
        let (mut other, _) = attach(&rig, volume, true);
        assert_eq!(other.reply(), (0, wire::NOTIFY_RESEND, Vec::new()));
        rig.shard.detach_port(key, SECONDS).unwrap();
        assert_eq!(kernel.0.read(&mut [0; 16]).unwrap(), 0, "the device is closed");
        let error = rig.shard.detach_port(key, SECONDS).unwrap_err().to_string();
        assert!(error.contains("end the block device"), "{error}");
        rig.shard.stop(SECONDS).unwrap();
        assert_eq!(other.0.read(&mut [0; 16]).unwrap(), 0, "the stop closes it too");
    });
}

#[test]
fn many_requests_at_once_are_each_answered_once() {
    on_both(|backend| {
        let rig = rig(backend);
        let volume = rig.add("disk");
        let (mut kernel, _) = attach(&rig, volume, false);
        let block = |n: u64| vec![n as u8 + 1; 4096];
        // More than the port reads before it answers, and of all kinds.
        let count = 24;
        for n in 0..count {
            kernel.ask_io(opcode::WRITE, n, n * 4096, 4096, &block(n));
        }
        let mut written: Vec<_> = (0..count).map(|_| kernel.reply()).collect();
        written.sort();
        let reply = [4096_u32.to_ne_bytes(), [0; 4]].concat();
        assert_eq!(written, (0..count).map(|n| (n, 0, reply.clone())).collect::<Vec<_>>());
        for n in 0..count {
            match n % 4 {
                0 => kernel.ask(opcode::FSYNC, n, &[0; 16]),
                1 => kernel.ask_io(opcode::READ, n, ORIGIN_BYTES - 4096 + 100, 512, &[]),
                _ => kernel.ask_io(opcode::READ, n, n * 4096, 4096, &[]),
            }
        }
        let mut read: Vec<_> = (0..count).map(|_| kernel.reply()).collect();
        read.sort();
        let expected = (0..count).map(|n| match n % 4 {
            0 => (n, 0, Vec::new()),
            1 => (n, -libc::EINVAL, Vec::new()),
            _ => (n, 0, block(n)),
        });
        assert_eq!(read, expected.collect::<Vec<_>>());
        rig.shard.stop(SECONDS).unwrap();
        assert_eq!(kernel.0.read(&mut [0; 16]).unwrap(), 0, "nothing was answered twice");
    });
}

#[test]
fn a_name_leads_to_the_file_and_not_to_the_directory() {
    on_both(|backend| {
        let rig = rig(backend);
        let volume = rig.add("disk");
        let (mut kernel, _) = attach(&rig, volume, false);
        kernel.ask(opcode::LOOKUP, 2, b"forebay:disk\0");
        let (unique, error, body) = kernel.reply();
        assert_eq!((unique, error, body.len()), (2, 0, 128));
        let word = |at: usize| u64::from_ne_bytes(body[at..at + 8].try_into().unwrap());
        // Node, its size, and a mode of which the kernel remembers the kind.
        assert_eq!((word(0), word(40), word(48)), (2, 2, ORIGIN_BYTES));
        let mode = u32::from_ne_bytes(body[100..104].try_into().unwrap());
        assert_eq!(mode & libc::S_IFMT, libc::S_IFREG);
        drop(kernel);
        rig.shard.stop(SECONDS).unwrap();
    });
}

#[test]
fn what_a_port_cannot_do_is_an_error_and_not_the_end() {
    on_both(|backend| {
        let rig = rig(backend);
        let volume = rig.add("disk");
        let (mut kernel, _) = attach(&rig, volume, false);
        kernel.ask_io(opcode::READ, 2, 100, 512, &[]);
        assert_eq!(kernel.reply(), (2, -libc::EINVAL, Vec::new()));
        kernel.ask_io(opcode::READ, 4, ORIGIN_BYTES - 512, 4096, &[]);
        assert_eq!(kernel.reply(), (4, 0, vec![0; 512]));
        kernel.ask_io(opcode::WRITE, 6, ORIGIN_BYTES, 512, &[1; 512]);
        assert_eq!(kernel.reply(), (6, -libc::ENOSPC, Vec::new()));
        // The length of the data is not what the header says.
        kernel.ask_io(opcode::WRITE, 8, 0, 1024, &[1; 512]);
        assert_eq!(kernel.reply(), (8, -libc::EINVAL, Vec::new()));
        kernel.ask(opcode::WRITE, 9, &[]);
        assert_eq!(kernel.reply(), (9, -libc::EINVAL, Vec::new()));
        kernel.0.write_all(&[1, 2, 3]).unwrap();
        kernel.ask_range(10, 0, 0, 4096);
        assert_eq!(kernel.reply(), (10, -libc::EOPNOTSUPP, Vec::new()));
        kernel.ask_range(12, libc::FALLOC_FL_ZERO_RANGE, u64::MAX - 511, 1024);
        assert_eq!(kernel.reply(), (12, -libc::EINVAL, Vec::new()));
        const MKDIR: u32 = 9;
        kernel.ask(MKDIR, 14, b"\0\0\0\0\0\0\0\0name\0");
        assert_eq!(kernel.reply(), (14, -libc::ENOSYS, Vec::new()));
        kernel.ask(opcode::INTERRUPT, 15, &[0; 8]);
        kernel.ask(opcode::FLUSH, 16, &[0; 24]);
        assert_eq!(kernel.reply(), (16, 0, Vec::new()));
        // A volume that is gone answers errors; its port stays.
        let removed = rig.shard.command(Command::RemoveVolume(volume), SECONDS).unwrap();
        assert_eq!(removed, CommandReply::Changed);
        kernel.ask_io(opcode::READ, 18, 0, 512, &[]);
        assert_eq!(kernel.reply(), (18, -libc::ENODEV, Vec::new()));
        drop(kernel);
        rig.shard.stop(SECONDS).unwrap();
    });
}
