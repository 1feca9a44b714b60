//! Members of a tiered volume: who they are, and whether the map on them fits together. It is read
//! as a start reads it (`forebay_format::tier::survey`).

mod lines;

use super::{hex, open, read};
use crate::args::Format;
use crate::{output, printed};
use forebay_api::{ApiError, SCHEMA};
use forebay_format::superblock::field_text;
use forebay_format::tier::survey::{MapCopy, Problem, Standing, Survey, standing};
use forebay_format::tier::{
    DOUBLES_MAX, DOUBLES_OFFSET, EXTENT_SIZE, HEAD_OFFSETS, JOURNAL_OFFSET, MAGIC, MemberEntry,
    SUPERBLOCK_OFFSETS, Superblock, member_state, pages_of,
};
use forebay_format::{BLOCK_SIZE, FormatError};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Blocks that are read at a time.
const BLOCKS_PER_READ: u32 = 256;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(super) struct SetInspection {
    schema: u32,
    kind: &'static str,
    devices: Vec<Device>,
    set: Option<Set>,
    map: Option<Map>,
    /// What does not fit, the first of it.
    problems: Vec<String>,
    problem_count: u64,
}

/// One of the devices.
#[derive(Debug, Serialize)]
struct Device {
    device: String,
    bytes: u64,
    superblocks: Vec<Copy>,
    /// The number that it says it has.
    member: Option<u8>,
    /// It is used: it belongs to the set, and is not older than that remembers.
    is_used: bool,
}

/// One superblock copy.
#[derive(Debug, Serialize)]
struct Copy {
    offset: u64,
    /// What is wrong with it, if anything.
    error: Option<String>,
    generation: Option<u64>,
    life: Option<u64>,
}

/// What the newest superblock says.
#[derive(Debug, Serialize)]
struct Set {
    name: String,
    uuid: String,
    bytes: u64,
    bytes_max: u64,
    generation: u64,
    life: u64,
    boot: String,
    ephemeral: bool,
    /// It was made and never opened: there is no map yet.
    fresh: bool,
    /// Members that hold the map.
    holders: Vec<u8>,
    journal_records_max: u32,
    members: Vec<Member>,
}

#[derive(Debug, Serialize)]
struct Member {
    member: u8,
    uuid: String,
    tier: u8,
    slots: u32,
    bytes: u64,
    state: &'static str,
    ram: bool,
    /// The last life in which it was there.
    life: u64,
    /// Which of the devices it is.
    device: Option<String>,
    /// Extents that live there, if the map is known.
    extents: Option<u32>,
}

/// What the holders have.
#[derive(Debug, Serialize)]
struct Map {
    life: u64,
    first_record: u64,
    last_record: u64,
    records: u64,
    /// After a power loss the records behind this one do not count.
    confirmed_record: u64,
    /// The record behind the last one is torn.
    torn: bool,
    /// Records behind the first that is missing.
    records_behind: u64,
    holders: Vec<Holder>,
    extents: u64,
    living: u64,
    partly_written: u32,
    lost_extents: u32,
    lost_blocks: u64,
    /// Extents of which the last that is known does not count after a power loss.
    unconfirmed: u32,
}

#[derive(Debug, Serialize)]
struct Holder {
    member: u8,
    /// Its head is of the newest life.
    is_used: bool,
    last_record: u64,
    pages: u32,
    bad_pages: u32,
    /// Bad pages of which there is a double.
    doubled: u32,
}

/// A device, as it was read.
struct Opened {
    file: File,
    path: PathBuf,
    bytes: u64,
    copies: [Result<Superblock, FormatError>; 2],
    has_mark: bool,
}

impl Opened {
    fn open(path: &Path) -> Result<Opened, ApiError> {
        let (file, bytes) = open(path)?;
        let mut blocks = Vec::new();
        for offset in SUPERBLOCK_OFFSETS {
            blocks.push(read(&file, offset, BLOCK_SIZE).map_err(|error| failed(path, &error))?);
        }
        let has_mark = blocks.iter().any(|block| block.starts_with(&MAGIC));
        let copies = std::array::from_fn(|number| Superblock::decode(&blocks[number]));
        Ok(Opened { file, path: path.to_owned(), bytes, copies, has_mark })
    }

    fn newest(&self) -> Option<&Superblock> {
        let valid = self.copies.iter().filter_map(|copy| copy.as_ref().ok());
        valid.max_by_key(|it| it.block.generation.get())
    }

