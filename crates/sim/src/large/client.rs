//! The clients: what they ask, and whether the answers are right and in time (rule T).

use super::plan::Trouble;
use super::store::{Named, fill, parse};
use super::{
    Check, Client, Due, EXTRA_NS, FACTOR, LOOKS, Large, MILLISECOND, Role, Waiting, volume_id,
};
use crate::model::Violation;
use crate::rng::mix;
use forebay_engine::{
    Buf, Engine, Event, IoError, ORIGIN_HANGS_NS, Request, RequestId, RequestKind, STALL_NS_MAX,
    Time,
};
use forebay_format::{BLOCK_SIZE, SECTOR_SIZE};

impl Large {
    pub(super) fn client_turn(&mut self, client: usize) -> Check {
        let Client { volume, role } = self.clients[client];
        let of = &self.plan.volumes[volume];
        let (all, hot, most, writers) = (of.blocks, of.hot_blocks, of.blocks_max, of.writers);
        match role {
            _ if self.quiet && role != Role::Looker => Ok(()),
            Role::Looker => {
                if self.looked >= LOOKS {
                    return Ok(());
                }
                self.looked += 1;
                let block = self.rng.below(all);
                self.submit(client, RequestKind::Read, block, 1)
            }
            Role::Reader => {
                let block = self.rng.below(all);
                let blocks = self.rng.range(1, most).min(all - block);
                self.submit(client, RequestKind::Read, block, blocks)
            }
            Role::Writer { number, left: 1 } => {
                let left = self.plan.volumes[volume].flush_after;
                self.clients[client].role = Role::Writer { number, left };
                self.submit(client, RequestKind::Flush, 0, 0)
            }
            Role::Writer { number, left } => {
                let left = left.saturating_sub(1);
                self.clients[client].role = Role::Writer { number, left };
                // Each writer has stretches of its own: nobody else writes there.
                let stretches = (hot / most / writers).max(1);
                let stretch = self.rng.below(stretches) * writers + number;
                let block = (stretch * most).min(all - 1);
                let end = ((stretch + 1) * most).min(all);
                if stretch * most >= all {
                    return self.submit(client, RequestKind::Flush, 0, 0);
                }
                let blocks = self.rng.range(1, end - block);
                self.submit(client, RequestKind::Write, block, blocks)
            }
        }
    }

    pub(super) fn submit(
        &mut self,
        client: usize,
        kind: RequestKind,
        block: u64,
        blocks: u64,
    ) -> Check {
        let volume = self.clients[client].volume;
        self.next_id += 1;
        let id = RequestId(self.next_id);
        let len = blocks * BLOCK_SIZE as u64;
        let range = block as usize..(block + blocks) as usize;
        let known = &mut self.known[volume];
        let mut least = Vec::new();
        let mut buf = Buf::empty();
        match kind {
            RequestKind::Read => {
                least = known.acked[range].iter().map(|&version| version.into()).collect();
                buf = Buf::zeroed(len as usize);
            }
            RequestKind::Write => {
                buf = Buf::zeroed(len as usize);
                for (at, bytes) in range.zip(buf.bytes_mut().chunks_exact_mut(BLOCK_SIZE)) {
                    known.sent[at] += 1;
                    let version = known.sent[at].into();
                    fill(Named { volume: volume as u32, block: at as u32, version }, bytes);
                }
            }
            _ => {}
        }
        let waiting = Waiting { client, kind, block, blocks, since: self.now, least };
        self.requests.insert(id, waiting);
        let request = Request {
            volume: volume_id(volume),
            kind,
            offset: block * BLOCK_SIZE as u64,
            len,
            fua: false,
            buf,
        };
        self.feed(Event::Submit(id, request))
    }

    pub(super) fn reply(&mut self, id: RequestId, result: Result<(), IoError>, buf: Buf) -> Check {
        let Some(waiting) = self.requests.remove(&id) else {
            return Err(Violation::new("I", format!("{id:?} is answered, but nobody asked it")));
        };
        self.totals.requests += 1;
        self.answered_at = self.totals.steps;
        self.hash = mix(self.hash ^ id.0 ^ self.now << 20);
        let volume = self.clients[waiting.client].volume;
        let took = self.now - waiting.since;
        let at = match waiting.kind {
            RequestKind::Read => 0,
            RequestKind::Flush => 2,
            _ => 1,
        };
        self.worst[at] = self.worst[at].max(took);
        if at == 1 {
            let gap = self.now - self.wrote_at[volume].max(waiting.since);
            self.worst[3] = self.worst[3].max(gap);
            self.wrote_at[volume] = self.now;
        }
        self.check_time(&waiting, volume)?;
        let range = waiting.block as usize..(waiting.block + waiting.blocks) as usize;
        match (result, waiting.kind) {
            (Ok(()), RequestKind::Read) => {
                for (n, bytes) in buf.bytes().chunks_exact(BLOCK_SIZE).enumerate() {
                    self.check_block(volume, waiting.block + n as u64, bytes, waiting.least[n])?;
                }
                self.totals.sectors_read += waiting.blocks * (BLOCK_SIZE / SECTOR_SIZE) as u64;
            }
            (Ok(()), RequestKind::Write) => {
                let known = &mut self.known[volume];
                for at in range {
                    known.acked[at] = known.sent[at];
                }
            }
            (Ok(()), _) => {}
            (Err(error), _) => self.check_error(&waiting, volume, error)?,
        }
        self.engine().recycle(buf);
        let pause = match result {
            Ok(()) => self.rng.below(self.plan.volumes[volume].think_ns + 1),
            Err(_) => self.rng.below(100 * MILLISECOND),
        };
        let pause = self.until_burst(waiting.client, pause);
        self.schedule(pause, Due::Client(waiting.client));
        Ok(())
    }

