//! What somebody may do next, as types: a program offers it (a button, a command), and for people
//! there is one line of text for each, which is declared beside it.
//!
//! A hint says what is to be done with which pool, volume or device. In which case, or after what,
//! is a word of its own ([`When`] and others below): the deed is the same.

use crate::Mode;
use crate::lines::{lines, words};
use crate::request::Export;
use crate::size::human;
use crate::tiers::TierPart;
use serde::{Deserialize, Serialize};
use std::fmt;

lines! {
    /// One thing to do next. `"hint"` tells which.
    Hint by "hint" {
    // A volume.
    Attach { volume: String, dirty: Dirty, when: When } =
        "{when}: forebay volume attach {volume}{dirty}",
    DetachFirst { volume: String } =
        "take it out of service first: forebay volume detach {volume}",
    AttachOn { volume: String, origin: String } =
        "if it holds what the one before held: forebay volume attach {volume} --origin {origin} \
         --keep-dirty",
    Remove { volume: String, dirty: Dirty, when: When } =
        "{when}: forebay volume remove {volume}{dirty}",
    GiveUpOrigin { volume: String, dirty_bytes: Bytes } =
        "if it will never be back, and {dirty_bytes} of dirty data is lost with it: forebay \
         volume remove {volume} --drop-dirty",
    RemoveWithoutDevice { volume: String } =
        "or take it away, start forebayd without it, and: forebay volume remove {volume} \
         (--drop-dirty gives up what only the device holds)",
    Reattach { volume: String } =
        "when its users have let go: forebay volume detach {volume} (asked for twice), then \
         forebay volume attach {volume}",
    LeaveAnyway { verb: Leave, volume: String } =
        "to {verb} it all the same, ask again: forebay volume {verb} {volume}",
    RestoreTier { volume: String, device: String } =
        "restore {device}, all of it, and when the users of the volume have let go: forebay volume \
         detach {volume} --force, then forebay volume attach {volume}",
    TakeAwayTier { volume: String, device: String } =
        "take it away (unplug it, or rename the file), then: forebay volume detach {volume} \
         --force, forebay volume attach {volume}, forebay tier remove {volume} {device} \
         --drop-lost",
    LetGoOn { process: u32 } = "let it go on: kill -CONT {process}",
    PauseMoves { volume: String } = "to have nothing move: forebay tier pause {volume}",
    EmptyTier { volume: String, device: String } =
        "while it can be read: forebay tier evacuate {volume} {device}",
    CancelEvacuation { volume: String, #[serde(flatten)] part: TierPart } =
        "or leave it where it is: forebay tier cancel {volume} {part:#}",
    DropLost { volume: String, device: String } =
        "or, if it will never be back, and what lives there is lost: forebay tier remove {volume} \
         {device} --drop-lost",
    ServeTiers { volume: String, devices: Devices } =
        "to serve it: forebay volume create {volume} with all its devices: {devices}",
    Inspect { path: String } = "to see what it belongs to: forebay inspect {path}",
    RemoveTier { volume: String, #[serde(flatten)] part: TierPart } =
        "{part} is empty and takes nothing new: to remove it: forebay tier remove {volume} \
         {part:#}; to use it again: forebay tier cancel {volume} {part:#}",
    NameTiers { volume: String } =
        "bring it back, or name all devices as they are called now: forebay volume create {volume} \
         --tier DEVICE …",
    Grow { volume: String } = "to make it larger: forebay volume resize {volume} --size SIZE",
    GrowTo { volume: String, size_mib: u64 } =
        "or make it as large as fits: forebay volume resize {volume} --size {size_mib}M",
    Resize { volume: String } =
        "make the origin larger first, then: forebay volume resize {volume}",
    SwitchMode { volume: String, mode: Mode } = "switch it: forebay volume mode {volume} {mode}",
    WaitForJob { volume: String } = "wait for it: forebay volume show {volume}",
    CancelJob { volume: String } = "or end it: forebay volume cancel {volume}",
    DidYouMean { volume: String } = "did you mean {volume}?",
    ListVolumes = "see which there are: forebay volume list",
    RescueFrom { volume: String, devices: Devices } =
        "to have what only the cache holds, with forebayd stopped: forebay volume rescue {volume} \
         --to FILE --from {devices}",
    RescueByDaemon { volume: String } =
        "to have it from the daemon that serves the pool: forebay volume rescue {volume} --to FILE",

    // A pool.
    CreatePool { pool: String, devices: Devices, dirty: Dirty, when: When } =
        "{when}: forebay pool create {pool} {devices}{dirty}",
    CreateFirstPool = "make one: forebay pool create NAME DEVICE…",
    DestroyPool { pool: String, when: When } = "{when}: forebay pool destroy {pool}",
    ReplaceDevice { pool: String, device: String } =
        "to give it an empty device in its place: forebay pool replace {pool} {device} NEW",
    RemakePool { pool: String, devices: Devices } =
        "to have all of its devices again: forebay volume remove each of its volumes, forebay pool \
         destroy {pool}, forebay pool create {pool} {devices}",
    ReplacePool { pool: String } =
        "for a pool of all of them: forebay volume remove each of its volumes, forebay pool \
         destroy {pool}, and this again",
    ShowPool { pool: String, when: When } = "{when}: forebay pool show {pool}",
    ListPools = "see which there are: forebay pool list",
    ChoosePool { pools: Pools } = "choose one: {pools}",
    CacheWith { devices: Devices } =
        "to use that pool as it is: forebay cache ORIGIN --with {devices}",

    // Memory and devices.
    AllowMemory { bytes: Mib } = "allow more: --ram {bytes}",
    RaiseRam { bytes: Mib, now_bytes: Bytes } =
        "raise \"ram\" in the configuration to {bytes} or more (now {now_bytes} for all pools and \
         clients)",
    RaiseMemoryLimit { bytes: Mib, now_bytes: Bytes } =
        "raise the memory limit of forebayd (MemoryMax= of its unit, or its control group) to \
         {bytes} or more; now {now_bytes}",
    LargerDevice { bytes: AtLeast } = "give it at least {bytes}",
    UseOnly { devices: Devices } = "or leave it out, and use {devices} alone",
    LookAt { path: String } = "look at what is there: lsblk -f {path}",
    LookAtFile { path: String } = "look at what is there: lsblk -f {path}, or file -s {path}",
    MakeFile { path: String } = "make a file to try it with: truncate -s 10G {path}",
    FreeSpace { at: NoRoom } = "make room {at}",
    AllowWriting { dir: String, and: Writing } = "see to it that forebayd can write to {dir}{and}",

    // What makes a volume visible, and who uses it.
    UseExport { exports: Exports, reach: Reach } = "or {reach}{exports}",
    UseNbdClient = "or use --export nbd and a client of NBD",
    RunAsRoot = "run forebayd as root",
    RunAsRootOrNbd = "run forebayd as root, or use --export nbd",
    LoadModule { module: String } = "load the module: modprobe {module}",
    Unmount { device: String } = "unmount it: umount {device}",

    // The same again, otherwise.
    Again { with: Flag } = "{with}",
    Choose { what: Choice } = "{what}",

    // What no command does.
    SeeTo { what: Care } = "{what}",
    Wait { until: Until } = "{until}",
    Know { that: Fact } = "{that}",
    SeeLog { of: Log } = "{of}",
    SeeWholeLog { path: String } = "see the whole log: {path}",

    // The daemon itself.
    StartDaemon { how: Start } = "{how}",
    StartDaemonIn { dir: String } = "start one without root: forebayd --state-dir {dir} &",
    }
}

words! {
    /// In which case something is to be done, or after what.
    When {
        BringBack = "bring it back",
        BringBackFirst = "bring it back first",
        DevicesBack = "bring its devices back, then",
        NewestBack = "put the newest devices back, then",
        NotNewest = "if these are not the newest devices, put those in their place, then",
        OriginBack = "when it is back",
        GrownBack = "grow it back, then",
        Mended = "when that is mended",
        Again = "try again",
        MakeAgain = "make it again",
        CacheIsRight = "if the cache is right, and is to be written to this origin",
        OriginIsRight = "if the origin is right, and what the cache holds is to be lost",
        UsedInstead = "if it is to be used, with what is dirty",
        IsNewest = "if it is the newest",
        NewestIsHere = "if what is here is the newest state",
        NewerLost = "if the newer devices will never be back, and what was written since is lost",
        NewestLost = "if the newest will never be back, and what was written since is lost",
        RestLost = "if they will never be back, and only what they hold is lost",
        AllLost = "if they will never be back, and all that is dirty is lost",
        ForGood = "or go on without them for good",
        WithoutIt = "or go on without it",
        ForgetThat = "or forget that one",
        First = "first",
        NotNeeded = "or, if the volume is not needed",
        NobodyNeeds = "if nobody needs it any more",
        MakeSmaller = "remove it, make the origin smaller, and add it again",
        OpenIt = "open it",
        UseItsName = "use its name",
        UseThatPool = "to use that pool",
        SeeWhatIsWrong = "see what is wrong with it",
        See = "see",
    }
}

words! {
    /// What becomes of dirty data.
    Dirty {
        Stays = "",
        Keep = " --keep-dirty",
        Drop = " --drop-dirty",
    }
}

words! {
    /// How a volume leaves.
    Leave {
        Detach = "detach",
        Remove = "remove",
    }
}

words! {
    /// Where there is no room.
    NoRoom {
        StateDirectory = "there",
        UnderDevice = "on the file system under it",
    }
}

words! {
    /// What else a directory needs.
    Writing {
        Rights = "",
        RightsAndRoom = ", and has room there",
    }
}

words! {
    /// How else a volume is reached.
    Reach {
        Other = "use ",
        ByNbd = "reach the volume by NBD: ",
        WithoutKernel = "reach the volume without the kernel: ",
    }
}

words! {
    /// What the same request does, with one flag more.
    Flag {
        ForceOverwrite = "to overwrite it and lose what it holds: --force",
        ForceLost = "if it is to be overwritten and lost, give --force",
        ForceNewPool = "to make a new pool of them: --force",
        ForceCutOff = "or cut them off when it is drained: --force",
        ForceUsers = "or let those who use it have errors: --force",
        NoTier = "without --tier and --before it becomes a new tier, slower than all others",
        ForceMachine = "or let it have errors: --force",
        ForceOlder = "to have what they hold all the same: --force",
        ForceReplace = "to replace it: --force",
        Yes = "to go on without being asked: --yes",
        Run = "or let this command start one: --run",
        Overcommit = "or let writes fail when the rest is full: --overcommit",
        AllowMissing = "or serve the rest, and bring it back later: --allow-missing",
        Later = "try again in a moment",

    }
}

words! {
    /// What to choose, or choose otherwise.
    Choice {
        Name = "choose another name",
        NameFlag = "choose another name: --name, or NAME",
        Device = "choose another device",
        LessMemory = "give the tier less memory, or a slower tier more",
        SmallerVolume = "choose a smaller --size",
        RamAbove = "put the memory above it, as a cache: a pool's RAM tier",
        SmallerDevice = "or use a smaller cache device",
        Swapped = "were the origin and the cache device swapped?",
        Origin = "give the path of the disk, or of the disk image, that is to be cached",
        ShorterPath = "use a shorter path, such as a symbolic link",
        Below = "run a second forebayd for it, or use what is under that volume",
        Listen = "choose another nbd-listen, or stop who listens there",
        TemporaryDirectory = "choose another place: export TMPDIR=DIR",
        HtmlFile = "choose another place: --html FILE",
        RescueFile = "choose another place: --to FILE",
        StatePlace = "choose another place: --state-dir DIR, or export XDG_STATE_HOME=DIR",
        Socket = "or name the socket of a running one: export FOREBAY_SOCKET=DIR/control.sock",
        Page = "POST /v1, or GET /v1/status, /v1/counters, /v1/pools, /v1/volumes, /metrics",
    }
}

words! {
    /// What needs somebody's care.
    Care {
        Clients = "unmount it and disconnect them first",
        Machine = "stop the machine, or take the disk out of it",
        Origin = "bring it back",
        RightOrigin = "bring the right one back: it is used again as soon as it is there",
        Disk = "see whether the disk behind it works",
        DiskOrServer = "see whether the disk, file server or program behind it works",
        TiersFull = "delete what nobody needs and trim it, or give it more: forebay tier add",
        RoomBelow = "make room on what the device lies on; it is tried again every 10 s",
        MapCopy = "mend it, then detach and attach the volume: the map gets its second place again",
        SlowDisk = "requests that need it wait: look at the disk, or what is behind it",
        Device = "mend it and start forebayd again: what the device holds is used again",
        NewVolume = "make a new volume with the size that is needed, and copy to it",
        TiersMore = "make room for it first: forebay tier add",
        TierMemory = "add other memory first: forebay tier add VOLUME ram:SIZE",
        TiersLost = "write it again, or discard it: until then it fails to be read",
        MissingTier = "bring it back, and name it with the others",
        Twin = "leave out the copy",
        Newest = "name the newest devices instead, if they are anywhere",
        Files = "reads of them fail until they are written again: restore these files",
        Memory = "then do it again, before forebayd is stopped",
        Socket = "check that this is a socket of forebayd",
        Ended = "when forebayd runs again, see how far it came (forebay status), and ask again",
        Version = "use forebay and forebayd of the same version",
        Program = "install forebayd beside forebay, or put it into the search path",
        Build = "build or install forebayd beside forebay: cargo build --release",
    }
}

words! {
    /// What ends by itself.
    Until {
        OriginIsBack = "nothing else is needed: it is used again as soon as it is there",
        OriginAnswers = "nothing else is needed: the volume is served as soon as it answers",
        Flushed = "nothing else is needed: the volume is served when that succeeds",
        FlushedAtLast = "nothing else is needed: the volume is served as soon as that succeeds",
        Connected = "it is tried again every few seconds",
        TierIsEmpty = "wait until that one is empty: forebay tier show VOLUME",
        Opened = "wait a moment: forebay status",
    }
}

words! {
    /// What to know before one does anything.
    Fact {
        NoDeviceLeft = "clean data is read from the origins; no dirty data is accepted on it",
        OneDeviceLeft = "it goes on with the other, but new dirty data has one copy only",
        FewerDevices = "it goes on with the others, but new dirty data may have one copy only",
        WouldWait = "forebayd could not start again: one volume would wait for the other",
    }
}

words! {
    /// What the log tells of.
    Log {
        Daemon = "see the daemon's log",
        HungUp = "see the daemon's log for why it hung up",
        Job = "see the log",
        Device = "see the log of forebayd and the health of the device",
        Demo = "see forebayd.log; forebay demo --keep keeps it",
        Panic = "report it, with the backtrace in the log of forebayd",
    }
}

words! {
    /// How a daemon is started.
    Start {
        Machine = "start the machine's: systemctl enable --now forebayd",
        Own = "start one: forebayd --state-dir DIR",
    }
}

/// Devices of a pool, as a command names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Devices {
    /// These.
    Paths(Vec<String>),
    /// Those that it is on, which nobody here knows.
    Unknown,
    /// All of which it is made, which are not all here.
    All,
    /// As [`Devices::All`], where they were spoken of.
    AllOfThem,
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Devices::Paths(paths) => f.write_str(&paths.join(" ")),
            Devices::Unknown => f.write_str("DEVICE…"),
            Devices::All => f.write_str("with all its devices"),
            Devices::AllOfThem => f.write_str("with all of them"),
        }
    }
}