    fn view(&self) -> Device {
        let copies = SUPERBLOCK_OFFSETS.into_iter().zip(&self.copies);
        let copy = |(offset, copy): (u64, &Result<Superblock, FormatError>)| Copy {
            offset,
            error: copy.as_ref().err().map(ToString::to_string),
            generation: copy.as_ref().ok().map(|it| it.block.generation.get()),
            life: copy.as_ref().ok().map(|it| it.block.epoch.get()),
        };
        Device {
            device: self.path.display().to_string(),
            bytes: self.bytes,
            superblocks: copies.map(copy).collect(),
            member: self.newest().map(|it| it.block.member),
            is_used: false,
        }
    }

    /// The map as this one has it.
    fn map(&self, superblock: &Superblock) -> io::Result<MapCopy> {
        let layout = superblock.layout();
        let mut copy = MapCopy::new(superblock);
        for (number, offset) in HEAD_OFFSETS.into_iter().enumerate() {
            copy.take_head(number, &read(&self.file, offset, BLOCK_SIZE)?);
        }
        copy.take_doubles(&read(&self.file, DOUBLES_OFFSET, DOUBLES_MAX * BLOCK_SIZE)?);
        self.in_pieces(JOURNAL_OFFSET, layout.journal_blocks, |first, bytes| {
            copy.take_journal(first, bytes);
        })?;
        let pages = pages_of(copy.extents());
        self.in_pieces(layout.pages_offset(), pages, |first, bytes| {
            copy.take_pages(first, bytes);
        })?;
        Ok(copy)
    }

    /// Reads blocks, as far as the device goes.
    fn in_pieces(
        &self,
        offset: u64,
        blocks: u32,
        mut take: impl FnMut(u32, &[u8]),
    ) -> io::Result<()> {
        let room = self.bytes.saturating_sub(offset) / BLOCK_SIZE as u64;
        let blocks = blocks.min(u32::try_from(room).unwrap_or(u32::MAX));
        for first in (0..blocks).step_by(BLOCKS_PER_READ as usize) {
            let count = BLOCKS_PER_READ.min(blocks - first) as usize;
            let at = offset + u64::from(first) * BLOCK_SIZE as u64;
            take(first, &read(&self.file, at, count * BLOCK_SIZE)?);
        }
        Ok(())
    }
}

fn failed(path: &Path, error: &io::Error) -> ApiError {
    ApiError::failed(format!("read {}: {error}", path.display()))
}

/// Looks at these devices, if one of them is a member of a tiered volume, or was one.
///
/// # Errors
/// One of them cannot be read.
pub(super) fn look(paths: &[PathBuf]) -> Result<Option<SetInspection>, ApiError> {
    let opened = paths.iter().map(|path| Opened::open(path)).collect::<Result<Vec<_>, _>>()?;
    if !opened.iter().any(|it| it.has_mark) {
        return Ok(None);
    }
    let mut found = SetInspection {
        schema: SCHEMA,
        kind: "tier-inspection",
        devices: opened.iter().map(Opened::view).collect(),
        set: None,
        map: None,
        problems: Vec::new(),
        problem_count: 0,
    };
    let newest = opened.iter().filter_map(Opened::newest).max_by_key(|it| it.age());
    let Some(newest) = newest else { return Ok(Some(found)) };
    let used = found.assemble(newest, &opened);
    found.set = Some(set(newest, &used));
    if !newest.is_fresh() {
        found.read_map(newest, &used)?;
    }
    Ok(Some(found))
}

impl SetInspection {
    fn problem(&mut self, text: String) {
        self.problem_count += 1;
        self.problems.push(text);
    }

