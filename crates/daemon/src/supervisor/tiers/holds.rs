//! What is on devices that are to be of tiers: nothing is overwritten that was not named.

use super::memory_bytes;
use crate::convert::hex;
use crate::looks::{Seen, superblock_at};
use crate::supervisor::Supervisor;
use crate::supervisor::late::in_time;
use crate::supervisor::plan::{content_of, file_of};
use forebay_api::hint::{Devices, Flag};
use forebay_api::size::human;
use forebay_api::told::{Destroyed, OnDevice};
use forebay_api::{ApiError, Hint, Told};
use forebay_format::superblock::field_text;
use forebay_format::tier::{MemberEntry, Superblock};
use forebay_host::device::Content;
use std::path::Path;

/// What devices hold and is lost if they are overwritten, if there is anything.
pub(super) fn what_is_lost(devices: &[String]) -> Result<Option<Told>, ApiError> {
    let mut lost = Vec::new();
    for uri in devices.iter().filter(|uri| memory_bytes(uri).is_none()) {
        let path = file_of(uri);
        let content = content_of(Path::new(path))?;
        if !content.is_empty() {
            let content = in_words(&content, path)?;
            lost.push(OnDevice { content, device: path.to_string() });
        }
    }
    Ok((!lost.is_empty()).then_some(Told::Destroys { what: Destroyed(lost) }))
}

/// A content, with the size of the volume that it is a part of.
fn in_words(content: &Content, path: &str) -> Result<String, ApiError> {
    let Content::Tier { .. } = content else { return Ok(content.to_string()) };
    let Some(superblock) = superblock_of(path)? else { return Ok(content.to_string()) };
    let devices = superblock.members().iter().filter(|it| it.is_used()).count();
    let bytes = human(superblock.block.bytes.get());
    Ok(format!("{content}, a volume of {bytes} on {devices} devices,"))
}

fn superblock_of(path: &str) -> Result<Option<Superblock>, ApiError> {
    let own = path.to_string();
    in_time(&format!("look at {path}"), move || Ok(superblock_at(Path::new(&own))))
}

impl Supervisor {
    /// Refuses a device that holds something. `all` are those that were named with it.
    pub(super) fn check_empty(&self, uri: &str, all: &[String]) -> Result<(), ApiError> {
        if memory_bytes(uri).is_some() {
            return Ok(());
        }
        let path = file_of(uri);
        let content = content_of(Path::new(path))?;
        if content.is_empty() {
            return Ok(());
        }
        let superblock = match content {
            Content::Tier { .. } => superblock_of(path)?,
            _ => None,
        };
        let overwrite = Hint::Again { with: Flag::ForceOverwrite };
        let Some(superblock) = superblock else {
            let error = ApiError::refused(format!("{path} holds {content}; it was not touched"));
            let look = Hint::LookAtFile { path: path.to_string() };
            return Err(error.hint(look).hint(overwrite));
        };
        if let Some(why) = self.why_of_no_use(&superblock) {
            let words = in_words(&content, path)?;
            let text = format!("{path} holds {words} {why}; it was not touched");
            let inspect = Hint::Inspect { path: path.to_string() };
            return Err(ApiError::refused(text).hint(inspect).hint(overwrite));
        }
        let (places, missing) = self.places_of(&superblock, all)?;
        let words = in_words(&content, path)?;
        let text = format!("{path} holds {words} and was not touched{missing}");
        let volume = field_text(&superblock.block.name);
        Err(ApiError::refused(text)
            .hint(Hint::ServeTiers { volume, devices: Devices::Paths(places) })
            .hint(Hint::Inspect { path: path.to_string() })
            .hint(overwrite))
    }

    /// Why no volume could be served from a device: its content has ended, or the volume goes on
    /// without it.
    fn why_of_no_use(&self, superblock: &Superblock) -> Option<&'static str> {
        let state = self.store.get();
        let known = state.tiered.iter().find(|it| it.set == hex(&superblock.block.set));
        match known {
            Some(_) => Some("which goes on without it: it was given up, or had left"),
            None if superblock.is_ephemeral() => Some("which had memory and has ended with that"),
            None => None,
        }
    }

    /// Where the devices of a set are, of those that are known; and which of them are not among
    /// `all`, in words.
    fn places_of(
        &self,
        superblock: &Superblock,
        all: &[String],
    ) -> Result<(Vec<String>, String), ApiError> {
        let set = hex(&superblock.block.set);
        let mut named = Vec::new();
        for uri in all.iter().filter(|uri| memory_bytes(uri).is_none()) {
            let seen = superblock_of(file_of(uri))?.and_then(|it| Seen::of(&it));
            named.extend(seen.filter(|it| it.set == set).map(|it| (it.uuid, uri.clone())));
        }
        let state = self.store.get();
        let left = state.left.iter().find(|it| it.set == set);
        let (mut places, mut missing) = (Vec::new(), String::new());
        let used = (0..).zip(superblock.members()).filter(|(_, it)| it.is_used());
        for (number, entry) in used {
            let uuid = hex(&entry.uuid);
            let here = named.iter().find(|it| it.0 == uuid).map(|it| it.1.clone());
            let was = left.and_then(|it| it.uris.get(&uuid)).cloned();
            if here.is_none() {
                missing.push_str(&not_named(number, entry, was.as_deref()));
            }
            places.push(here.or(was).unwrap_or_else(|| format!("(member {number})")));
        }
        Ok((places, missing))
    }
}

fn not_named(number: u32, entry: &MemberEntry, was: Option<&str>) -> String {
    let (tier, identity) = (entry.tier, hex(&entry.uuid));
    let was = was.map_or_else(String::new, |was| format!(", last known as {was}"));
    format!("; member {number} is not named (tier {tier}, identity {identity}{was})")
}
