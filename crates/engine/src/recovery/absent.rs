//! Devices that are absent at a start though nobody called them away. To serve without them calls
//! them away, and then what they hold is never used again: so nothing may be on them alone
//! (I15).

use crate::Mutant;
use crate::engine::Engine;
use crate::event::DeviceId;
use crate::ids::UnitId;
use crate::open_error::{OpenError, WhyClosed};
use crate::recovery::{LOG_WENT_ON, Opening};
use crate::volume::Volume;
use forebay_format::BLOCK_SIZE;

impl Opening {
    /// Refuses a start that would give up dirty data which is nowhere but on devices that may come
    /// back. (What is on such as were called away is lost already. A log that may have gone on on
    /// absent devices: see [`Opening::log_may_go_on`].)
    pub(super) fn absent_hold_nothing(&self, engine: &Engine) -> Result<(), OpenError> {
        if engine.is(Mutant::AbsentForgotten) {
            return Ok(());
        }
        let units = engine.segments.numbered();
        let held: Vec<(UnitId, u32)> = units
            .filter(|&(unit, it)| it.dirty > 0 && !engine.segments.has_copy(unit))
            .filter(|&(unit, _)| self.holders(engine, unit).next().is_some())
            .map(|(unit, it)| (unit, it.dirty))
            .collect();
        if held.is_empty() {
            return Ok(());
        }
        if self.log_may_go_on(engine) {
            // Then it is not all that they hold, and giving it up is no way on.
            return Err(LOG_WENT_ON.into());
        }
        let mut devices: Vec<DeviceId> =
            held.iter().flat_map(|&(unit, _)| self.holders(engine, unit)).collect();
        devices.sort_unstable();
        devices.dedup();
        let numbers: Vec<String> = devices.iter().map(|it| (it.0 + 1).to_string()).collect();
        let (numbers, count) = (numbers.join(", "), engine.segments.devices().len());
        let blocks: u64 = held.iter().map(|&(_, dirty)| u64::from(dirty)).sum();
        let kib = blocks * (BLOCK_SIZE as u64 >> 10);
        let name = engine
            .volumes
            .iter()
            .find(|it| engine.out_of_reach(it))
            .map_or("NAME", |it| &it.identity().name);
        let text = format!(
            "{kib} KiB of dirty data are only on what is missing: device {numbers} of {count}. \
             Bring it back, then `forebay volume attach {name}`. If it will never be back, and \
             these {kib} KiB are lost: `forebay volume attach {name} --keep-dirty` goes on with \
             the rest"
        );
        Err(OpenError { why: WhyClosed::DirtyIsAway, text })
    }

    /// The devices of a unit that may come back with what they hold.
    fn holders(&self, engine: &Engine, unit: UnitId) -> impl Iterator<Item = DeviceId> {
        let segments = engine.segments.segments_of(unit);
        let segments = segments.filter(|&it| !engine.segments.came_later(it));
        let devices = segments.map(|it| engine.segments.device_of(it));
        devices.filter(|&device| self.may_come_back(engine, device))
    }

    fn may_come_back(&self, engine: &Engine, device: DeviceId) -> bool {
        let index = usize::from(device.0);
        !engine.segments.devices()[index].healthy
            && engine.pool.header().devices[index].away.get() == 0
            && !self.given_up.contains(&device)
    }
}

impl Engine {
    fn out_of_reach(&self, volume: &Volume) -> bool {
        volume.dirty().iter_from(0).any(|block| {
            let located = self.map.get(volume.base() + block).expect("dirty blocks are there");
            !self.segments.has_copy(self.segments.of(located.slot))
        })
    }
}
