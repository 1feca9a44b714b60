//! What goes home of each volume: what happens to its slice, to the runs of that, and to those that
//! wait for it.

use crate::event::*;
use crate::ids::{Key, Written};
use crate::writeback::Writeback;
use crate::writeback::slice::{Home, Item, Place, Run, RunState, Slice};
use forebay_format::BLOCK_SIZE;
use forebay_format::io::Buf;

/// Runs of one block each.
fn one_by_one(items: impl Iterator<Item = Item>) -> impl Iterator<Item = Run> {
    items.map(|item| Run { items: vec![item], ..Run::default() })
}

impl Writeback {
    /// There is one more volume, whose origin has stripes of so many blocks, or none.
    pub(crate) fn volume_comes(&mut self, id: VolumeId, stripe_blocks: u32) {
        let at = self.find(id).expect_err("a number is used once");
        self.homes.insert(at, (id, Box::new(Home::new(stripe_blocks))));
    }

    /// A volume is gone, and nothing of it is on its way home.
    pub(crate) fn volume_leaves(&mut self, id: VolumeId) {
        let at = self.find(id).expect("each volume has one");
        self.homes.remove(at);
    }

    /// What goes home of a volume that is there.
    pub(crate) fn home(&self, id: VolumeId) -> &Home {
        &self.homes[self.find(id).expect("each volume has one")].1
    }

    fn find(&self, id: VolumeId) -> Result<usize, usize> {
        self.homes.binary_search_by_key(&id, |&(id, _)| id)
    }

    /// That of all volumes, by number.
    pub(crate) fn homes(&self) -> impl Iterator<Item = (VolumeId, &Home)> {
        self.homes.iter().map(|(id, home)| (*id, &**home))
    }

    fn at(&mut self, id: VolumeId) -> &mut Home {
        let at = self.find(id).expect("each volume has one");
        &mut self.homes[at].1
    }

    fn slice(&mut self, id: VolumeId) -> &mut Slice {
        self.at(id).slice.as_mut().expect("a slice is under way")
    }

    fn run(&mut self, id: VolumeId, at: usize) -> &mut Run {
        &mut self.slice(id).runs[at]
    }

    /// A slice begins that is `alone`, or not; so many FLUSHes of the origin had failed before.
    pub(super) fn slice_begins(
        &mut self,
        id: VolumeId,
        runs: Vec<Run>,
        failures: u64,
        alone: bool,
        now: Time,
    ) {
        let blocks = runs.iter().map(|run| run.items.len()).sum();
        let times = Slice { since: now, moved_at: now, ..Slice::default() };
        self.at(id).slice = Some(Slice { failures, blocks, runs, grows: true, alone, ..times });
    }

    /// These runs join it; without any it grows no more.
    pub(super) fn slice_grows(&mut self, id: VolumeId, runs: Vec<Run>) {
        let added: usize = runs.iter().map(|run| run.items.len()).sum();
        let slice = self.slice(id);
        slice.grows = added > 0;
        slice.blocks += added;
        slice.runs.extend(runs);
    }

    /// What has not begun of it stays where it is for now.
    pub(super) fn slice_is_cut(&mut self, id: VolumeId) {
        if let Some(slice) = &mut self.at(id).slice {
            slice.runs.truncate(slice.next);
            slice.blocks = slice.begun;
            slice.grows = false;
        }
    }

    /// The next run of the slice, if there is one and not too much is under way already.
    pub(super) fn next_run(&mut self, id: VolumeId, depth: usize) -> Option<usize> {
        let home = self.at(id);
        let most = home.slice_blocks();
        let slice = home.slice.as_mut()?;
        let full = slice.active >= depth || slice.flight >= most;
        if slice.next >= slice.runs.len() || full || slice.abandoned {
            return None;
        }
        slice.next += 1;
        Some(slice.next - 1)
    }

