//! What a client asks. Each request states what should be true afterwards.

use crate::hint::Care;
pub use crate::rescue::VolumeRescue;
pub use crate::tiers::{
    ExplainTiers, TierAdd, TierChange, TierPin, TierRemove, TierSet, VolumeCreateTiered,
};
use crate::{ApiError, Hint, Mode};
pub use forebay_format::name::{NAME_BYTES_MAX, check_name};
use forebay_format::name::{escaped, is_allowed};
use serde::{Deserialize, Serialize};

/// Longest URI of an origin, in bytes.
pub const ORIGIN_BYTES_MAX: usize = 128;
/// Most bytes of a request's JSON.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;

/// A request, as `POST /v1` takes it: a JSON object with the verb in `"verb"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Request {
    /// Version, process and directories of the daemon.
    Daemon,
    /// Pool, volume and export in one step.
    Cache(CacheRequest),
    /// A pool on these devices.
    PoolCreate(PoolCreate),
    /// All pools.
    PoolList,
    /// One pool.
    PoolShow(Named),
    /// Another device in the place of one of a pool's.
    PoolReplace(PoolReplace),
    /// No pool on its devices any more.
    PoolDestroy(Change),
    /// A volume in front of an origin.
    VolumeCreate(VolumeCreate),
    /// A volume over tiers.
    VolumeCreateTiered(VolumeCreateTiered),
    /// The tiers of a volume.
    TierShow(Named),
    /// A device of a volume's tiers.
    TierAdd(TierAdd),
    /// No such tier, or device of one, any more.
    TierRemove(TierRemove),
    /// Parts of a volume on this tier.
    TierPin(TierPin),
    /// Data placed so.
    TierSet(TierSet),
    /// Nothing on a tier, which takes nothing new. Goes on by itself, also after a restart.
    TierEvacuate(TierChange),
    /// A tier in use again that is being emptied.
    TierCancel(TierChange),
    /// No moves in a volume.
    TierPause(Named),
    /// Moves in a volume again.
    TierResume(Named),
    /// Where parts of a volume live, and why there.
    Explain(ExplainTiers),
    /// All volumes, also the detached ones.
    VolumeList,
    /// One volume.
    VolumeShow(Named),
    /// The volume in this mode. Starts a job when it has to drain first.
    VolumeMode(VolumeMode),
    /// The volume as large as its origin, or as is said.
    VolumeResize(VolumeResize),
    /// No dirty block. Starts a job.
    VolumeDrain(Change),
    /// The volume drained and out of service, remembered for `attach`. Starts a job.
    VolumeDetach(Change),
    /// The volume in service again.
    VolumeAttach(VolumeAttach),
    /// The volume drained, out of service and forgotten. Starts a job.
    VolumeRemove(Change),
    /// The newest job of a volume.
    Job(Named),
    /// The volume's running job stopped; the volume goes on as before it.
    JobCancel(Named),
    /// One line a volume, and what needs attention.
    Status,
    /// All counters, growing since the pool was opened.
    Counters,
    /// What was not cached, by reason.
    Why(Named),
    /// What only the cache holds of a volume, a part at a time.
    VolumeRescue(VolumeRescue),
}

impl Request {
    /// Reads a request as `POST /v1` carries it.
    ///
    /// # Errors
    /// Says what of it is not known, and what to do.
    pub fn decode(body: &[u8]) -> Result<Request, ApiError> {
        serde_json::from_slice(body).map_err(|error| {
            let error = escaped(&error.to_string());
            ApiError::usage(format!("this is no request that forebayd knows: {error}"))
                .hint(Hint::SeeTo { what: Care::Version })
        })
    }
}

/// One pool or volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// Its name.
    pub name: String,
}

/// A change of one pool or volume.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Also when clients use it, which get errors.
    #[serde(default)]
    pub force: bool,
    /// Of a removal: also when missing devices hold dirty data of the volume, which is lost.
    #[serde(default)]
    pub drop_dirty: bool,
    /// Of a removal: also when what the volume holds is lost with it, as a plan of it asks. A
    /// daemon that does not know this asks for `force`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accept_loss: bool,
}

/// The one command: a pool on `devices`, and a volume in front of `origin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheRequest {
    /// URI of the origin; paths in it are absolute.
    pub origin: String,
    /// Absolute paths of the cache devices. A pool that is made of them is used as it is.
    pub devices: Vec<String>,
    /// Name of the volume; by default after the origin.
    #[serde(default)]
    pub name: Option<String>,
    /// The mode; by default write-through.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// Most memory of a new pool, as `4G` or `10%` of the machine's.
    #[serde(default)]
    pub ram: Option<String>,
    /// How it is made visible.
    #[serde(default)]
    pub export: Export,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Overwrite what the cache devices hold.
    #[serde(default)]
    pub force: bool,
}

/// A pool on devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolCreate {
    /// Its name.
    pub name: String,
    /// Absolute paths of its devices.
    pub devices: Vec<String>,
    /// Most memory it may take, as `4G` or `10%` of the machine's.
    #[serde(default)]
    pub ram: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Overwrite what the devices hold.
    #[serde(default)]
    pub force: bool,
    /// Go on with the dirty data of the pool that is on the devices, of which nobody can tell
    /// whether it is of the newest state.
    #[serde(default)]
    pub keep_dirty: bool,
}

