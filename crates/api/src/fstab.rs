//! The table of file systems, `/etc/fstab`: its lines, as far as volumes have to do with them.

use std::path::PathBuf;

/// Where the table is, unless the variable names another file, as for systemd's own generator.
const TABLE: &str = "/etc/fstab";
const TABLE_VARIABLE: &str = "SYSTEMD_FSTAB";

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its number, from 1 on.
    pub number: usize,
    /// What is mounted: a path, or a tag as in `UUID=…`.
    pub what: String,
    /// Where.
    pub place: String,
    /// Type of the file system.
    pub kind: String,
    /// Options.
    pub options: Vec<String>,
}

/// Path of the table.
pub fn path() -> PathBuf {
    std::env::var_os(TABLE_VARIABLE).map_or(PathBuf::from(TABLE), PathBuf::from)
}

/// The lines of a table that mount something.
pub fn lines(text: &str) -> impl Iterator<Item = Line> + '_ {
    text.lines().zip(1..).filter_map(|(line, number)| parse(line, number))
}

fn parse(line: &str, number: usize) -> Option<Line> {
    let mut fields = line.split_whitespace().map(unquote);
    let what = fields.next().filter(|what| !what.starts_with('#'))?;
    let (place, kind) = (fields.next()?, fields.next()?);
    let options = fields.next().unwrap_or_default().split(',').map(str::to_string).collect();
    Some(Line { number, what, place, kind, options })
}

/// A field without the octal escapes for blanks.
fn unquote(field: &str) -> String {
    let mut text = field.to_string();
    for (quoted, plain) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(quoted, plain);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_told_apart() {
        let table = "# a comment\n\n  #UUID=1 /a ext4\n/dev/sda1\n\
                     UUID=12-ab\t/srv/my\\040data  ext4 defaults,nofail 0 2\n/dev/b /b xfs\n";
        let found: Vec<Line> = lines(table).collect();
        let line = |number, what: &str, place: &str, kind: &str, options: &[&str]| Line {
            number,
            what: what.into(),
            place: place.into(),
            kind: kind.into(),
            options: options.iter().map(ToString::to_string).collect(),
        };
        let first = line(5, "UUID=12-ab", "/srv/my data", "ext4", &["defaults", "nofail"]);
        assert_eq!(found, [first, line(6, "/dev/b", "/b", "xfs", &[""])]);
    }
}