    /// How long a client pauses that would pause so long, where writers write in bursts.
    fn until_burst(&self, client: usize, pause: Time) -> Time {
        let Client { volume, role } = self.clients[client];
        let burst_ns = self.plan.volumes[volume].burst_ns;
        match role {
            Role::Writer { number: 2.., .. } if burst_ns > 0 => {
                let into = self.now % burst_ns;
                if into > burst_ns / 8 { burst_ns - into } else { 0 }
            }
            _ => pause,
        }
    }

    pub(super) fn check_block(&self, volume: usize, block: u64, bytes: &[u8], least: u64) -> Check {
        let found = parse(bytes);
        let most = u64::from(self.known[volume].sent[block as usize]);
        let good = found.is_some_and(|named| {
            named.volume as usize == volume
                && u64::from(named.block) == block
                && (least..=most).contains(&named.version)
        });
        if good {
            return Ok(());
        }
        let text =
            format!("block {block} of volume {volume} holds {found:?}, not {least} to {most}");
        Err(Violation::new("L", text))
    }

    pub(super) fn check_error(
        &mut self,
        waiting: &Waiting,
        volume: usize,
        error: IoError,
    ) -> Check {
        let dead = self.caches.iter().filter(|disk| disk.dead).count();
        let expected = match self.plan.trouble {
            _ if !self.troubled => false,
            Trouble::OriginFails | Trouble::OriginHangs => volume == 0,
            Trouble::DeviceDies | Trouble::DeviceMissing => dead == self.caches.len(),
            Trouble::Nothing => false,
        };
        if expected {
            return Ok(());
        }
        let text = format!("{waiting:?} is answered with \"{error}\" without a reason");
        Err(Violation::new("E", text))
    }

    /// Rule T: how long a request may wait that was sent at this time.
    pub(super) fn bound(&self, waiting: &Waiting, volume: usize) -> Time {
        let clients = self.clients.len() as u64;
        let cache = self.caches.iter().map(|disk| disk.clock.worst_ns(clients)).max().unwrap_or(0);
        let bare = self.origins[volume].clock.worst_ns(clients) + cache;
        if !self.troubled {
            return bare + EXTRA_NS;
        }
        let sick = matches!(self.plan.trouble, Trouble::OriginFails | Trouble::OriginHangs);
        let writes = !matches!(waiting.kind, RequestKind::Read);
        let hope = match (self.plan.trouble, volume == 0 && sick) {
            // What waits for an origin waits for it as long as the engine has hope.
            (_, true) if writes => 2 * STALL_NS_MAX,
            // A read may wait behind a write of the same block.
            (Trouble::OriginHangs, true) => 2 * STALL_NS_MAX,
            // Others wait until it is seen that it hangs.
            (Trouble::OriginHangs, false) => ORIGIN_HANGS_NS,
            _ => 0,
        };
        FACTOR * (bare + EXTRA_NS) + hope
    }

    pub(super) fn check_time(&self, waiting: &Waiting, volume: usize) -> Check {
        let (took, bound) = (self.now - waiting.since, self.bound(waiting, volume));
        if took <= bound {
            return Ok(());
        }
        let text = format!(
            "{:?} of volume {volume} took {} ms; its disks explain {} ms",
            waiting.kind,
            took / MILLISECOND,
            bound / MILLISECOND
        );
        Err(Violation::new("T", text))
    }

    /// Rule T for those that still wait.
    pub(super) fn check_waits(&mut self) -> Check {
        let Some((_, oldest)) = self.requests.first_key_value() else { return Ok(()) };
        let volume = self.clients[oldest.client].volume;
        self.check_time(oldest, volume).map_err(|mut violation| {
            let engine = self.engine.as_ref().map(Engine::describe).unwrap_or_default();
            violation.text = format!("{} and more; {engine}", violation.text);
            violation
        })
    }
}
