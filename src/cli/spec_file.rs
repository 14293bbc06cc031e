//! Reading specs: a file, a directory or standard input; YAML, JSON or TOML.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;

use super::strict::{self, Strict};

use crate::output::{Exit, Failure, Outcome, human};

/// The largest spec that is sent.
pub(super) const SPEC_BYTES_MAX: u64 = 1024 * 1024;
const FILES_MAX: usize = 1000;

/// One spec and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spec {
    pub value: Value,
    pub origin: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Yaml,
    Json,
    Toml,
}

impl Language {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            "toml" => Some(Self::Toml),
            _ => None,
        }
    }
}

impl Language {
    /// By the first line that says something.
    fn guess(text: &str) -> Self {
        let says = |line: &&str| !line.is_empty() && !line.starts_with('#');
        let first = text.lines().map(str::trim).find(says).unwrap_or("");
        let key = |c: char| c.is_ascii_alphanumeric() || "-_.\"".contains(c);
        let is_toml = match first.split_once('=') {
            Some((before, _)) => before.trim().chars().all(key),
            None => first.starts_with('[') && first.ends_with(']') && !first.contains(','),
        };
        match first.chars().next() {
            // JSON is YAML, but its own parser says more exactly what is wrong.
            Some('{') => Self::Json,
            _ if is_toml => Self::Toml,
            _ => Self::Yaml,
        }
    }
}

/// Reads all specs that `path` means; `-` is standard input.
pub(super) fn read(path: &Path) -> Outcome<Vec<Spec>> {
    if path.as_os_str() == "-" {
        return parse(
            "standard input",
            None,
            &limited("standard input", io::stdin().lock(), None)?,
        );
    }
    let meta = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    if !meta.is_dir() {
        return read_file(path);
    }
    let mut specs = Vec::new();
    for file in files(path)? {
        specs.extend(read_file(&file)?);
    }
    if specs.is_empty() {
        return Err(Failure::usage(format!(
            "{} holds no .yaml, .yml, .json or .toml file",
            path.display()
        )));
    }
    Ok(specs)
}

fn files(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(|error| unreadable(dir, &error))? {
        let path = entry.map_err(|error| unreadable(dir, &error))?.path();
        if path.is_file() && Language::of(&path).is_some() {
            files.push(path);
        }
    }
    if files.len() > FILES_MAX {
        return Err(Failure::usage(format!(
            "{} holds {} specs, and at most {FILES_MAX} are taken at once",
            dir.display(),
            files.len()
        )));
    }
    files.sort();
    Ok(files)
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Error };
    Failure::new(exit, format!("cannot read {}: {error}", path.display()))
}

fn read_file(path: &Path) -> Outcome<Vec<Spec>> {
    let origin = path.display().to_string();
    let file = fs::File::open(path).map_err(|error| unreadable(path, &error))?;
    let size = file.metadata().ok().filter(fs::Metadata::is_file).map(|meta| meta.len());
    parse(&origin, Language::of(path), &limited(&origin, file, size)?)
}