    /// The blocks of a run.
    pub(super) fn items(&self, id: VolumeId, at: usize) -> &[Item] {
        let slice = self.home(id).slice.as_ref().expect("a slice is under way");
        &slice.runs[at].items
    }

    /// It is read, into this buffer, in parts that count as one until all have begun.
    pub(super) fn run_begins(&mut self, id: VolumeId, at: usize, buf: Buf) {
        let slice = self.slice(id);
        let run = &mut slice.runs[at];
        slice.active += 1;
        slice.flight += run.items.len();
        slice.begun += run.items.len();
        (run.state, run.buf, run.pending) = (RunState::Reading, buf, 1);
    }

    /// It waits for one more part.
    pub(super) fn run_waits(&mut self, id: VolumeId, at: usize) {
        self.run(id, at).pending += 1;
    }

    /// Blocks of it, from `key` on, are here, but for the bad ones.
    pub(super) fn run_takes(
        &mut self,
        id: VolumeId,
        at: usize,
        key: Key,
        blocks: &[u8],
        bad: &[usize],
    ) {
        let run = self.run(id, at);
        let from = (key - run.items[0].key) as usize;
        let places = run.buf.bytes_mut()[from * BLOCK_SIZE..].chunks_exact_mut(BLOCK_SIZE);
        let blocks = blocks.chunks_exact(BLOCK_SIZE).zip(places).enumerate();
        for (_, (block, place)) in blocks.filter(|(n, _)| !bad.contains(n)) {
            place.copy_from_slice(block);
        }
    }

    /// A block of it cannot be read.
    pub(super) fn run_fails(&mut self, id: VolumeId, at: usize) {
        self.run(id, at).state = RunState::Failed;
    }

    /// A part of it is read. If all are: whether it is written next, or has failed.
    pub(super) fn part_read(&mut self, id: VolumeId, at: usize) -> Option<RunState> {
        self.run(id, at).part_ended(RunState::Writing)
    }

    /// What was read of it, to be written.
    pub(super) fn run_content(&mut self, id: VolumeId, at: usize) -> Buf {
        std::mem::take(&mut self.run(id, at).buf)
    }

    /// A write of it has ended. If all have: whether it is written, or has failed.
    pub(super) fn part_written(
        &mut self,
        id: VolumeId,
        at: usize,
        is_ok: bool,
        now: Time,
    ) -> Option<RunState> {
        self.slice(id).moved_at = now;
        let run = self.run(id, at);
        if !is_ok {
            run.state = RunState::Failed;
        }
        run.part_ended(RunState::Written)
    }

    /// It has ended, well or not. Its buffer.
    pub(super) fn run_ends(&mut self, id: VolumeId, at: usize) -> Buf {
        let slice = self.slice(id);
        slice.active -= 1;
        slice.flight -= slice.runs[at].items.len();
        std::mem::take(&mut slice.runs[at].buf)
    }

    /// It is not sent as it is. Its blocks.
    pub(super) fn run_is_split(&mut self, id: VolumeId, at: usize) -> Vec<Item> {
        std::mem::take(&mut self.run(id, at).items)
    }

    /// These blocks of the slice go home one by one.
    pub(super) fn sends_alone(&mut self, id: VolumeId, items: impl Iterator<Item = Item>) {
        self.slice(id).runs.extend(one_by_one(items));
    }

    /// A block that may be on its way home is in another place.
    pub(super) fn block_moved(&mut self, id: VolumeId, key: Key, from: Place, to: Place) {
        let Some(slice) = &mut self.at(id).slice else { return };
        match slice.moved.get_mut(&key) {
            Some([_, last]) if *last == from => *last = to,
            _ => drop(slice.moved.insert(key, [from, to])),
        }
    }

    /// The slice waits for a FLUSH of the origin that covers so many writes.
    pub(super) fn slice_flushes(&mut self, id: VolumeId, written: Written) {
        self.slice(id).flush = Some(written);
    }

