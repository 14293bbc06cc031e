//! What the command line prints: data on stdout, talk on stderr.

mod cause;
pub mod exit;
pub mod failure;
pub mod human;
pub mod progress;
pub mod table;

use std::io::{self, IsTerminal, Write};

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
    let _ = writeln!(io::stderr().lock(), "{}", line.as_ref());
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

/// Prints a list.
///
/// # Errors
/// See [`render_list`] and [`data`].
pub fn print_list<V: View>(format: Format, records: &[Value]) -> Outcome {
    if records.is_empty() && matches!(format, Format::Table | Format::Wide) {
        say(format!("no {}s", V::KIND));
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
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// The whole number at a JSON pointer; 0 when there is none.
#[must_use]
pub fn number(record: &Value, pointer: &str) -> u64 {
    record.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}