/// Reads no more than the limit, whatever it is that is read.
fn limited(origin: &str, from: impl Read, size: Option<u64>) -> Outcome<Vec<u8>> {
    let too_large = |size: String| {
        Failure::usage(format!(
            "{origin} is too large for a spec: it has {size}, and the limit is {}",
            human::bytes(SPEC_BYTES_MAX)
        ))
        .hint("nothing was sent; large files belong on the nodes or in an image, not in a spec")
    };
    if let Some(size) = size.filter(|size| *size > SPEC_BYTES_MAX) {
        return Err(too_large(format!("{size} bytes ({})", human::bytes(size))));
    }
    let mut bytes = Vec::new();
    from.take(SPEC_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::caused(format!("cannot read {origin}"), &error))?;
    if bytes.len() as u64 > SPEC_BYTES_MAX {
        return Err(too_large(format!("more than {SPEC_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn parse(origin: &str, language: Option<Language>, bytes: &[u8]) -> Outcome<Vec<Spec>> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Failure::usage(format!(
            "{origin} is not UTF-8: the byte at offset {} is no text",
            error.valid_up_to()
        ))
        .hint("save it as UTF-8; nothing was sent")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(Failure::usage(format!("{origin} is empty")).hint("see examples/hello.yaml"));
    }
    let language = language.unwrap_or_else(|| Language::guess(text));
    let values = match language {
        Language::Yaml => yaml(origin, text)?,
        Language::Json => json(origin, text)?,
        Language::Toml => vec![toml(origin, text)?],
    };
    let mut specs = Vec::new();
    for value in values {
        if !value.is_object() {
            let kind = kind(&value);
            return Err(Failure::usage(format!("{origin} holds {kind} where a spec belongs"))
                .hint("a spec begins with `name: …`; see examples/hello.yaml"));
        }
        specs.push(Spec { value, origin: origin.to_owned() });
    }
    if specs.is_empty() {
        return Err(Failure::usage(format!("{origin} is empty")).hint("see examples/hello.yaml"));
    }
    Ok(specs)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn syntax(origin: &str, name: &str, line: usize, column: usize, reason: &str) -> Failure {
    Failure::usage(format!("{origin}:{line}:{column}: not valid {name}: {reason}"))
}

fn yaml(origin: &str, text: &str) -> Outcome<Vec<Value>> {
    if let Some((line, column)) = strict::too_deep(text) {
        let reason = format!("it is nested deeper than {} levels", strict::DEPTH_MAX);
        return Err(syntax(origin, "YAML", line, column, &reason));
    }
    let mut values = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let Strict(value) =
            Strict::deserialize(document).map_err(|error| yaml_error(origin, text, &error))?;
        // `---` before the first or after the last document is no document.
        if !value.is_null() {
            values.push(value);
        }
    }
    Ok(values)
}

fn yaml_error(origin: &str, text: &str, error: &serde_yaml_ng::Error) -> Failure {
    let reason = error.to_string();
    let short = reason.split(" at line ").next().unwrap_or(&reason);
    match (error.location(), strict::twice(short)) {
        // The place of the error is where the object begins.
        (place, Some(key)) => {
            let begin = place.map_or(1, |place| place.line());
            let line = strict::second(text, key, begin);
            Failure::usage(format!("{origin}:{line}: not valid YAML: {short}"))
        }
        (Some(place), None) => syntax(origin, "YAML", place.line(), place.column(), short),
        (None, None) => Failure::usage(format!("{origin}: not valid YAML: {reason}")),
    }
}

fn json(origin: &str, text: &str) -> Outcome<Vec<Value>> {
    let Strict(value) = serde_json::from_str(text).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.split(" at line ").next().unwrap_or(&reason).to_owned();
        syntax(origin, "JSON", error.line(), error.column(), &reason)
    })?;
    Ok(match value {
        Value::Array(values) => values,
        value => vec![value],
    })
}

