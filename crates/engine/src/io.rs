//! The border with the executor: the time and the ends of I/Os that come in, the effects that go
//! out, and the buffers that these carry. What a call costs is counted here too: what grows with
//! what the pool holds goes in slices, and rule C of the simulator holds every call to a bound.
//!
//! Time never goes back, and each I/O ends once.

use crate::event::*;
use crate::limits::{BUFFERS_HELD_MAX, SETTLE_STEPS};
use crate::op::Op;
use crate::slab::Slab;
use forebay_format::POOL_DEVICES_MAX;
use forebay_format::io::{Buf, BufPool};
use std::cell::Cell;

/// See the top of the file.
pub(crate) struct Io {
    now: Time,
    tick_at: Option<Time>,
    /// Entries, items and blocks that the call under way has looked at.
    steps: Cell<u64>,
    ops: Slab<(Op, Option<DeviceId>)>,
    /// Writes and FLUSHes under way on each cache device.
    on_device: [u32; POOL_DEVICES_MAX],
    out: Vec<Effect>,
    buffers: BufPool,
}

impl Io {
    /// Nothing under way.
    pub(crate) fn new(now: Time) -> Io {
        Io {
            now,
            tick_at: None,
            steps: Cell::default(),
            ops: Slab::default(),
            on_device: [0; POOL_DEVICES_MAX],
            out: Vec::new(),
            buffers: BufPool::new(BUFFERS_HELD_MAX),
        }
    }

    /// A call begins.
    pub(crate) fn begin(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.steps.set(0);
    }

    /// The call ends: what it put out.
    pub(crate) fn end(&mut self, out: &mut Vec<Effect>) {
        out.append(&mut self.out);
    }

    /// When the call began.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// The call has looked at so many more.
    pub(crate) fn did(&self, steps: usize) {
        self.steps.set(self.steps.get() + steps as u64);
    }

    /// What the last call has looked at.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Whether this call has done its share: the rest waits for the next.
    pub(crate) fn is_enough(&self) -> bool {
        self.steps() >= SETTLE_STEPS
    }

    /// The next tick is wanted then at the latest.
    pub(crate) fn tick(&mut self, at: Option<Time>) {
        self.tick_at = at;
    }

    /// See [`Io::tick`].
    pub(crate) fn tick_at(&self) -> Option<Time> {
        self.tick_at
    }

    /// A buffer of so many bytes.
    pub(crate) fn take(&mut self, len: usize) -> Buf {
        self.buffers.take(len)
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buf: Buf) {
        self.buffers.give(buf);
    }

    /// Frees buffers that are only kept to be used again.
    pub(crate) fn trim(&mut self) {
        self.buffers.trim();
    }

    /// Names an I/O that begins.
    #[inline]
    pub(crate) fn op(&mut self, op: Op) -> OpId {
        OpId(self.ops.insert((op, None)))
    }

    fn op_on(&mut self, op: Op, target: Target) -> OpId {
        let Target::Cache(device) = target else { return self.op(op) };
        self.on_device[usize::from(device.0)] += 1;
        OpId(self.ops.insert((op, Some(device))))
    }

    /// An I/O has ended.
    pub(crate) fn ended(&mut self, op: OpId) -> Op {
        let (op, device) = self.ops.remove(op.0).expect("each I/O ends once");
        if let Some(device) = device {
            self.on_device[usize::from(device.0)] -= 1;
        }
        op
    }

    /// Whether a write or a FLUSH is under way on a cache device. (What is read is verified.)
    pub(crate) fn awaits(&self, device: DeviceId) -> bool {
        self.on_device[usize::from(device.0)] > 0
    }

    /// Those under way.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &Op> {
        self.ops.iter().map(|(_, (op, _))| op)
    }

    /// Reads into a buffer.
    pub(crate) fn read(&mut self, op: Op, target: Target, offset: u64, buf: Buf) {
        let op = self.op(op);
        self.put(Effect::Read { op, target, offset, buf });
    }

    /// Writes a buffer.
    pub(crate) fn write(&mut self, op: Op, target: Target, offset: u64, buf: Buf) {
        let op = self.op_on(op, target);
        self.put(Effect::Write { op, target, offset, buf });
    }

    /// Flushes.
    pub(crate) fn flush(&mut self, op: Op, target: Target) {
        let op = self.op_on(op, target);
        self.put(Effect::Flush { op, target });
    }

    /// Tells a target that bytes are free.
    pub(crate) fn discard(&mut self, op: Op, target: Target, offset: u64, len: u64) {
        let op = self.op_on(op, target);
        self.put(Effect::Discard { op, target, offset, len });
    }

    /// Tells an administrator.
    pub(crate) fn notify(&mut self, notice: Notice) {
        self.put(Effect::Notice(notice));
    }

    /// Puts an effect out.
    pub(crate) fn put(&mut self, effect: Effect) {
        self.out.push(effect);
    }

    /// Effects that the call has put out so far.
    pub(crate) fn count(&self) -> usize {
        self.out.len()
    }
}
