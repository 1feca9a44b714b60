//! Sizes as people write them: `512`, `4k`, `1.5TiB`, `80%`.

use std::fmt;
use std::str::FromStr;

/// A size: bytes, or a share of something that the reader knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Thousandths of the whole, 0 to 1000.
    PerMille(u16),
}

impl Size {
    /// The size in bytes when the whole is `whole_bytes`.
    pub fn of(self, whole_bytes: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::PerMille(share) => (u128::from(whole_bytes) * u128::from(share) / 1000) as u64,
        }
    }
}

/// The factor of a unit. Without `i` too it is a power of 1024, as all storage tools of Linux have
/// it.
fn factor(unit: &str) -> Option<u64> {
    let power = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        "p" | "pb" | "pib" => 5,
        _ => return None,
    };
    Some(1 << (10 * power))
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let trimmed = text.trim();
        let split =
            trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..split], trimmed[split..].trim());
        let bad = || format!("{text:?} is not a size; write 512, 4k, 1.5TiB or 80%");
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.contains('.') || fraction.len() > 9 {
            return Err(bad());
        }
        // Exact arithmetic: the number is `digits / 10^decimals`.
        let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| bad())?;
        let scale = 10_u128.pow(fraction.len() as u32);
        if unit == "%" {
            let share = digits.checked_mul(10).map(|scaled| scaled / scale);
            return match share.filter(|&share| share <= 1000) {
                Some(share) => Ok(Size::PerMille(share as u16)),
                None => Err(format!("{text:?} is more than the whole; the most is 100%")),
            };
        }
        let factor = u128::from(factor(unit).ok_or_else(bad)?);
        let bytes = digits.checked_mul(factor).map(|scaled| scaled / scale);
        match bytes.and_then(|bytes| u64::try_from(bytes).ok()) {
            Some(bytes) => Ok(Size::Bytes(bytes)),
            None => Err(format!("{text:?} is too large; the most is 16383P")),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Bytes(bytes) => f.pad(&human(*bytes)),
            Size::PerMille(share) if share % 10 == 0 => f.pad(&format!("{}%", share / 10)),
            Size::PerMille(share) => f.pad(&format!("{}.{}%", share / 10, share % 10)),
        }
    }
}

/// `bytes` for people: at most four digits and a power of 1024, `0`, `512`, `4.0K`, `1.5T`.
pub fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1023.95 && unit < 5 {
        value /= 1024.0;
        unit += 1;
    }
    let suffix = ["", "K", "M", "G", "T", "P"][unit];
    let decimals = usize::from(value < 99.95);
    format!("{value:.decimals$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let cases = [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("4 KiB", 4096),
            ("1.5TiB", 1_649_267_441_664),
            ("1.5t", 1_649_267_441_664),
            ("0.1k", 102),
            ("16383P", 16383 << 50),
            ("10GB", 10 << 30),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Size::Bytes(bytes)), "{text}");
        }
        assert_eq!("80%".parse(), Ok(Size::PerMille(800)));
        assert_eq!("0.5 %".parse(), Ok(Size::PerMille(5)));
        assert_eq!("80%".parse::<Size>().unwrap().of(1 << 40), 879_609_302_220);
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in ["", "k", "-1", "1.2.3k", "4q", "1e9", "4 k x", ".5G", "4µ"] {
            let message = text.parse::<Size>().unwrap_err();
            assert!(message.contains("1.5TiB"), "{text}: {message}");
        }
        assert!("101%".parse::<Size>().unwrap_err().contains("100%"));
        // Ten times this is 2^128 + 4: it was read as 0.4%.
        let long = "34028236692093846346337460743176821146%";
        assert!(long.parse::<Size>().unwrap_err().contains("100%"));
        assert!("16384P".parse::<Size>().unwrap_err().contains("too large"));
        assert!("99999999999999999999999999999999999999999".parse::<Size>().is_err());
    }

    #[test]
    fn sizes_are_written_short() {
        let cases = [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1536, "1.5K"),
            (102_300, "99.9K"),
            (1 << 20, "1.0M"),
            ((1 << 20) - 1, "1.0M"),
            (894 << 30, "894G"),
            (u64::MAX, "16384P"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human(bytes), text);
        }
    }
}
