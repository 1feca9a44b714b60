//! What was done, would be, or is asked first, as types: a program acts on the fields, and for
//! people there is one line of text for each, which is declared beside it.

mod parts;

use crate::hint::Bytes;
use crate::lines::lines;
use crate::reply::JobKind;
use crate::tiers::{Placement, TierPart};
use crate::{Hint, Mode};
pub use parts::{
    Choices, Destroyed, Ephemeral, FromTo, GuestSees, IsHere, Keeper, KeptHere, Lack, MayBeLost,
    Milliseconds, MissingDevice, Names, OnDevice, Overcommit, Pace, PartInFull, Paths, Renumbered,
    Then, Times, UsePercent, how_long,
};

lines! {
    /// One thing that was done, would be, or is asked first. `"told"` tells which.
    Told by "told" {
        // A pool.
        PoolIsOpen { pool: String } = "pool {pool} is open",
        PoolOpened { pool: String, capacity_bytes: Bytes } =
            "pool {pool} ({capacity_bytes}) was on the devices; it is open now",
        PoolMade { pool: String, capacity_bytes: Bytes } =
            "pool {pool} made: {capacity_bytes} of cache",
        PoolForgotten { pool: String } =
            "pool {pool} is forgotten; its devices could not be reached",
        PoolDestroyed { pool: String, devices: Paths } = "pool {pool} is no longer on {devices}",
        NotWiped { device: String, why: String } = "{device} was not wiped: {why}",
        WouldReplaceDevice { pool: String, old: String, new: String, holds: Names } =
            "would put {new} in the place of {old} in the pool {pool}, and overwrite what it \
             holds: {holds}",
        DeviceReplaced { pool: String, old: String, new: String } =
            "{new} has the place of {old} in the pool {pool}",
        WouldOpenPool { pool: String } = "would open the pool {pool} that is on the devices",
        AgeUnknown =
            "nothing here tells whether that is its newest state: what it holds clean is read from \
             the origins again, and if it holds dirty data, it is refused without --keep-dirty",
        WouldKeepDirty = "would go on with the dirty data that it holds, whatever its age is",
        WouldMakePool { pool: String } = "would make the pool {pool}",
        WouldOverwrite { pool: String } = "would overwrite what is there with the pool {pool}",
        WouldBeRefused =
            "would be refused: what is there is overwritten only with --force",
        WouldDestroyPool { pool: String, devices: Paths } =
            "would take the pool {pool} off {devices}",
        WouldUsePool { pool: String } = "would use the pool {pool}",
        WouldReopenPool { pool: String } = "would open the pool {pool} again",
        WouldTryPool { pool: String, why: String } =
            "would try to open the pool {pool}, which is closed: {why}",
        WouldGiveUpAway { why: String } = "would give up what only they hold: {why}",
        WouldGoOn { why: String } = "would go on with what is here: {why}",

        // A volume that comes, and how it is used.
        WouldPutBefore { origin: String, volume: String } =
            "would put it in front of {origin} as volume {volume}",
        WouldMakeVolume {
            volume: String, size_bytes: Bytes, origin: String, pool: String, mode: Mode
        } = "would make volume {volume}: {size_bytes} of {origin}, pool {pool}, {mode}",
        IsThere { volume: String } = "volume {volume} is there already: nothing would be done",
        Cached {
            volume: String, size_bytes: Bytes, origin: String, cache_bytes: Bytes, mode: Mode
        } = "volume {volume}: {size_bytes} of {origin} behind {cache_bytes} of cache, {mode}",
        OnTiers { volume: String, size_bytes: Bytes } =
            "volume {volume}: {size_bytes} on tiers, without a cache",
        Degraded { why: String } = "degraded     {why}",
        AlsoDegraded { why: String } = "             {why}",
        DegradedAction { hint: Hint } = "             {hint}",
        UseAt { device: String } = "use it at    {device}",
        Holds { content: String } = "it holds     {content}",
        Mount { device: String } = "             sudo mount {device} /mnt",
        TryMkfs { device: String } = "try it       sudo mkfs.ext4 {device}  (erases it)",
        ReachGuest { path: String } = "reach it at  {path} (vhost-user-blk)",
        GuestMemory =
            "in a VM      -object memory-backend-memfd,id=ram,size=1G,share=on -machine \
             memory-backend=ram",
        GuestDisk { path: String } =
            "             -chardev socket,id=disk,path={path},reconnect-ms=500 -device \
             vhost-user-blk-pci,chardev=disk",
        ReachAt { uri: String } = "reach it at  {uri}",
        TryNbdinfo { uri: String } = "try it       nbdinfo '{uri}'",
        AsFile { volume: String, uri: String } =
            "as a file    nbdfuse MOUNTPOINT/{volume} '{uri}'",
        AsDisk { socket: String, volume: String } =
            "as a disk    sudo nbd-client -unix {socket} -N {volume} /dev/nbd0",
        AsGuestDisk { socket: String, volume: String } =
            "in a VM      -drive driver=nbd,server.type=unix,server.path={socket},export={volume}",
        Watch = "watch it     forebay status; forebay iostat 1",
        OriginIsMounted { line: usize, table: String, what: String, place: String } =
            "beware       line {line} of {table} mounts {what} at {place}:",
        MountVolume { volume: String } =
            "             that is the origin, without what is in the cache alone; mount the volume \
             there (/dev/forebay/{volume}, where it is a block device)",
        InService { volume: String } = "volume {volume} is in service: nothing was changed",
        StaysInService { volume: String } = "{volume} is in service: nothing would be done",
        WouldAttach { volume: String, pool: String } =
            "would attach {volume}, if there is a pool {pool}",
        WouldBringBack { volume: String } = "would bring {volume} back into service",
        WouldSendToChanged { volume: String, dirty_bytes: Bytes } =
            "would bring {volume} back into service: {dirty_bytes} of dirty data is for the origin \
             as it is now, and what else is cached is forgotten",
        WouldMoveTo { volume: String, origin: String, dirty_bytes: Bytes } =
            "would bring {volume} back into service on {origin}: {dirty_bytes} of dirty data is \
             for that, and what else is cached is forgotten",
        MovedTo { volume: String, was: String } =
            "{volume} was on {was} before: that is no longer used",
        WouldForgetCached { volume: String } =
            "would bring {volume} back into service: its origin was changed, and what is cached of \
             it is forgotten",
        WouldLoseDirty { volume: String, dirty_bytes: Bytes } =
            "would give up {dirty_bytes} of dirty data of volume {volume}, which is lost: what is \
             cached of it is forgotten",

        // Its size.
        HasSize { volume: String, size_bytes: Bytes } = "volume {volume} has {size_bytes} already",
        WouldGrow { volume: String, size: FromTo } = "would grow volume {volume} {size}",
        Grown { volume: String, size: FromTo } = "volume {volume} has grown {size}",
        MapIsFull { room_bytes: Bytes } =
            "the map has room for {room_bytes}: more than that needs a new volume",
        GuestSees { when: GuestSees } = "{when}",
        ClientsSee = "clients see it when they connect again",
        GrowContent { device: String } = "grow what is on it, for example: resize2fs {device}",
        OldSizeShown { device: String, why: String } = "{device} still shows the old size: {why}",

        // Its mode, and jobs.
        InMode { volume: String, mode: Mode } = "volume {volume} is in mode {mode}",
        WouldSwitchMode { volume: String, from: Mode, to: Mode } =
            "would switch volume {volume} from {from} to {to}",
        WouldDrainAndSwitch { dirty_bytes: Bytes, volume: String, from: Mode, to: Mode } =
            "would send {dirty_bytes} home and switch volume {volume} from {from} to {to}",
        ModeSwitched { volume: String } = "volume {volume} switched its mode",
        NoDirty { volume: String } = "volume {volume} has no dirty data",
        WouldDrain { dirty_bytes: Bytes, volume: String } =
            "would send {dirty_bytes} of volume {volume} home",
        Drained { volume: String, sent_bytes: Bytes } =
            "volume {volume} has no dirty data: {sent_bytes} sent home",
        JobStarted { job: JobKind, volume: String } = "{job} of volume {volume} started",
        JobDone { job: JobKind, sent_bytes: Bytes, elapsed_ms: Milliseconds } =
            "{job} done: {sent_bytes} sent home in {elapsed_ms}",
        AskedToStop { job: JobKind } = "asked the {job} to stop",
        NoJob { volume: String } = "no job runs for volume {volume}",

        // A volume that leaves.
        IsDetached { volume: String } = "volume {volume} is detached",
        Detached { volume: String, keeper: Keeper } = "volume {volume} is detached; {keeper}",
        Removed { volume: String, keeper: Keeper } = "volume {volume} is removed; {keeper}",
        NotWaitedFor { devices: Names, seconds: u64 } =
            "{devices} has not answered for {seconds} s and is not waited for: what is under way \
             there fails, and may still be written when it answers",
        RemovedWithLoss { volume: String, lost_bytes: Bytes } =
            "volume {volume} is removed; {lost_bytes} of dirty data is lost",
        UnreadableLost = "what could not be read of its dirty data is lost",
        Forgotten { volume: String } = "volume {volume} is forgotten",
        ChosenKept { chosen: KeptHere } = "{chosen}",
        DeviceEnded { volume: String } =
            "the block device of volume {volume} is gone: its users get errors",
        StillNotServed { why: String } = "it is still not served: {why}",
        WouldEndDevice { volume: String } =
            "would end the block device of volume {volume}: its users get errors",
        WouldLeave { dirty_bytes: Bytes, volume: String, then: Then } =
            "would send {dirty_bytes} of volume {volume} home{then}",
        WouldGiveUp { lost_bytes: Bytes, volume: String } =
            "would give up {lost_bytes} of dirty data of volume {volume}, which is lost, and \
             forget it",
        WouldForget { volume: String, lost: MayBeLost } = "would forget the volume {volume}{lost}",
        TiersWouldKeep =
            "its tiers would keep what it holds: volume create with the same tiers serves it",
        WouldBeLost = "what it holds would be lost",

        // Tiers.
        WouldMakeTiers {
            volume: String, size_bytes: Bytes, tiers: usize, placement: Placement,
            ephemeral: Ephemeral
        } = "would make volume {volume}: {size_bytes} on {tiers} tiers, {placement}{ephemeral}",
        TierDevice { tier: u8, device: String, data_bytes: Bytes, use_percent: UsePercent } =
            "  tier {tier}  {device}: {data_bytes} for data{use_percent}",
        WouldServe { volume: String } = "would serve the volume {volume} that is on these devices",
        ServedAgain { volume: String } = "volume {volume} was on the devices; it is served again",
        Lacks { missing: MissingDevice } = "{missing}: what lives there cannot be read",
        AsBefore { chosen: Choices } = "as before: {chosen}",
        ChosenUnknown { volume: String } =
            "what was chosen for it (pins, rate, window, pause) is not known here, and defaults \
             apply: forebay tier set {volume}",
        DeviceRenamed { was: String, tier: u8, device: String } =
            "{was}, on tier {tier}, is {device} now",
        WouldUseAgain { devices: Names } = "would use {devices} again, which was missing",
        UsedAgain { devices: Names } = "{devices} is used again",
        WouldAddDevice { device: String, data_bytes: Bytes, volume: String, tier: u8 } =
            "would add {device} ({data_bytes}) to volume {volume}, as tier {tier}",
        DeviceAdded { volume: String, data_bytes: Bytes, device: String, tier: u8 } =
            "volume {volume} has {data_bytes} more, on {device}, tier {tier}",
        ToUseIt { volume: String, size_mib: u64 } =
            "to use it: forebay volume resize {volume} --size {size_mib}M",
        DeviceIsThere { device: String, volume: String } =
            "{device} is a device of the tiers of volume {volume}",
        IsNoDevice { device: String, volume: String } =
            "{device} is no device of volume {volume}: it was being added or removed when that was \
             cut short; it is not remembered any more",
        WouldEvacuate { used_bytes: Bytes, #[serde(flatten)] part: PartInFull, pace: Pace } =
            "would move {used_bytes} off {part}; {pace}",
        Evacuates { used_bytes: Bytes, #[serde(flatten)] part: TierPart } =
            "{used_bytes} are moving off {part}",
        EvacuatesAlready { left_bytes: Bytes, #[serde(flatten)] part: TierPart } =
            "{left_bytes} are moving off {part} already",
        HowFar { volume: String } = "how far it is: forebay tier show {volume}",
        TierIsEmpty { #[serde(flatten)] part: TierPart } = "{part} is empty",
        TierWasEmpty { #[serde(flatten)] part: TierPart } = "{part} is empty already",
        Evacuated { #[serde(flatten)] part: TierPart, volume: String } =
            "{part} of {volume} is empty",
        LargerThanTiers { volume: String, size_bytes: Bytes, rest_bytes: Bytes } =
            "volume {volume} has {size_bytes}, and what is left holds {rest_bytes}: writes fail \
             when they are full",
        TierIsInUse { #[serde(flatten)] part: TierPart } = "{part} is in use",
        WouldUseTier { #[serde(flatten)] part: TierPart } = "would use {part} again",
        TierUsedAgain { #[serde(flatten)] part: TierPart } = "{part} is in use again",
        WouldRemoveTier { #[serde(flatten)] part: PartInFull } = "would remove {part}",
        TierRemoved { tier: u8, volume: String, devices: Names } =
            "tier {tier} of volume {volume} is gone; {devices} is free",
        DevicesRemoved { tier: u8, volume: String, devices: Names } =
            "{devices} is free: tier {tier} of volume {volume} goes on without it",
        Renumbered { tiers: Renumbered } = "{tiers}",
        WouldGiveUpDevice { device: String, is_here: IsHere, lost_bytes: Bytes } =
            "would give up {device}{is_here}, and at most {lost_bytes} that lived there",
        DeviceGivenUp { device: String, volume: String, lost_bytes: Bytes } =
            "{device} is no device of volume {volume} any more: {lost_bytes} that lived there is \
             lost, and fails to be read until it is written again or discarded",
        PinsWait { why: String } = "{why}: what has no room there waits for it",
        Pinned { pinned_bytes: Bytes, volume: String, tier: u8 } =
            "{pinned_bytes} of volume {volume} live on tier {tier}, where it has room",
        Unpinned { unpinned_bytes: Bytes, volume: String } =
            "{unpinned_bytes} of volume {volume} live where they would",
        Placed {
            volume: String, placement: Placement, rate_bytes: Bytes, window: Times,
            overcommit: Overcommit
        } =
            "volume {volume}: placement {placement}, moves of {rate_bytes}/s at \
             most{window}{overcommit}",
        Paused { volume: String } =
            "nothing moves in volume {volume} until forebay tier resume {volume}",
        Resumed { volume: String, window: Times } =
            "volume {volume} moves what should move{window}",

        // What is asked first.
        ContentLost { volume: String, lost_bytes: Bytes } =
            "volume {volume} is ephemeral: what it holds, {lost_bytes}, is lost with it",
        Destroys { what: Destroyed } = "this destroys {what}",
        EndsWithMachine { volume: String, devices: Names } =
            "all that volume {volume} holds, on every tier, will be lost when this machine is \
             started anew, since {devices} is memory",
    }
}

#[cfg(test)]
mod tests;
