//! A guest and its machine, which write what they like into the rings, the descriptors, the
//! requests and the in-flight log of a virtqueue, at any time.
//!
//! What is taken is begun once and answered once, by the rings' own count; a queue that is broken
//! says so once; what one look takes has a bound; requests to the engine are of sane size; the
//! in-flight log's part of another queue stays as it is.

use crate::input::Input;
use forebay_engine::{Buf, IoError, Request, RequestKind};
use forebay_host::frontend::vhost::{BareQueue, BareSetup};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

const MEMORY_BYTES: u64 = 128 << 10;
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x6000;
/// Heads, indirect tables and data.
const REST: u64 = 0x8000;
/// Bytes of a part of a request, parts of one, and requests of one look.
const PART_BYTES: u64 = 1 << 20;
const PARTS_MAX: usize = 32;
const TAKE_MAX: usize = 64;
/// Bytes that may be under way, with the request that reaches that.
const BYTES_MAX: u64 = 96 << 20;

struct Guest {
    queue: BareQueue,
    size: u16,
    published: u16,
    under_way: BTreeMap<u32, Request>,
    /// Of each ring, where it began.
    began: (u16, u16),
    steps: usize,
}

impl Guest {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let len = (bytes.len() as u64).min(MEMORY_BYTES.saturating_sub(at));
        let written = self.queue.memory.write_all_at(&bytes[..len as usize], at);
        written.expect("memory takes it");
    }

    fn descriptor(&mut self, table: u64, index: u16, of: (u64, u32, u16, u16)) {
        let (address, len, flags, next) = of;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.write(table + 16 * u64::from(index), &bytes);
    }

    fn publish(&mut self, head: u16) {
        let slot = AVAILABLE + 4 + 2 * u64::from(self.published % self.size);
        self.write(slot, &head.to_le_bytes());
        self.published = self.published.wrapping_add(1);
        self.write(AVAILABLE + 2, &self.published.to_le_bytes());
    }

    /// A request as a driver makes it, with lengths and addresses of the input.
    fn request(&mut self, input: &mut Input) {
        let choice = input.byte();
        let first = u16::from(input.byte()) % self.size;
        let place = REST + 64 * u64::from(first);
        let mut head = [0; 16];
        head[0] = [0, 1, 4, 8, 11, 13, 2, 0xff][usize::from(choice & 7)];
        head[8..10].copy_from_slice(&input.word().to_le_bytes());
        self.write(place, &head);
        let len = match choice & 8 {
            0 => 512 * (1 + u32::from(input.byte() & 31)),
            _ => input.long() & 0x1ff_ffff,
        };
        let data = REST + 0x2000 + 16 * u64::from(input.byte());
        let flags = if matches!(choice & 7, 0 | 3) { 3 } else { 1 };
        let [second, third] = [1, 2].map(|n| (first + n) % self.size);
        let (table, [first_at, second_at, third_at]) = match choice & 16 {
            0 => (TABLE, [first, second, third]),
            _ => (place + 0x1000, [0, 1, 2]),
        };
        self.descriptor(table, first_at, (place, 16, 1, second_at));
        self.descriptor(table, second_at, (data, len, flags, third_at));
        self.descriptor(table, third_at, (place + 32, 1, 2, 0));
        if choice & 16 != 0 {
            self.descriptor(TABLE, first, (table, 48, 4, 0));
        }
        self.publish(first);
    }

    /// Something else is there now: rings, descriptors, anything.
    fn scribble(&mut self, input: &mut Input) {
        let region = [TABLE, AVAILABLE, USED, REST][input.below(4)];
        let at = region + input.below(512) as u64;
        let len = 1 + usize::from(input.byte() & 31);
        let bytes = input.bytes(len);
        self.write(at, bytes);
    }

    /// The log that is the machine's.
    fn scribble_log(&mut self, input: &mut Input) {
        let within = BareQueue::log_bytes(self.size);
        let (at, len) = (input.below(within), 1 + usize::from(input.byte() & 15));
        let bytes = input.bytes(len.min(within - at));
        if let Some(log) = &self.queue.log {
            log.write_all_at(bytes, at as u64).expect("memory takes it");
        }
    }

    fn take(&mut self) {
        let begun = self.queue.begun();
        assert!(begun.len() <= TAKE_MAX * PARTS_MAX);
        for (tag, request) in begun {
            assert!(request.offset.checked_add(request.len).is_some(), "{request:?}");
            let has_data = matches!(request.kind, RequestKind::Read | RequestKind::Write);
            assert!(!has_data || request.len <= PART_BYTES, "{request:?}");
            assert_eq!(request.buf.len() as u64, if has_data { request.len } else { 0 });
            assert!(self.under_way.insert(tag, request).is_none(), "a tag is one of a kind");
        }
        let held: u64 = self.under_way.values().map(|request| request.buf.len() as u64).sum();
        assert!(held <= BYTES_MAX, "{held} bytes under way");
        let (available, used, under_way) = self.queue.counts();
        let taken = available.wrapping_sub(self.began.0);
        let answered = used.wrapping_sub(self.began.1);
        let neither = taken.wrapping_sub(answered).wrapping_sub(under_way as u16);
        // What broke the queue is not answered, and what the log had behind it.
        let broken = self.queue.told() > 0;
        assert!(neither == 0 || broken && neither <= self.size, "{neither} taken and lost");
        assert!(under_way <= usize::from(self.size));
        assert!(self.queue.told() <= 1, "a queue breaks once");
        self.steps += 1;
    }

    fn answer(&mut self, at: usize, result: Result<(), IoError>) {
        let tag = self.under_way.keys().nth(at % self.under_way.len().max(1)).copied();
        let Some(tag) = tag else { return };
        let mut request = self.under_way.remove(&tag).expect("it was found there");
        if request.kind == RequestKind::Read {
            request.buf.bytes_mut().fill(0xda);
        }
        self.queue.complete(tag, result, std::mem::replace(&mut request.buf, Buf::empty()));
    }
}

