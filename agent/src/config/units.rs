//! Durations and sizes as people write them, and back.

use std::time::Duration;

/// What a duration may look like.
pub(super) const DURATION: &str = "a duration such as `4500ms`, `5s`, `2m`, `1h` or `1m30s`";
/// What a size may look like.
pub(super) const SIZE: &str = "a size such as `64KiB`, `64MiB`, `1GiB`, or a number of bytes";

/// Parses numbers with units, added up: `1m30s`. Milliseconds are the finest.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split_number(rest)?;
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(end)?;
        let milliseconds = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(milliseconds)?)?;
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::from_millis(total))
}

/// The shortest exact form in one unit of seconds or milliseconds.
pub(super) fn print_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    if milliseconds.is_multiple_of(1000) {
        format!("{}s", milliseconds / 1000)
    } else {
        format!("{milliseconds}ms")
    }
}

/// Parses bytes, with the binary units of Kubernetes (`Mi`) or with a `B` after them (`MiB`).
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_number(text)?;
    let shift = match unit {
        "" | "B" => 0,
        "Ki" | "KiB" => 10,
        "Mi" | "MiB" => 20,
        "Gi" | "GiB" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// In the largest unit that divides it.
pub(super) fn print_size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at_checked(end)?;
    Some((digits.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("0s", Some(0)),
            ("4500ms", Some(4500)),
            ("5s", Some(5000)),
            ("1m30s", Some(90_000)),
            ("2h", Some(7_200_000)),
            ("", None),
            ("5", None),
            ("s", None),
            ("5 s", None),
            ("-5s", None),
            ("1.5s", None),
            ("5sec", None),
            ("99999999999999999999s", None),
            ("18446744073709551615h", None),
        ] {
            assert_eq!(parse_duration(text), milliseconds.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("1024", Some(1024)),
            ("1KiB", Some(1024)),
            ("64Mi", Some(64 << 20)),
            ("1GiB", Some(1 << 30)),
            ("12B", Some(12)),
            ("", None),
            ("MiB", None),
            ("1MB", None),
            ("1 MiB", None),
            ("-1", None),
            ("18446744073709551615GiB", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(milliseconds in 0..u64::MAX / 1000, bytes: u64) {
            let duration = Duration::from_millis(milliseconds);
            prop_assert_eq!(parse_duration(&print_duration(duration)), Some(duration));
            prop_assert_eq!(parse_size(&print_size(bytes)), Some(bytes));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = (parse_duration(&text), parse_size(&text));
        }
    }
}
