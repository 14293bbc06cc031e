//! Numbers and times as people read them.

use jiff::Timestamp;

const KIB: f64 = 1024.0;

/// Bytes with a binary unit: `512 B`, `1.5 GiB`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn bytes(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < KIB {
            break;
        }
        value /= KIB;
        unit = next;
    }
    if value < 10.0 && (value * 10.0).round() % 10.0 != 0.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// A number of CPUs without needless digits: `2`, `0.5`, `1.25`.
#[must_use]
pub fn cpus(count: f64) -> String {
    let text = format!("{count:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A span of seconds in its largest unit or two: `45s`, `3m`, `5h`, `12d`.
#[must_use]
pub fn span(seconds: i64) -> String {
    match seconds {
        ..=0 => "0s".to_owned(),
        1..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A count with its noun: `1 instance`, `3 instances`.
#[must_use]
pub fn count(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// How long ago an RFC 3339 time was; `-` when it is none.
#[must_use]
pub fn age(time: Option<&str>, now: Timestamp) -> String {
    match time.and_then(|text| text.parse::<Timestamp>().ok()) {
        Some(then) => span(now.as_second() - then.as_second()),
        None => "-".to_owned(),
    }
}

/// How long until an RFC 3339 time; `-` when it is none, `expired` when it has passed.
#[must_use]
pub fn until(time: Option<&str>, now: Timestamp) -> String {
    match time.and_then(|text| text.parse::<Timestamp>().ok()) {
        Some(then) if then <= now => "expired".to_owned(),
        Some(then) => span(then.as_second() - now.as_second()),
        None => "-".to_owned(),
    }
}

/// A path as a word of a shell's command line.
#[must_use]
pub fn shell(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A duration in a unit in which it is not nothing.
#[must_use]
pub fn limit(duration: std::time::Duration) -> String {
    if duration.as_secs() >= 1 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{} ms", duration.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_unit_that_fits() {
        let shown: Vec<_> =
            [0, 1023, 1024, 1536, 10 * 1024 * 1024, 8_589_934_592].map(bytes).into();
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "1.5 KiB", "10 MiB", "8 GiB"]);
    }

    #[test]
    fn ages_are_short() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        assert_eq!(age(Some("2026-01-01T23:59:15Z"), now), "45s");
        assert_eq!(age(Some("2026-01-01T00:00:00.5Z"), now), "24h");
        assert_eq!(age(None, now), "-");
        assert_eq!(until(Some("2026-01-01T00:00:00Z"), now), "expired");
        assert_eq!([0.5, 2.0, 1.25].map(cpus), ["0.5", "2", "1.25"]);
    }
}
