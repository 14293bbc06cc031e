//! What the command line prints: data on stdout, talk on stderr.
//!
//! # Invariants
//! - `OUT-1` Nothing that a record or a refusal holds reaches a terminal as a control or direction character: tables, pages
//!   and talk show it escaped. `-o json` and `-o yaml` have escapes of their own; logs of instances are passed on as they are.

mod cause;
pub mod exit;
pub mod failure;
pub mod human;
pub mod progress;
pub mod table;

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
};

use serde_json::Value;

pub use exit::Exit;
pub use failure::{Failure, Outcome};
pub use progress::Progress;
pub use table::Table;

/// How data is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Columns.
    #[default]
    Table,
    /// More columns.
    Wide,
    /// The API's records: an array for a list, an object for one thing.
    Json,
    /// The same as YAML.
    Yaml,
    /// `kind/name`, one a line.
    Name,
}

/// How one kind of record is shown.
pub trait View {
    /// The kind, as `-o name` says it.
    const KIND: &'static str;

    /// The table of some records.
    fn table(records: &[Value], wide: bool) -> Table;

    /// What identifies a record to a person.
    fn name(record: &Value) -> &str {
        text(record, "/name").unwrap_or_else(|| text(record, "/id").unwrap_or("-"))
    }
}

/// Writes data to stdout. A reader that went away (`| head`) is no error.
///
/// # Errors
/// The output cannot be written.
pub fn data(bytes: &[u8]) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::caused("cannot write to stdout", &error)),
        Ok(()) => Ok(()),
    }
}

/// Says a line on stderr. That nobody listens is no error.
pub fn say(line: impl AsRef<str>) {
    let _ = writeln!(io::stderr().lock(), "{}", visible(line.as_ref()));
}

/// Says why a verb failed on stderr: for people, or as the last line, one JSON object, where JSON is asked for.
pub fn complain(format: Format, failure: &Failure) {
    match format {
        Format::Json => {
            let _ = writeln!(io::stderr().lock(), "{}", failure.document());
        }
        _ => say(failure.to_string()),
    }
}

/// `OUT-1`: what others wrote, with what would move the cursor or turn the direction of writing made visible; lines
/// stay lines.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    let is_hidden = |letter: char| {
        (letter.is_control() && letter != '\n' && letter != '\t')
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let shown = |letter: char| {
        if is_hidden(letter) { letter.escape_unicode().to_string() } else { letter.to_string() }
    };
    Cow::Owned(text.chars().map(shown).collect())
}

/// The same on one line.
#[must_use]
pub fn on_one_line(text: String) -> String {
    match visible(&text) {
        Cow::Owned(shown) => shown.replace('\n', "\\n").replace('\t', " "),
        Cow::Borrowed(_) if text.contains(['\n', '\t']) => {
            text.replace('\n', "\\n").replace('\t', " ")
        }
        Cow::Borrowed(_) => text,
    }
}

/// Whether stderr is a terminal, so that lines may live.
#[must_use]
pub fn is_live() -> bool {
    io::stderr().is_terminal()
}

/// Text of some records.
///
/// # Errors
/// A record cannot be encoded.
pub fn render_list<V: View>(format: Format, records: &[Value]) -> Outcome<String> {
    Ok(match format {
        Format::Table | Format::Wide => V::table(records, format == Format::Wide).render(),
        Format::Name => {
            records.iter().map(|record| format!("{}/{}\n", V::KIND, V::name(record))).collect()
        }
        Format::Json | Format::Yaml => render_value(format, &Value::Array(records.to_vec()))?,
    })
}

/// Text of one record; as a table it is a list of its fields.
///
/// # Errors
/// The record cannot be encoded.
pub fn render_one<V: View>(format: Format, record: &Value) -> Outcome<String> {
    Ok(match format {
        Format::Name => format!("{}/{}\n", V::KIND, V::name(record)),
        Format::Table | Format::Wide => render_value(Format::Yaml, record)?,
        Format::Json | Format::Yaml => render_value(format, record)?,
    })
}

