//! Which bytes of a volume are in an image of it, as a mapfile of GNU ddrescue: other tools read
//! that, and ddrescue itself copies exactly these bytes onto a disk.
//!
//! Three kinds of bytes: `+` those that are in the image, `-` those that should be and could not be
//! read, `?` all others, of which the origin's own are right.

use forebay_api::rescue::RescueSpan;
use std::fmt::Write;

/// A kind of bytes, by its character in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In the image.
    Rescued,
    /// Lost, or in use.
    Unread,
}

impl Kind {
    const fn mark(self) -> char {
        match self {
            Kind::Rescued => '+',
            Kind::Unread => '-',
        }
    }
}

/// Bytes of a volume that are of a kind; the others are right at the origin.
#[derive(Debug, Default)]
pub struct Map(Vec<(RescueSpan, Kind)>);

/// The first line of each map that a rescue writes.
pub const FIRST_LINE: &str = "# Mapfile. Written by forebay volume rescue";

impl Map {
    /// Adds bytes that are behind all that are in it.
    pub fn push(&mut self, span: RescueSpan, kind: Kind) {
        match self.0.last_mut() {
            Some((last, of)) if *of == kind && last.offset + last.bytes == span.offset => {
                last.bytes += span.bytes;
            }
            _ => self.0.push((span, kind)),
        }
    }

    /// What is of this kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = RescueSpan> {
        self.0.iter().filter(move |(_, of)| *of == kind).map(|(span, _)| *span)
    }

    /// Bytes of this kind.
    pub fn bytes(&self, kind: Kind) -> u64 {
        self.of(kind).map(|span| span.bytes).sum()
    }

    /// The mapfile of a volume that has so many bytes, with these comments before it.
    pub fn text(&self, comments: &[String], volume_bytes: u64) -> String {
        let mut text = String::new();
        let mut line = |args: std::fmt::Arguments<'_>| {
            text.write_fmt(args).expect("a string takes all that there is memory for");
            text.push('\n');
        };
        line(format_args!("{FIRST_LINE}"));
        comments.iter().for_each(|comment| line(format_args!("# {comment}")));
        line(format_args!(
            "# + in the image   - not there: could not be read   ? not of the image"
        ));
        line(format_args!("# current_pos  current_status  current_pass"));
        line(format_args!("0x00000000     +               1"));
        line(format_args!("#      pos        size  status"));
        let mut at = 0;
        for (span, kind) in &self.0 {
            if span.offset > at {
                line(format_args!("0x{at:08X}  0x{:08X}  ?", span.offset - at));
            }
            line(format_args!("0x{:08X}  0x{:08X}  {}", span.offset, span.bytes, kind.mark()));
            at = span.offset + span.bytes;
        }
        if volume_bytes > at {
            line(format_args!("0x{at:08X}  0x{:08X}  ?", volume_bytes - at));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_covers_the_volume_without_gaps() {
        let mut map = Map::default();
        let span = |offset, bytes| RescueSpan { offset, bytes };
        map.push(span(512, 512), Kind::Rescued);
        map.push(span(1024, 3072), Kind::Rescued);
        map.push(span(4096, 4096), Kind::Unread);
        map.push(span(8192, 512), Kind::Rescued);
        assert_eq!(map.of(Kind::Rescued).collect::<Vec<_>>(), [span(512, 3584), span(8192, 512)]);
        assert_eq!((map.bytes(Kind::Rescued), map.bytes(Kind::Unread)), (4096, 4096));
        let text = map.text(&["volume x".to_string()], 1 << 33);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "0x00000000     +               1",
                "0x00000000  0x00000200  ?",
                "0x00000200  0x00000E00  +",
                "0x00001000  0x00001000  -",
                "0x00002000  0x00000200  +",
                "0x00002200  0x1FFFFDE00  ?",
            ]
        );
        let none = Map::default().text(&[], 4096);
        assert!(none.ends_with("\n0x00000000  0x00001000  ?\n"), "{none}");
    }
}