/// What the log holds at first: nothing, or what the input says.
fn log(input: &mut Input, size: u16, choice: u8) -> Option<Vec<u8>> {
    let part = BareQueue::log_bytes(size);
    match choice & 12 {
        0 => None,
        4 => Some(vec![0xaa; 2 * part]),
        _ => {
            let mut bytes = vec![0xaa; 2 * part];
            // Its version, and its count.
            bytes[8..16].copy_from_slice(&[1, 0, size as u8, (size >> 8) as u8, 0, 0, 0, 0]);
            for state in bytes[16..part].chunks_exact_mut(16) {
                state.fill(0);
                state[0] = u8::from(input.byte() & 3 == 3);
                state[8] = input.byte();
            }
            Some(bytes)
        }
    }
}

/// The target.
pub fn run(bytes: &[u8]) {
    let input = &mut Input(bytes);
    let choice = input.byte();
    let size = [4, 8, 16, 64][usize::from(choice & 3)];
    let base = if choice & 16 != 0 { u16::MAX - 2 } else { 0 };
    let log = log(input, size, choice);
    let has_log = log.is_some();
    let places = [TABLE, AVAILABLE, USED];
    let setup = BareSetup { memory_bytes: MEMORY_BYTES, size, places, base, log };
    let queue = BareQueue::new(setup).expect("memory for a queue");
    let under_way = BTreeMap::new();
    let began = (base, base);
    let mut guest = Guest { queue, size, published: base, under_way, began, steps: 0 };
    guest.write(AVAILABLE + 2, &base.to_le_bytes());
    guest.write(USED + 2, &base.to_le_bytes());
    if choice & 32 != 0 {
        (0..3).for_each(|_| guest.request(input));
    }
    if guest.queue.start().is_err() {
        return;
    }
    guest.take();
    while !input.is_empty() && guest.steps < 400 {
        match input.byte() {
            0..=79 => guest.request(input),
            80..=119 => guest.scribble(input),
            120..=129 if has_log => guest.scribble_log(input),
            120..=159 => drop(guest.queue.look()),
            160..=174 => drop(guest.queue.park()),
            175..=189 => guest.queue.kick(),
            190..=199 => {
                let head = input.word();
                guest.publish(head);
            }
            choice => {
                let at = input.below(256);
                guest.answer(at, if choice < 245 { Ok(()) } else { Err(IoError::Io) });
            }
        }
        guest.take();
    }
    while !guest.under_way.is_empty() {
        guest.answer(0, Ok(()));
    }
    guest.take();
    assert_eq!(guest.queue.counts().2, 0, "all is answered");
    if let Some(log) = &guest.queue.log {
        let part = BareQueue::log_bytes(size);
        let mut other = vec![0; part];
        log.read_exact_at(&mut other, part as u64).expect("it is there");
        assert!(other.iter().all(|&byte| byte == 0xaa), "the log of another queue");
    }
}
