//! Sizes as people write them in origin URIs.

/// Parses `512`, `4k`, `64M`, `64MiB`, `1.5G`: powers of 1024. `None` when it is not a size, or too
/// large.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let bytes = number.parse::<f64>().ok()? * (1u64 << shift) as f64;
    (bytes.is_finite() && bytes < (1u64 << 60) as f64).then_some(bytes as u64)
}

/// The known word nearest to `word`, for error messages.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known.into_iter().min_by_key(|candidate| distance(word, candidate))
}

/// Letters to insert, delete or change (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let cases = [
            ("0", Some(0)),
            ("512", Some(512)),
            ("4k", Some(4096)),
            ("64MiB", Some(64 << 20)),
            ("64 M", Some(64 << 20)),
            ("1.5G", Some(3 << 29)),
            ("2TB", Some(2 << 40)),
            ("", None),
            ("M", None),
            ("-1", None),
            ("1x", None),
            ("1.2.3", None),
            ("99999999999999T", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_bytes(text), want, "{text}");
        }
    }

    #[test]
    fn nearest_word() {
        assert_eq!(nearest("cahce", ["rpm", "cache", "seek"]), Some("cache"));
        assert_eq!(nearest("preest", ["preset", "rate"]), Some("preset"));
        assert_eq!(nearest("x", []), None);
    }
}