    /// The devices that can be used, by the number of their member.
    fn assemble<'a>(&mut self, newest: &Superblock, opened: &'a [Opened]) -> Vec<Slot<'a>> {
        let mut used: Vec<Slot> = vec![None; newest.members().len()];
        for (number, it) in opened.iter().enumerate() {
            let shown = it.path.display();
            let member = it.newest().map_or(0, |own| usize::from(own.block.member));
            if let Some(why) = unused(newest, it.newest()) {
                self.problem(format!("{shown} is {why}"));
                continue;
            }
            if let Some(other) = used[member] {
                let other = other.path.display();
                self.problem(format!("{shown} and {other} are both member {member}"));
                continue;
            }
            let slots = newest.members()[member].slots.get();
            let room = newest.layout().slots(it.bytes);
            if room < slots {
                self.problem(format!("{shown} has room for {room} slots, and should have {slots}"));
            }
            used[member] = Some(it);
            self.devices[number].is_used = true;
        }
        used
    }

    fn read_map(&mut self, newest: &Superblock, used: &[Slot]) -> Result<(), ApiError> {
        let mut copies = Vec::new();
        for holder in newest.holders() {
            if let Some(it) = used[usize::from(holder)] {
                let mut own = newest.clone();
                own.block.member = holder;
                copies.push(it.map(&own).map_err(|error| failed(&it.path, &error))?);
            }
        }
        if copies.is_empty() {
            return Ok(());
        }
        let survey = Survey::of(newest, &copies);
        self.problems.extend(survey.problems.iter().map(text));
        self.problem_count += survey.problem_count;
        let (Some(span), Some(set)) = (survey.span, &mut self.set) else { return Ok(()) };
        for member in &mut set.members {
            member.extents = Some(survey.lives.get(&member.member).copied().unwrap_or(0));
        }
        let extents = newest.block.bytes.get().div_ceil(EXTENT_SIZE);
        let holder = |it: &forebay_format::tier::survey::Source| Holder {
            member: it.member,
            is_used: it.is_used,
            last_record: it.last,
            pages: pages_of(extents as u32),
            bad_pages: it.bad_pages,
            doubled: it.doubled,
        };
        self.map = Some(Map {
            life: span.epoch,
            first_record: span.tail,
            last_record: span.last,
            records: span.last + 1 - span.tail,
            confirmed_record: span.confirmed,
            torn: span.is_torn,
            records_behind: span.behind,
            holders: survey.sources.iter().map(holder).collect(),
            extents,
            living: survey.lives.values().map(|&it| u64::from(it)).sum(),
            partly_written: survey.partly,
            lost_extents: survey.lost_extents,
            lost_blocks: survey.lost_blocks,
            unconfirmed: survey.unconfirmed,
        });
        Ok(())
    }

    /// Prints it. The exit code: 0 if all is well.
    pub(super) fn print(&self, format: Format) -> Result<u8, ApiError> {
        printed(output::one(format, self, &self.lines()))?;
        Ok(self.code())
    }

    fn code(&self) -> u8 {
        u8::from(self.set.is_none() || self.problem_count > 0)
    }
}

/// Why a device with this superblock is not used, if it is not.
fn unused(newest: &Superblock, own: Option<&Superblock>) -> Option<String> {
    let Some(own) = own else {
        return Some("no member of a tiered volume, or both its superblocks are lost".to_owned());
    };
    let (name, member) = (field_text(&own.block.name), own.block.member);
    match standing(newest, own) {
        Standing::Fits => None,
        Standing::OtherSet => Some(format!("a member of another tiered volume, {name}")),
        Standing::Unknown => Some(format!("no member of {name} any more")),
        Standing::Old => Some(format!("an older copy of member {member}, or was away since")),
    }
}

/// The device of a member.
type Slot<'a> = Option<&'a Opened>;

fn set(newest: &Superblock, used: &[Slot]) -> Set {
    let block = &newest.block;
    let member = |(number, entry): (usize, &MemberEntry)| Member {
        member: number as u8,
        uuid: hex(&entry.uuid),
        tier: entry.tier,
        slots: entry.slots.get(),
        bytes: u64::from(entry.slots.get()) * EXTENT_SIZE,
        state: match entry.state {
            member_state::NONE => "gone",
            member_state::IN => "in",
            _ => "leaving",
        },
        ram: entry.is_volatile(),
        life: entry.epoch.get(),
        device: used[number].map(|it| it.path.display().to_string()),
        extents: None,
    };
    Set {
        name: field_text(&block.name),
        uuid: hex(&block.set),
        bytes: block.bytes.get(),
        bytes_max: u64::from(block.extents_max.get()) * EXTENT_SIZE,
        generation: block.generation.get(),
        life: block.epoch.get(),
        boot: hex(&block.boot),
        ephemeral: newest.is_ephemeral(),
        fresh: newest.is_fresh(),
        holders: newest.holders().collect(),
        journal_records_max: block.journal_blocks.get(),
        members: newest.members().iter().enumerate().map(member).collect(),
    }
}

fn text(problem: &Problem) -> String {
    match problem {
        Problem::NoMap => "no head of the map is valid on any holder that is here".to_owned(),
        Problem::BadPage(extent) => {
            format!("the map is damaged in all copies that are here, from extent {extent} on")
        }
        Problem::BadJournal(seq) => {
            format!("record {seq} of the journal was durable, and is in no copy that is here")
        }
        Problem::TwoInOnePlace(one, other, place) => format!(
            "extents {one} and {other} live in one place, slot {} of member {}",
            place.slot(),
            place.member()
        ),
        Problem::NoSuchPlace(extent, place) => format!(
            "extent {extent} lives in slot {} of member {}, which has none of that number",
            place.slot(),
            place.member()
        ),
        Problem::HoldersDiffer(extent, one, other) => {
            format!("members {one} and {other} say different things of extent {extent}")
        }
    }
}

#[cfg(test)]
mod tests;
