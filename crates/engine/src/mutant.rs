//! Known bugs, to be put back one at a time by a test that shows that the simulator catches each.
//! Without the feature `mutants` none of them can be switched on.

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A bug.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutant { $($(#[$doc])* $name,)* }
        impl Mutant {
            /// All of them.
            pub const ALL: &'static [Mutant] = &[$(Mutant::$name,)*];
        }
    };
}

mutants! {
    /// A read joins one that a write has overtaken.
    JoinOvertaken,
    /// A read that a write has overtaken fills the cache all the same.
    StaleFill,
    /// Blocks become clean without a FLUSH of the origin.
    CleanBeforeOriginFlush,
    /// A segment is used again although a roll-forward still needs its records.
    ReuseBeforeCheckpoint,
    /// A segment is used again before what says that it is empty is durable.
    ReuseBeforeDurable,
    /// A segment can be opened while its device is told that it is free.
    DiscardOfOpen,
    /// A FLUSH is answered without a FLUSH of the cache device.
    FlushSkipsDevice,
    /// A FLUSH of a cache device counts for what was written while it was under way.
    FlushCoversLate,
    /// A FLUSH of a cache device that failed is tried again, and then counts.
    FlushTriedAgain,
    /// A FLUSH does not reach the origin although data was written there.
    FlushSkipsOrigin,
    /// A FUA write is answered as if it were an ordinary one.
    FuaIgnored,
    /// Writes are acknowledged in the order in which records end, not in the order of the log.
    AckOutOfOrder,
    /// A write is acknowledged when it is gathered, before its record is written.
    AckBeforeWrite,
    /// Blocks are sent home although their record is not durable.
    WritebackUndurable,
    /// What is read from a cache device is not verified.
    ChecksumIgnored,
    /// A dirty block that cannot be read is answered with what the origin holds.
    StaleOnBadDirty,
    /// The old sectors win when a part of a block is written.
    MergeWrong,
    /// A part of a block replaces the whole.
    MaskIgnored,
    /// Regions are not marked before the origin is written.
    NoIntent,
    /// Marked regions are not dropped after a crash.
    RegionsKept,
    /// A range of zeros at the origin is not marked.
    ZeroUnmarked,
    /// Recovery goes on behind a gap.
    GapIgnored,
    /// Payload is not verified at recovery.
    TornAccepted,
    /// Nothing is flushed before the first answer after a crash.
    NoFlushAtOpen,
    /// A sync point does not flush the origin.
    SyncWithoutFlush,
    /// A zeroed dirty block is forgotten before the zeros are durable at the origin.
    ZeroForgetsEarly,
    /// Zeroing leaves the cached copy in place.
    ZeroKeepsCached,
    /// A write to the origin leaves the cached copy in place.
    OriginWriteKeepsCached,
    /// A block that was written again while it was sent home becomes clean.
    CleanWithoutCompare,
    /// Reclaim drops dirty blocks.
    ReclaimDropsDirty,
    /// A checkpoint counts before it is durable.
    CheckpointUnflushed,
    /// Blocks that move in the index during a checkpoint are missed.
    CheckpointMissesMoves,
    /// Entries of a checkpoint count although the segment that they point into was used again while
    /// the checkpoint was written.
    FreshSegmentsCount,
    /// The mode changes before the drain ends.
    SwitchBeforeDrained,
    /// Overlapping requests are not ordered.
    OverlapIgnored,
    /// Empty segments are not mentioned in the log.
    NoSegmentFree,
    /// A segment whose head a power cut took is opened in a generation that the log calls empty.
    FreedGenerationAgain,
    /// A clean block that was replaced before its record was sent comes back with the record.
    NoVoid,
    /// A volume that grows is used beyond its old end before the superblock knows its size.
    GrownBeforeDurable,
    /// Nobody wakes the writes that wait a little because room is short.
    WakeLost,
    /// Such writes go on one by one, each after a pause of its own.
    WavesOfOne,
    /// The write that came last for room is served first.
    OneServedLast,
    /// Room that was promised to moves is never given back.
    PromiseKept,
    /// Room that was promised to moves is given back when it is used, and again at the end.
    PromiseTakenTwice,
    /// The mirror of what cannot be read is not read.
    MirrorUnread,
    /// A start does not write the second copy of a record that has one only.
    RepairSkipped,
    /// Clean blocks of a checkpoint that is the last resort count although a life lies between.
    LastResortTrusted,
    /// The checkpoint of a start goes over the one that it was read from.
    OverItsBase,
    /// A clean block replaces a dirty one although what ended that never happened.
    CleanReplacesDirty,
    /// Two devices are called away before a checkpoint has what only they had of the log.
    AwayTooEarly,
    /// A start gives up what is dirty on devices that are absent.
    AbsentForgotten,
    /// A device that failed while the pool was open is not told from one that works at the next
    /// start.
    AwayUntold,
    /// A unit that became free is in the list of free ones twice.
    FreeTwice,
    /// A unit is free although a read of it is under way.
    PinnedFreed,
    /// Records of a unit's last life come back although the log calls it empty.
    FreedOffByOne,
    /// The checkpoint's entries for a unit's last life count although the log calls it empty.
    GoneOffByOne,
    /// After a start the log goes on over the last block of its last record.
    TailOverwritten,
    /// What was distrusted is trusted at the next start.
    DistrustIgnored,
    /// A write is acknowledged when one of two copies of its record is written.
    AckAfterOneCopy,
    /// A FLUSH waits for one of two cache devices.
    FlushOneDevice,
    /// A FLUSH does not wait for the last record.
    FlushOneShort,
    /// A FLUSH of an origin that failed is tried again, and then counts.
    FailedFlushForgotten,
    /// Nobody sees that an origin was lost and came back without what it had not flushed.
    LossUnnoticed,
    /// A checkpoint does not wait for the dirty-class records that it mentions.
    CheckpointBeforeRecords,
    /// A checkpoint does not wait for the fills that it mentions.
    CheckpointBeforeFills,
    /// A sync point ends the marks of what clients were not told that the origin has forgotten.
    SyncInDoubt,
    /// A sync point ends the marks of writes that are under way.
    SyncForgetsOpen,
    /// A write to the origin does not wait for its intents.
    IntentUnawaited,
    /// The log forgets the last of the blocks that a write to the origin replaced.
    TombstoneShort,
    /// A write to the origin does not wait for the log to say that older dirty versions ended.
    EndsUnawaited,
    /// Of a block that is sent home in several stretches the last is forgotten.
    StretchForgotten,
    /// The last block of a volume is sent home whole, though the volume ends in it.
    EndUncut,
    /// What the origin has of a block hides what the cache has of it.
    OverlayIgnored,
    /// A write into the cache leaves the old copy in RAM.
    WriteKeepsRam,
    /// A new life of the log counts its records from the checkpoint that it read.
    SeqReused,
    /// Blocks that cannot be read count as if they could go home.
    LostUncounted,
    /// Reclaim calls a part of a block the whole.
    MaskLostInMove,
    /// What reclaim moves is not verified.
    MoveUnverified,
    /// What is read from the second copy is not verified.
    MirrorUnverified,
    /// A part of a block is merged with what the write's other end had.
    MergeOtherEnd,
    /// Nobody sees that an origin takes nothing.
    LagUnseen,
    /// Zeroing leaves the copy in RAM in place.
    ZeroKeepsRam,
    /// A dirty block of which a part is zeroed is forgotten.
    ZeroCutsDirty,
    /// The log does not say that zeroed dirty blocks ended.
    ZeroDirtyUnlogged,
    /// The log does not say that zeroed clean blocks ended.
    ZeroCleanUnlogged,
    /// A volume is removed although it has dirty blocks.
    RemovalKeepsDirty,
    /// A switch of modes is answered before the superblock has it.
    ModeUntold,
    /// Both superblock copies are overwritten at each update.
    SuperblockInPlace,
    /// A log may end before what a witness has seen.
    WitnessIgnored,
    /// A log may end one record before what a witness has seen.
    WitnessOneShort,
    /// A witness is told of records that are written and not durable.
    WitnessBeforeFlush,
    /// A witness is told what a checkpoint makes durable before the FLUSH that does.
    WitnessBeforeCheckpoint,
    /// A witness is not told what a checkpoint has made durable.
    CheckpointUnwitnessed,
    /// Rot in the end of the log looks like a torn end, though a witness has seen it durable.
    RotUnwitnessed,
    /// A missing witness counts as if somebody had accepted what is there.
    MissingAccepted,
    /// What is clean counts though nobody knows how old it is.
    UnknownAgeTrusted,
    /// What is clean counts beside a device that lacks durable records.
    HalfTrusted,
    /// The others say that a device has another one's place before it says so itself.
    OthersFirst,
    /// Units of before are read from a device that came later, and counted as if they were on it.
    HalvesUnseen,
    /// Units whose dirty blocks lost a copy are not emptied.
    HalvesKept,
    /// Records of before are believed that are found on a device which came later.
    FormerBelieved,
    /// A write is acknowledged that only a device has which is not durably of the pool.
    StrangerCounts,
    /// A write is acknowledged of which only a device has a copy that was let go meanwhile.
    LeftCounts,
    /// What is open when a device comes goes on, as if all of it were there.
    OpenGoesOn,
}
