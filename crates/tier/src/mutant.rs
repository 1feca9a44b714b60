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
    /// The map says that an extent has moved before its copy is there.
    CommitBeforeCopy,
    /// The place that an extent left is used again before the map durably says so.
    SourceFreedEarly,
    /// A write to what was copied already does not reach the copy.
    WriteMissesCopy,
    /// A write does not wait for the piece that is being copied.
    WriteDuringPiece,
    /// What is copied a second time counts as copied meanwhile.
    CopiedTwice,
    /// What was discarded is there again after a start.
    DiscardResurrects,
    /// A place is given to two extents.
    PlaceTwice,
    /// A place is used again while it is still read.
    FreedWhileRead,
    /// A write is answered before the journal says where it is.
    AnswerBeforeJournal,
    /// Records behind the last that was confirmed count after a power cut.
    UnconfirmedCounts,
    /// Records of an earlier life count.
    EpochIgnored,
    /// The rest of a block that is written for the first time holds what was there before.
    NoPadding,
    /// Zeros around a small write stand for what was lost there.
    PaddingRestores,
    /// A FLUSH does not reach the journal.
    FlushSkipsJournal,
    /// A FLUSH does not reach the members.
    FlushSkipsMembers,
    /// The head moves on although partly written extents are only in records before it.
    FineForgotten,
    /// A page is written in its place before it is among the doubles.
    NoDoubles,
    /// A page says what is not confirmed yet.
    PageUnconfirmed,
    /// What a failed flush may have lost is read as if nothing were.
    LostUnnoticed,
    /// A FLUSH does not ask a device again that failed to keep what it was asked to.
    NotAskedAgain,
    /// A full tier is waited for.
    FullIsWaitedFor,
    /// A device without room is told to the client, though another has some.
    NoRoomIsToldAtOnce,
    /// A budget of moves that is smaller than a piece never suffices.
    BudgetTooSmall,
    /// A new member is used before the superblocks name it.
    MemberUsedEarly,
    /// A holder leaves before another one has the map.
    HolderLetGoEarly,
    /// The number of a member is used again while extents may live there after a power cut.
    NumberReusedEarly,
    /// A start confirms what a killed life had not before it is over.
    StartConfirms,
    /// A start does not flush the members before it writes.
    UnsettledStart,
    /// A flush that failed at a start, or of which no client has heard, is not remembered.
    DoubtForgotten,
    /// Nobody hears of it that who may have had more of a killed life could not be asked.
    UnheardIsSilent,
    /// An older copy of a member, of the life that was stopped, is believed.
    StopMarksNobody,
    /// What is pinned leaves its tier like everything else.
    PinForgotten,
    /// An evacuation of several is over when one of them is empty.
    OneEmptyIsEnough,
    /// An evacuation ends for all when it is cancelled for one.
    OthersStayToo,
    /// An evacuation waits for who was given up, and for whoever has the number then.
    GivenUpIsAwaited,
}
