//! What every file of the repository must be like.

use std::{fs, path::Path, process::Command};

use crate::support::skipped;

const LINES_MAX: usize = 800;

/// The text files that git knows, with what they hold; `None` without git.
fn tracked() -> Option<Vec<(String, String)>> {
    let root = env!("CARGO_MANIFEST_DIR");
    let out = Command::new("git").args(["-C", root, "ls-files", "-z"]).output().ok()?;
    if !out.status.success() {
        return None;
    }
    let names = String::from_utf8(out.stdout).unwrap();
    let read = |name: &str| {
        // A file may be removed and not yet committed; one that is no text is no matter here, and neither are bytes
        // that were written to be read as they are.
        if name.contains("/golden/") {
            return None;
        }
        let text = fs::read_to_string(Path::new(root).join(name)).ok()?;
        Some((name.to_owned(), text))
    };
    Some(names.split('\0').filter(|name| !name.is_empty()).filter_map(read).collect())
}

/// Asserts that no file is found wanting.
#[track_caller]
fn every(look: impl Fn(&str, &str) -> Vec<String>) {
    let Some(files) = tracked() else {
        skipped("there is no git, or this is no checkout of it");
        return;
    };
    let wrong: Vec<String> = files
        .iter()
        .flat_map(|(name, text)| {
            look(name, text).into_iter().map(move |why| format!("{name}: {why}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The lines in which one of these stands. The words are put together by the caller, so that this
/// file does not find itself.
fn lines_with(text: &str, words: &[String]) -> Vec<String> {
    let numbered = text.lines().enumerate();
    let found = numbered.filter(|(_, line)| words.iter().any(|word| line.contains(word)));
    found.map(|(at, line)| format!("line {}: {}", at + 1, line.trim())).collect()
}

#[test]
fn no_file_is_longer_than_a_person_reads() {
    every(|name, text| {
        let lines = text.lines().count();
        let is_made =
            name.ends_with(".lock") || name.contains("openapi") || name.contains("/snapshots/");
        if lines > LINES_MAX && !is_made { vec![format!("{lines} lines")] } else { vec![] }
    });
}

#[test]
fn nothing_is_left_to_do() {
    let words = [["TO", "DO"], ["FIX", "ME"], ["todo", "!("], ["unimplemented", "!("]];
    let words = words.map(|parts| parts.concat());
    every(|_, text| lines_with(text, &words));
}

#[test]
fn no_file_names_a_place_on_one_machine() {
    let words = [["../", "shared"], ["/work", "/main"], ["/ro", "ot/"], ["/home", "/"]];
    let words = words.map(|parts| parts.concat());
    every(|_, text| lines_with(text, &words));
}

#[test]
fn no_file_holds_characters_that_cannot_be_seen() {
    let is_hidden = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    every(|_, text| {
        let numbered = text.lines().enumerate();
        let found = numbered.filter(|(_, line)| line.chars().any(is_hidden));
        found.map(|(at, line)| format!("line {}: {line:?}", at + 1)).collect()
    });
}

#[test]
fn every_module_says_what_it_is() {
    every(|name, text| {
        // What tests a module beside it is described by that module.
        let is_test = name.ends_with("tests.rs") || name.contains("tests/");
        if name.ends_with(".rs") && !is_test && !text.starts_with("//!") {
            vec!["does not begin with `//!`".to_owned()]
        } else {
            vec![]
        }
    });
}
