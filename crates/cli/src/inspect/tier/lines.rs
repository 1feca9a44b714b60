//! What people read of it.

use super::{Device, Map, Set, SetInspection};
use forebay_api::size::human;

/// Problems that are printed.
const PROBLEMS_SHOWN: usize = 32;

impl SetInspection {
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        self.devices.iter().for_each(|it| device_lines(&mut lines, it));
        if let Some(set) = &self.set {
            set_lines(&mut lines, set);
        }
        match (&self.set, &self.map) {
            (None, _) => lines.push(
                "this was a member of a tiered volume, or is one of another format: both \
                 superblocks are lost"
                    .to_owned(),
            ),
            (Some(set), _) if set.fresh => {
                lines.push("no map yet: it was made, and never opened".to_owned());
            }
            (Some(_), Some(map)) => map_lines(&mut lines, map),
            (Some(set), None) if self.problem_count == 0 => {
                let holders: Vec<String> = set.holders.iter().map(u8::to_string).collect();
                let which = holders.join(" or ");
                lines.push(format!("the map is not here: give the device of member {which}, too"));
            }
            (Some(_), None) => {}
        }
        let shown = self.problems.iter().take(PROBLEMS_SHOWN);
        lines.extend(shown.map(|it| format!("PROBLEM: {it}")));
        let more = self.problem_count - self.problems.len().min(PROBLEMS_SHOWN) as u64;
        if more > 0 {
            lines.push(format!("PROBLEM: and {more} more"));
        }
        if self.problem_count == 0 && self.set.is_some() {
            lines.push("what is here fits together".to_owned());
        }
        lines
    }
}

fn device_lines(lines: &mut Vec<String>, it: &Device) {
    let member = it.member.map(|member| format!(", member {member}")).unwrap_or_default();
    lines.push(format!("{}: {} bytes ({}){member}", it.device, it.bytes, human(it.bytes)));
    for copy in &it.superblocks {
        let what = match (&copy.error, copy.generation, copy.life) {
            (None, Some(generation), Some(life)) => {
                format!("generation {generation}, life {life}")
            }
            (error, ..) => error.clone().unwrap_or_default(),
        };
        lines.push(format!("  superblock at {}: {what}", human(copy.offset)));
    }
}

fn set_lines(lines: &mut Vec<String>, set: &Set) {
    let ephemeral = if set.ephemeral { ", ephemeral" } else { "" };
    lines.push(format!(
        "tiered volume {} ({}): {}, up to {}{ephemeral}, generation {}, life {}",
        set.name,
        set.uuid,
        human(set.bytes),
        human(set.bytes_max),
        set.generation,
        set.life
    ));
    for it in &set.members {
        if it.state == "gone" {
            lines.push(format!("  member {}: gone", it.member));
            continue;
        }
        let mut what = vec![format!("tier {}", it.tier), format!("{} slots", it.slots)];
        what.push(human(it.bytes));
        what.extend(it.ram.then(|| "RAM".to_owned()));
        what.push(it.state.to_owned());
        what.extend(set.holders.contains(&it.member).then(|| "holds the map".to_owned()));
        what.extend(it.extents.map(|extents| format!("{extents} extents")));
        let place = match &it.device {
            Some(device) => device.clone(),
            None => format!("not here, last there in life {}", it.life),
        };
        lines.push(format!("  member {} ({}): {}: {place}", it.member, it.uuid, what.join(", ")));
    }
}

fn map_lines(lines: &mut Vec<String>, map: &Map) {
    for it in &map.holders {
        let what = match (it.is_used, it.bad_pages) {
            (false, _) => "its head is of an earlier life, so it does not count".to_owned(),
            (true, 0) => format!("{} pages, none is bad", it.pages),
            (true, bad) => {
                format!("{} pages, {bad} bad, {} of those with a double", it.pages, it.doubled)
            }
        };
        let last = it.last_record;
        lines.push(format!("map on member {}: records up to {last}; {what}", it.member));
    }
    let torn = if map.torn { ", the next one is torn" } else { "" };
    let behind = match map.records_behind {
        0 => String::new(),
        count => format!(", {count} behind a gap"),
    };
    let (first, last, life) = (map.first_record, map.last_record, map.life);
    lines.push(match map.records {
        0 => format!("journal of life {life}: no records from {first} on{torn}{behind}"),
        count => format!(
            "journal of life {life}: {count} records, {first} to {last}, confirmed up to \
             {}{torn}{behind}",
            map.confirmed_record
        ),
    });
    lines.push(format!(
        "extents: {} of {} live somewhere, {} partly written, {} not confirmed, {} lost in part \
         ({} blocks)",
        map.living,
        map.extents,
        map.partly_written,
        map.unconfirmed,
        map.lost_extents,
        map.lost_blocks
    ));
}
