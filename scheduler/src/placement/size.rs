//! Sizes as people write and read them: `512MB`, 1.2 CPUs. Integers inside, 1024-based.

use serde_json::Value;

/// The largest number of bytes that a request may name: an exbibyte.
pub const BYTES_MAX: u64 = 1 << 60;

/// The largest number of CPU threads that a request may name.
pub const CPUS_MAX: u64 = 1_000_000;

/// Reads bytes: an integer, an integer in a string, or a number with a suffix `k m g t p`, with or
/// without `b` or `ib`. Empty is 0.
///
/// # Errors
/// What is wrong with it, in a clause.
pub fn parse_bytes(value: &Value) -> Result<u64, String> {
    let text = match value {
        Value::Number(number) => {
            return number.as_u64().filter(|bytes| *bytes <= BYTES_MAX).ok_or_else(|| {
                format!("must be a whole number of bytes from 0 to {BYTES_MAX}, is {number}")
            });
        }
        Value::String(text) => text.trim(),
        _ => return Err("must be a number of bytes or a size such as \"512MB\"".to_owned()),
    };
    if text.is_empty() {
        return Ok(0);
    }
    if text.starts_with('-') {
        return Err(format!("must not be negative, is {text:?}"));
    }
    let junk = || format!("{} is not a size; write bytes or a size such as \"512MB\"", shown(text));
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let unit: u128 = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        "p" | "pb" | "pib" => 1 << 50,
        _ => return Err(junk()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && (fraction.is_empty() || unit == 1)) {
        return Err(junk());
    }
    if whole.len() > 19 || fraction.len() > 9 {
        return Err(format!("{} has too many digits", shown(text)));
    }
    let whole: u128 = whole.parse().map_err(|_| junk())?;
    let mut bytes = whole.saturating_mul(unit);
    if !fraction.is_empty() {
        let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
        let part: u128 = fraction.parse().map_err(|_| junk())?;
        bytes = bytes.saturating_add(part.saturating_mul(unit) / scale);
    }
    u64::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= BYTES_MAX)
        .ok_or_else(|| format!("{} is more than an exbibyte", shown(text)))
}

/// Reads CPU threads, a number or a number in a string with at most three decimals, as thousandths.
///
/// # Errors
/// What is wrong with it, in a clause.
pub fn parse_cpus(value: &Value) -> Result<u64, String> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.trim().to_owned(),
        _ => return Err("must be a number of CPUs such as 0.5".to_owned()),
    };
    if text.starts_with('-') {
        return Err(format!("must not be negative, is {text}"));
    }
    let junk = || format!("{} is not a number of CPUs; write one such as 0.5", shown(&text));
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || text.ends_with('.') {
        return Err(junk());
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > 3 {
        return Err(format!("{} has more than three decimals", shown(&text)));
    }
    let too_many = || format!("must be at most {CPUS_MAX} CPUs, is {}", shown(&text));
    let whole: u64 = whole.parse().map_err(|_| too_many())?;
    if whole > CPUS_MAX {
        return Err(too_many());
    }
    let thousandths: u64 = format!("{fraction:0<3}").parse().map_err(|_| junk())?;
    Ok(whole * 1000 + thousandths)
}

fn shown(text: &str) -> String {
    let cut: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    format!("\"{cut}\"")
}

/// Thousandths of CPUs for people: `1.2`.
#[must_use]
pub fn cpus(milli: u64) -> String {
    decimal(milli / 1000, milli % 1000)
}

/// Bytes for people: `1.5 GiB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit: u64 = 1024;
    let mut name = "KiB";
    for next in units.iter().skip(1) {
        if bytes / unit < 1024 {
            break;
        }
        unit *= 1024;
        name = next;
    }
    let tenths = u128::from(bytes % unit) * 10 / u128::from(unit);
    let tenths = u64::try_from(tenths).unwrap_or(0);
    format!("{} {name}", decimal(bytes / unit, tenths * 100))
}

fn decimal(whole: u64, thousandths: u64) -> String {
    if thousandths == 0 {
        return whole.to_string();
    }
    let fraction = format!("{thousandths:03}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}