/// Text of a value as JSON or YAML.
///
/// # Errors
/// The value cannot be encoded.
pub fn render_value(format: Format, value: &Value) -> Outcome<String> {
    if format == Format::Json {
        let mut text = serde_json::to_string_pretty(value)
            .map_err(|error| Failure::caused("cannot encode the answer as JSON", &error))?;
        text.push('\n');
        return Ok(text);
    }
    serde_yaml_ng::to_string(value)
        .map_err(|error| Failure::caused("cannot encode the answer as YAML", &error))
}

/// Records in the order of their names: ids say when, and people look for names.
#[must_use]
pub fn by_name(mut records: Vec<Value>) -> Vec<Value> {
    records.sort_by(|one, other| {
        let key = |record| numbered(text(record, "/name").unwrap_or_default());
        key(one).cmp(&key(other))
    });
    records
}

/// A name that ends in a number stands by it: `web-2` before `web-10`.
fn numbered(name: &str) -> (&str, u64, &str) {
    let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let number = name.get(stem.len()..).unwrap_or_default();
    (stem, number.parse().unwrap_or(0), name)
}

/// A kind of thing in the plural: `nodes`, `approval-policies`.
#[must_use]
pub fn many(kind: &str) -> String {
    match kind.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ => format!("{kind}s"),
    }
}

/// Prints a list.
///
/// # Errors
/// See [`render_list`] and [`data`].
pub fn print_list<V: View>(format: Format, records: &[Value]) -> Outcome {
    if records.is_empty() && matches!(format, Format::Table | Format::Wide) {
        say(format!("no {}", many(V::KIND)));
        return Ok(());
    }
    data(render_list::<V>(format, records)?.as_bytes())
}

/// Prints one record.
///
/// # Errors
/// See [`render_one`] and [`data`].
pub fn print_one<V: View>(format: Format, record: &Value) -> Outcome {
    data(render_one::<V>(format, record)?.as_bytes())
}

/// The text at a JSON pointer; none when it is empty.
#[must_use]
pub fn text<'a>(record: &'a Value, pointer: &str) -> Option<&'a str> {
    record.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// The text at a JSON pointer, or `-`.
#[must_use]
pub fn cell(record: &Value, pointer: &str) -> String {
    match record.pointer(pointer) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) if text.is_empty() => "-".to_owned(),
        Some(Value::String(text)) => on_one_line(text.clone()),
        Some(other) => on_one_line(other.to_string()),
    }
}

/// The whole number at a JSON pointer; 0 when there is none.
#[must_use]
pub fn number(record: &Value, pointer: &str) -> u64 {
    record.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_have_a_plural() {
        let all = ["node", "approval-policy", "secret-key"].map(many);
        assert_eq!(all, ["nodes", "approval-policies", "secret-keys"]);
    }

    #[test]
    fn what_would_move_the_cursor_is_shown_and_not_done() {
        let hostile = "x\u{1b}[2K\u{1b}[1A\ny\u{202e}z\u{9b}";
        let mut table = Table::new(&["NAME"]);
        table.row(vec![hostile.to_owned()]);
        let shown = table.render();
        assert!(!shown.contains(['\u{1b}', '\u{202e}', '\u{9b}']), "OUT-1: {shown:?}");
        assert_eq!(shown.lines().count(), 2, "OUT-1: a cell adds no line: {shown:?}");
        assert_eq!(
            cell(&json!({"a": hostile}), "/a"),
            "x\\u{1b}[2K\\u{1b}[1A\\ny\\u{202e}z\\u{9b}"
        );
        assert_eq!(visible("two\nlines, ärger 東京"), "two\nlines, ärger 東京");
    }

    #[test]
    fn names_that_end_in_numbers_are_in_their_order() {
        let named = |name: &str| json!({"name": name});
        let sorted = by_name(vec![named("web-10"), named("web-2"), named("api"), named("web-1")]);
        let names: Vec<&str> = sorted.iter().filter_map(|one| text(one, "/name")).collect();
        assert_eq!(names, ["api", "web-1", "web-2", "web-10"]);
    }
}