    /// That FLUSH has ended. If the origin's answer says something of what the slice sent: whether
    /// the origin took any.
    ///
    /// Clients have the greater part of the time after a slice that had the origin alone, but for
    /// half where that `is_awaited`: somebody waits for room, or for the end of a drain.
    pub(super) fn slice_flushed(
        &mut self,
        id: VolumeId,
        flushed: bool,
        is_awaited: bool,
        now: Time,
    ) -> Option<bool> {
        let home = self.at(id);
        let slice = home.slice.as_mut().expect("there is one");
        slice.flushed = Some(flushed);
        // Reads that it found under way had their time from it.
        let (took, blocks) = (now - slice.quiet_at.unwrap_or(slice.since), slice.blocks);
        let wrote = slice.runs.iter().any(|run| run.state == RunState::Written);
        let (alone, abandoned) = (slice.alone, slice.abandoned);
        home.took(blocks, took);
        if alone {
            home.rests_until = now + if is_awaited { took } else { 3 * took };
        }
        (!abandoned).then_some(wrote)
    }

    /// One more run leaves a slice whose FLUSH has ended.
    pub(super) fn run_leaves(&mut self, id: VolumeId) -> Option<Run> {
        let slice = self.slice(id);
        let run = slice.runs.pop();
        slice.next = slice.runs.len();
        run
    }

    /// The slice is over: who waited for one looks again.
    pub(super) fn slice_is_over(&mut self, id: VolumeId) {
        self.at(id).over();
    }

    /// Nothing becomes clean any more: some of its runs leave a slice whose I/O has ended, which is
    /// over without them.
    pub(super) fn slice_dies(&mut self, id: VolumeId, most: usize) {
        let home = self.at(id);
        if let Some(slice) = home.slice.as_mut().filter(|slice| slice.active == 0) {
            slice.runs.truncate(slice.runs.len().saturating_sub(most));
            slice.next = slice.runs.len();
            if slice.runs.is_empty() {
                home.slice = None;
            }
        }
    }

    /// A request waits for the slice of a volume; whether it `needs` dirty blocks to go home.
    pub(crate) fn hurry(&mut self, id: VolumeId, needs: bool) {
        self.at(id).hurry(needs);
    }

    /// The origin of a volume is lost: nothing becomes clean by its slice any more.
    pub(crate) fn abandon(&mut self, id: VolumeId) {
        self.at(id).abandon();
    }

    /// The log can no longer say of anything that it is clean. Commands that waited for the ends of
    /// slices to give dirty blocks up.
    pub(crate) fn abandon_all(&mut self) -> Vec<CommandId> {
        self.homes.iter_mut().for_each(|(_, home)| home.abandon());
        self.homes.iter_mut().flat_map(|(_, home)| home.take_drops()).collect()
    }

    /// A command that gives dirty blocks up waits for the end of the slice.
    pub(crate) fn drop_later(&mut self, id: VolumeId, command: CommandId) {
        self.at(id).drop_later(command);
    }

    /// Those that wait go on.
    pub(crate) fn take_drops(&mut self, id: VolumeId) -> Vec<CommandId> {
        self.at(id).take_drops()
    }

    /// A read of the origin waits for the end of the slice.
    pub(super) fn hold(&mut self, id: VolumeId, read: Effect) {
        self.reads_held += 1;
        self.at(id).held.push(read);
    }

    /// A read of the origin has ended, and so many are under way or wait.
    pub(super) fn read_ended(&mut self, id: VolumeId, left: u32, now: Time) {
        self.at(id).read_ended(left, now);
    }

    /// Reads that wait no more, because the slice is over, takes too long or is `dead`.
    pub(super) fn release(&mut self, id: VolumeId, dead: bool, now: Time) -> Vec<Effect> {
        let home = self.at(id);
        if home.held.is_empty() || (!dead && home.holds_reads(now)) {
            return Vec::new();
        }
        let (held, cut) = (std::mem::take(&mut home.held), home.slice.is_some());
        self.holds_cut += u64::from(cut);
        held
    }
}