/// A device of a pool that another one takes the place of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolReplace {
    /// The pool.
    pub name: String,
    /// Absolute path of the device that goes, as `pool show` has it.
    pub old: String,
    /// Absolute path of the device that comes; the same for one that comes back, empty.
    pub new: String,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Overwrite what the new device holds.
    #[serde(default)]
    pub force: bool,
}

/// How a volume is made visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Export {
    /// The best that this machine has.
    #[default]
    Auto,
    /// The daemon's NBD socket.
    Nbd,
    /// An NBD device of the kernel.
    NbdKernel,
    /// A block device of ublk.
    Ublk,
    /// A loop device over a file on FUSE.
    Loop,
    /// A vhost-user socket for a virtual machine.
    VhostUser,
    /// Not at all.
    None,
}

impl Export {
    /// The name, as the command line and the JSON spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Export::Auto => "auto",
            Export::Nbd => "nbd",
            Export::NbdKernel => "nbd-kernel",
            Export::Ublk => "ublk",
            Export::Loop => "loop",
            Export::VhostUser => "vhost-user",
            Export::None => "none",
        }
    }
}

impl std::str::FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Export, String> {
        match text {
            "auto" => Ok(Export::Auto),
            "nbd" => Ok(Export::Nbd),
            "nbd-kernel" => Ok(Export::NbdKernel),
            "ublk" => Ok(Export::Ublk),
            "loop" => Ok(Export::Loop),
            "vhost-user" => Ok(Export::VhostUser),
            "none" => Ok(Export::None),
            _ => Err(format!(
                "no export {text:?}; choose auto, ublk, loop, nbd-kernel, nbd, vhost-user or none"
            )),
        }
    }
}

/// A volume in front of an origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    /// Its name.
    pub name: String,
    /// URI of the origin; paths in it are absolute.
    pub origin: String,
    /// The pool; may be left out when there is only one.
    #[serde(default)]
    pub pool: Option<String>,
    /// The mode; by default write-through.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// How it is made visible.
    #[serde(default)]
    pub export: Export,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// A volume in a mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeMode {
    /// Its name.
    pub name: String,
    /// The mode.
    pub mode: Mode,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// A volume of a size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeResize {
    /// Its name.
    pub name: String,
    /// The size, as `Size` reads it; a share is one of the origin. All of the origin where it is
    /// not given.
    #[serde(default)]
    pub size: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// A volume in service again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeAttach {
    /// Its name.
    pub name: String,
    /// What to do when the origin is not as the pool remembers it.
    #[serde(default)]
    pub changed: ChangedOrigin,
    /// It is somewhere else from now on: another disk that holds a copy, or the same elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// What to do when an origin is not as the pool remembers it while it holds dirty data for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangedOrigin {
    /// Refuse, and say what the choices are.
    #[default]
    Refuse,
    /// The origin is right: forget what the cache holds, dirty data too.
    DropDirty,
    /// The cache is right: go on, and write the dirty data to the origin as it is now.
    KeepDirty,
}

/// Makes a valid name out of a path or URI: the last part without its last ending.
pub fn name_from_origin(origin: &str) -> String {
    let path = origin.split(['?', '#']).next().unwrap_or_default();
    let last = path.rsplit(['/', ':']).find(|part| !part.is_empty()).unwrap_or("volume");
    let stem = match last.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem,
        _ => last,
    };
    let plain: String =
        stem.chars().map(|c| if is_allowed(c) { c } else { '-' }).take(NAME_BYTES_MAX).collect();
    let plain = plain.trim_start_matches(['-', '.']).to_string();
    if plain.is_empty() { "volume".to_string() } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_origins() {
        let cases = [
            ("/srv/big.img", "big"),
            ("/dev/sdb", "sdb"),
            ("spindle:/srv/disk.img?preset=nas-5400", "disk"),
            ("ram:40G", "40G"),
            ("/srv/my disk.raw", "my-disk"),
            ("/srv/.hidden", "hidden"),
            ("///", "volume"),
        ];
        for (origin, name) in cases {
            assert_eq!(name_from_origin(origin), name);
            assert_eq!(check_name(name), Ok(()));
        }
    }

    #[test]
    fn what_is_said_of_a_request_that_is_none_stays_on_its_line() {
        let body = br#"{"verb":"volume-drain","name":"vz","\u001b[2J\n":true}"#;
        let error = Request::decode(body).unwrap_err();
        assert!(error.message.contains("[2J"), "{error}");
        assert!(!error.message.contains(char::is_control), "{error:?}");
    }

    #[test]
    fn a_request_is_one_flat_object_and_unknown_fields_are_errors() {
        let request = Request::VolumeMode(VolumeMode {
            name: "vz".to_string(),
            mode: Mode::WriteBack,
            dry_run: false,
        });
        let text = serde_json::to_string(&request).unwrap();
        let wanted = r#"{"verb":"volume-mode","name":"vz","mode":"writeback","dry_run":false}"#;
        assert_eq!(text, wanted);
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
        let typo = r#"{"verb":"volume-drain","name":"vz","dryrun":true}"#;
        let message = serde_json::from_str::<Request>(typo).unwrap_err().to_string();
        assert!(message.contains("dryrun"), "{message}");
    }
}
