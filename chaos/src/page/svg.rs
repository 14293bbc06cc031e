//! Pieces of SVG.

use std::fmt::Write as _;

/// Width of all drawings, in their own units.
pub(super) const WIDTH: f64 = 960.0;
/// Room for names at the left.
pub(super) const LEFT: f64 = 92.0;
/// Room at the right.
pub(super) const RIGHT: f64 = 14.0;

/// Text that is safe inside an element and inside an attribute.
#[must_use]
pub(crate) fn text(raw: &str) -> String {
    let mut safe = String::with_capacity(raw.len());
    for letter in raw.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(letter),
        }
    }
    safe
}

/// A drawing of that height, which says what it is to those who cannot see it.
pub(super) fn begin(out: &mut String, height: f64, what: &str) {
    let _ = writeln!(
        out,
        "<figure><figcaption>{0}</figcaption>\n\
         <div class=\"wide\"><svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{0}\">",
        text(what)
    );
}

/// Ends it.
pub(super) fn end(out: &mut String) {
    out.push_str("</svg></div></figure>\n");
}

/// A box with words that show when it is pointed at.
pub(super) fn rect(
    out: &mut String,
    (x, y): (f64, f64),
    (width, height): (f64, f64),
    class: &str,
    title: &str,
) {
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" class=\"{class}\">\
         <title>{}</title></rect>",
        width.max(1.0),
        height.max(0.5),
        text(title)
    );
}

/// A line.
pub(super) fn line(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
    );
}

/// Words; the class says how they are aligned.
pub(super) fn label(out: &mut String, (x, y): (f64, f64), class: &str, words: &str) {
    let _ =
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", text(words));
}