fn toml(origin: &str, text: &str) -> Outcome<Value> {
    toml::from_str(text).map_err(|error| {
        let before = &text[..error.span().map_or(0, |span| span.start.min(text.len()))];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        syntax(origin, "TOML", line, column, error.message())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(language: Option<Language>, bytes: &[u8]) -> String {
        parse("f", language, bytes).unwrap_err().to_string()
    }

    #[test]
    fn all_three_languages_say_the_same() {
        let yaml = parse("f", Some(Language::Yaml), b"name: a\ncount: 2\n").unwrap();
        let json = parse("f", Some(Language::Json), br#"{"name":"a","count":2}"#).unwrap();
        let toml = parse("f", Some(Language::Toml), b"name = \"a\"\ncount = 2\n").unwrap();
        assert_eq!(yaml[0].value, json!({"name": "a", "count": 2}));
        assert_eq!((&yaml, &yaml), (&json, &toml));
    }

    #[test]
    fn the_language_of_standard_input_is_guessed() {
        for (text, language) in [
            ("# hi\nname = \"a\"\n", Language::Toml),
            ("[task]\ncommand = []", Language::Toml),
            ("{\"name\": 1}", Language::Json),
            ("name: a=b\n", Language::Yaml),
            ("[1, 2]", Language::Yaml),
            ("---\nname: a", Language::Yaml),
        ] {
            assert_eq!(Language::guess(text), language, "{text}");
        }
    }

    #[test]
    fn a_yaml_file_may_hold_several_documents() {
        let specs = parse("f", None, b"---\nname: a\n---\nname: b\n---\n").unwrap();
        assert_eq!(specs.len(), 2);
    }

    #[test]
    fn what_is_not_utf8_is_refused_with_the_offset() {
        assert_eq!(
            refused(None, b"name: \xff"),
            "error: f is not UTF-8: the byte at offset 6 is no text\nhint: save it as UTF-8; nothing was sent"
        );
    }

    #[test]
    fn what_is_empty_is_refused() {
        for empty in [b"".as_slice(), b" \n\n", b"---\n", b"# only a comment\n"] {
            assert!(refused(None, empty).starts_with("error: f is empty"));
        }
    }

    #[test]
    fn what_is_too_large_is_refused_with_size_and_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big.yaml");
        fs::File::create(&path).unwrap().set_len(50 * 1024 * 1024).unwrap();
        let error = read(&path).unwrap_err();
        assert!(
            error.detail.contains("52428800 bytes (50 MiB), and the limit is 1 MiB"),
            "{error}"
        );
        assert_eq!(error.exit, Exit::Usage);
        let endless = limited("standard input", io::repeat(b'a'), None).unwrap_err();
        assert!(endless.detail.contains("more than 1048576 bytes"), "{endless}");
    }

    #[test]
    fn a_syntax_error_has_line_and_column() {
        insta::assert_snapshot!(refused(Some(Language::Yaml), b"name: a\ncount: [1\n"), @r"
        error: f:3:1: not valid YAML: did not find expected ',' or ']'
        ");
        insta::assert_snapshot!(refused(Some(Language::Json), b"{\"name\": \"a\",}"), @r"
        error: f:1:14: not valid JSON: trailing comma
        ");
        insta::assert_snapshot!(refused(Some(Language::Toml), b"name = \"a\"\ncount = = 2\n"), @r"
        error: f:2:9: not valid TOML: extra `=`, expected nothing
        ");
        insta::assert_snapshot!(refused(None, b"- 1\n- 2\n"), @r"
        error: f holds a list where a spec belongs
        hint: a spec begins with `name: …`; see examples/hello.yaml
        ");
    }

    #[test]
    fn a_key_twice_is_refused_with_its_line() {
        insta::assert_snapshot!(refused(Some(Language::Yaml), b"name: a\ncount: 3\nenv:\n  count: 1\ncount: 4\n"), @r"
        error: f:5: not valid YAML: the key `count` is there twice
        ");
        let json = refused(Some(Language::Json), b"{\"count\": 3,\n\"count\": 4}");
        assert!(json.starts_with("error: f:2:"), "{json}");
        assert!(json.contains("the key `count` is there twice"), "{json}");
    }

    #[test]
    fn nesting_without_end_is_refused_before_it_is_parsed() {
        let text = format!("name: a\nx: {}", "[".repeat(100_000));
        insta::assert_snapshot!(refused(Some(Language::Yaml), text.as_bytes()), @r"
        error: f:2:68: not valid YAML: it is nested deeper than 64 levels
        ");
    }

    #[test]
    fn a_directory_is_read_in_the_order_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b.json"), r#"{"name":"b"}"#).unwrap();
        fs::write(dir.path().join("a.yaml"), "name: a").unwrap();
        fs::write(dir.path().join("README"), "no spec").unwrap();
        let names: Vec<_> =
            read(dir.path()).unwrap().iter().map(|spec| spec.value["name"].clone()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn an_empty_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap_err().detail.contains("holds no .yaml"));
        assert_eq!(read(&dir.path().join("none")).unwrap_err().exit, Exit::NotFound);
    }
}
