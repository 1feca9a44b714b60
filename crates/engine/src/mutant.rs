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
    /// A read that a write has overtaken fills the cache all the same.
    StaleFill,
    /// Blocks become clean without a FLUSH of the origin.
    CleanBeforeOriginFlush,
    /// A segment is used again although a roll-forward still needs its records.
    ReuseBeforeCheckpoint,
    /// A segment is used again before what says that it is empty is durable.
    ReuseBeforeDurable,
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
    /// Clean entries are trusted without a sync point.
    FillsTrusted,
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
    /// Each pause of such writes is twice as long as the one before.
    PauseDoubles,
    /// The write that has waited longest for room is served last.
    OneServedLast,
    /// Room that was promised to moves is never given back.
    PromiseKept,
    /// Room that was promised to moves is given back twice.
    PromiseTakenTwice,
    /// The mirror of what cannot be read is not read.
    MirrorUnread,
    /// A start does not write the second copy of a record that has one only.
    RepairSkipped,
    /// Clean blocks of a checkpoint that is the last resort count although a life lies between.
    LastResortTrusted,
    /// The checkpoint of a start goes over the one that it was read from.
    OverItsBase,
    /// A device that failed while the pool was open is not told from one that works at the next
    /// start.
    AwayUntold,
    /// Both superblock copies are overwritten at each update.
    SuperblockInPlace,
}