/// Pools of which one is to be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pools(pub Vec<String>);

impl fmt::Display for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--pool {}", self.0.join(" or --pool "))
    }
}

/// Exports of which one is to be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exports(pub Vec<Export>);

impl fmt::Display for Exports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|export| export.name()).collect();
        write!(f, "--export {}", names.join(" or --export "))
    }
}

/// Bytes, shown as elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&human(self.0))
    }
}

/// Bytes, shown as the number of MiB that is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mib(pub u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}M", self.0.div_ceil(1 << 20))
    }
}

/// Bytes, for people who make a device of them: rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtLeast(pub u64);

impl fmt::Display for AtLeast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 < 10 << 30 {
            true => Mib(self.0).fmt(f),
            false => write!(f, "{}G", self.0.div_ceil(1 << 30)),
        }
    }
}

impl Hint {
    /// To bring a volume into service, with its dirty data as it is.
    pub fn attach(volume: &str, when: When) -> Hint {
        Hint::Attach { volume: volume.to_string(), dirty: Dirty::Stays, when }
    }

    /// To bring a volume into service by `--keep-dirty`.
    pub fn keep_dirty(volume: &str, when: When) -> Hint {
        Hint::Attach { volume: volume.to_string(), dirty: Dirty::Keep, when }
    }

    /// To remove a volume, with its dirty data sent home.
    pub fn remove(volume: &str, when: When) -> Hint {
        Hint::Remove { volume: volume.to_string(), dirty: Dirty::Stays, when }
    }

    /// To create, or open, a pool on `devices`.
    pub fn create_pool(pool: &str, devices: &[String], when: When) -> Hint {
        let devices = Devices::Paths(devices.to_vec());
        Hint::CreatePool { pool: pool.to_string(), devices, dirty: Dirty::Stays, when }
    }

    /// To make a volume visible in one of these ways.
    pub fn use_export(exports: &[Export], reach: Reach) -> Hint {
        Hint::UseExport { exports: Exports(exports.to_vec()), reach }
    }
}

#[cfg(test)]
mod tests;
