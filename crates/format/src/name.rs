//! Names of pools and volumes: what they may be, wherever they come from. A name becomes part of
//! paths, of lines that udev and systemd read, and of what is printed; so nothing in it needs
//! quoting anywhere.

use std::fmt;

/// Most bytes of a name.
pub const NAME_BYTES_MAX: usize = 64;

/// Whether a character may be in a name.
pub fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-+@".contains(c)
}

/// Checks the name of a pool or volume.
///
/// # Errors
/// Says what is allowed.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("a name has 1 to {NAME_BYTES_MAX} characters, and {name:?} has not"));
    }
    if !name.chars().all(is_allowed) || name.starts_with(['-', '.']) {
        return Err(format!(
            "the name {name:?} is not allowed: use letters, digits and . _ - + @, and begin with \
             none of . and -"
        ));
    }
    Ok(())
}

/// A name as a device has it, whatever that is: text padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawName(pub [u8; NAME_BYTES_MAX]);

impl RawName {
    /// The name, if it is one. Behind its end are zeros and nothing else.
    pub fn checked(&self) -> Option<&str> {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        let (name, rest) = self.0.split_at(end);
        let name = std::str::from_utf8(name).ok()?;
        let is_padded = rest.iter().all(|&byte| byte == 0);
        (is_padded && check_name(name).is_ok()).then_some(name)
    }
}

/// In quotes, with every byte that is not plain text escaped.
impl fmt::Debug for RawName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        write!(f, "\"{}\"", self.0[..end].escape_ascii())
    }
}

/// Text from elsewhere in a form that stays on its line and tells a terminal nothing: characters
/// that are not printed are escaped.
pub fn escaped(text: &str) -> String {
    if text.chars().all(is_plain) {
        return text.to_owned();
    }
    let mut plain = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_plain(c) {
            true => plain.push(c),
            false => plain.extend(c.escape_debug()),
        }
    }
    plain
}

/// Whether a character shows as itself.
fn is_plain(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_mistaken_are_refused() {
        let bad = ["", "-f", ".", "..", "a b", "a/b", "ä", "a\nb", "\u{1b}[31m", &"x".repeat(65)];
        for name in bad {
            let error = check_name(name).unwrap_err();
            assert_eq!(error, escaped(&error), "{name:?}");
        }
        assert!(check_name(&"x".repeat(64)).is_ok());
    }

    #[test]
    fn a_raw_name_is_checked_to_its_last_byte_and_shown_escaped() {
        let raw = |text: &[u8]| {
            let mut bytes = [0; NAME_BYTES_MAX];
            bytes[..text.len()].copy_from_slice(text);
            RawName(bytes)
        };
        assert_eq!(raw(b"fast-1").checked(), Some("fast-1"));
        assert_eq!(raw(&[b'x'; 64]).checked().map(str::len), Some(64));
        for bad in [&b""[..], b"a\0b", b"a\nb", b"../x", b"\xff"] {
            assert_eq!(raw(bad).checked(), None, "{bad:?}");
        }
        assert_eq!(format!("{:?}", raw(b"a\nb\x1b\xff\0c")), r#""a\nb\x1b\xff\x00c""#);
    }

    #[test]
    fn what_is_escaped_is_one_line_that_a_terminal_only_shows() {
        assert_eq!(escaped("a \"b\" 'ü' \\ …"), "a \"b\" 'ü' \\ …");
        assert_eq!(escaped("a\nb\u{1b}[2J\u{9b}\u{202e}"), "a\\nb\\u{1b}[2J\\u{9b}\\u{202e}");
    }
}
