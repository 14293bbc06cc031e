//! A run's report as one HTML page: nothing is loaded from elsewhere, and nothing needs a script.

mod chart;
mod faults;
mod operations;
mod svg;

use std::fmt::Write as _;

use crate::{
    bands,
    checks::Violation,
    history::History,
    report::{Judged, Latencies, Report, Verdict},
};

pub(crate) use svg::text;

const STYLE: &str = include_str!("style.css");
/// More are counted and not drawn.
const VIOLATIONS_MAX: usize = 20;
/// Charts have at most this many steps from left to right.
const BANDS_MAX: u64 = 300;

/// Renders the page.
#[must_use]
pub fn render(report: &Report, history: &History) -> String {
    let (word, class) = verdict(report.verdict);
    let mut page = String::with_capacity(128 * 1024);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{word}: chaos run, seed {seed}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header class=\"{class}\"><h1>{word}</h1><p>{sentence}</p></header>\n<main>\n",
        seed = report.seed,
        sentence = text(&sentence(report)),
    );
    about(&mut page, report);
    incomplete(&mut page, &report.incomplete);
    violations(&mut page, &report.violations);
    timeline(&mut page, report, history);
    checks(&mut page, &report.checks);
    kinds(&mut page, report, history);
    faults::table(&mut page, &report.faults);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn verdict(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Passed => ("PASSED", "passed"),
        Verdict::Violated => ("VIOLATED", "violated"),
        Verdict::Incomplete => ("INCOMPLETE", "incomplete"),
    }
}

fn sentence(report: &Report) -> String {
    let faults: usize = report.counts.faults.values().sum();
    let happened = format!("{faults} faults, {} operations", report.counts.operations);
    match report.verdict {
        Verdict::Passed => format!("Every check holds: {happened}."),
        Verdict::Violated => {
            let mut names: Vec<&str> =
                report.violations.iter().map(|violation| violation.check.as_str()).collect();
            names.dedup();
            let verb = if names.len() > 1 { "do" } else { "does" };
            format!("{} {verb} not hold: {happened}.", names.join(", "))
        }
        Verdict::Incomplete => {
            format!("Nothing wrong was found, but not everything was looked at: {happened}.")
        }
    }
}

/// A moment as people write it.
fn moment(unix_seconds: u64) -> String {
    let seconds = i64::try_from(unix_seconds).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |at| at.to_string())
}

fn about(page: &mut String, report: &Report) {
    let counts = &report.counts;
    let rows = [
        ("seed", report.seed.to_string()),
        ("product", report.product.clone()),
        ("rig", report.version.clone()),
        ("ended", moment(report.ended_at)),
        ("writes acknowledged", counts.acknowledged_writes.to_string()),
        ("reads answered", counts.answered_reads.to_string()),
        ("without an answer", counts.unknown.to_string()),
        ("refused", counts.refused.values().sum::<usize>().to_string()),
        ("tries", counts.tries.to_string()),
        ("terms", counts.terms.to_string()),
        (
            "longest silence",
            format!("{:.0} ms without an acknowledged write", report.longest_silence_ms),
        ),
        (
            "quiet phase",
            report.quiet_ms.map_or("not reached".into(), |ms| {
                format!("{ms} ms until it converged, or was given up")
            }),
        ),
    ];
    page.push_str("<section><h2>The run</h2>\n<dl>\n");
    for (name, value) in rows {
        let _ = writeln!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", text(&value));
    }
    let _ = write!(
        page,
        "</dl>\n<p>The same faults and operations again:</p>\n<pre class=\"command\">{}</pre>\n",
        text(&report.replay)
    );
    if let Some(kept) = &report.kept {
        let _ = writeln!(page, "<p>The cluster's data and logs: <code>{}</code></p>", text(kept));
    }
    page.push_str("</section>\n");
}

fn incomplete(page: &mut String, reasons: &[String]) {
    if reasons.is_empty() {
        return;
    }
    page.push_str("<section><h2>Not exercised</h2>\n<ul class=\"incomplete\">\n");
    for reason in reasons {
        let _ = writeln!(page, "<li>{}</li>", text(reason));
    }
    page.push_str("</ul></section>\n");
}

fn violations(page: &mut String, violations: &[Violation]) {
    if violations.is_empty() {
        return;
    }
    page.push_str("<section><h2>What is wrong</h2>\n");
    for violation in violations.iter().take(VIOLATIONS_MAX) {
        let _ = writeln!(
            page,
            "<article class=\"violation\"><h3>{}: {}</h3>",
            text(&violation.check),
            text(&violation.message)
        );
        // What is drawn need not be read as well.
        let open = if operations::draw(page, &violation.evidence) { "" } else { " open" };
        let _ = write!(page, "<details{open}><summary>as recorded</summary><pre>");
        for item in &violation.evidence {
            match item.as_str() {
                Some(line) => page.push_str(&text(line)),
                None => page.push_str(&text(&item.to_string())),
            }
            page.push('\n');
        }
        page.push_str("</pre></details></article>\n");
    }
    if violations.len() > VIOLATIONS_MAX {
        let more = violations.len() - VIOLATIONS_MAX;
        let _ = writeln!(page, "<p>And {more} more, in report.json.</p>");
    }
    page.push_str("</section>\n");
}

fn timeline(page: &mut String, report: &Report, history: &History) {
    let ended = history.operations.iter().map(|operation| operation.ended / 1000).max();
    let last = report.faults.iter().filter_map(|fault| fault.ready_ms).max();
    let until_ms = ended.max(last).unwrap_or(0).max(1000);
    let width = (until_ms / 1000 / BANDS_MAX).max(1);
    let bands = bands::bands(&history.operations, width);
    let axis = chart::Axis { until_ms, faults: &report.faults, bands: &bands, width };
    page.push_str("<section><h2>What happened when</h2>\n");
    faults::lanes(page, &axis, &history.leaders);
    chart::throughput(page, &axis);
    chart::latency(page, &axis, "Writes: how long", |band| &band.writes);
    chart::latency(page, &axis, "Reads: how long", |band| &band.reads);
    page.push_str("</section>\n");
}

fn checks(page: &mut String, checks: &[Judged]) {
    page.push_str(
        "<section><h2>Checks</h2>\n<div class=\"wide\"><table>\n\
         <tr><th>check</th><th>result</th><th class=\"n\">looked at</th><th>claim</th></tr>\n",
    );
    for check in checks {
        let (word, class) = match (check.violations, check.subjects) {
            (0, 0) => ("nothing to look at".to_owned(), "incomplete"),
            (0, _) => ("holds".to_owned(), "passed"),
            (count, _) => (format!("violated {count} times"), "violated"),
        };
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"word {class}\">{word}</td><td class=\"n\">{}</td>\
             <td class=\"words\">{}</td></tr>",
            text(&check.id),
            check.subjects,
            text(&check.claim)
        );
    }
    page.push_str("</table></div></section>\n");
}

fn kinds(page: &mut String, report: &Report, history: &History) {
    page.push_str(
        "<section><h2>Operations</h2>\n<div class=\"wide\"><table>\n\
         <tr><th>kind</th><th class=\"n\">done</th><th class=\"n\">p50</th><th class=\"n\">p99</th>\
         <th class=\"n\">longest</th></tr>\n",
    );
    let mut row = |name: &str, of: &Latencies| {
        let _ = writeln!(
            page,
            "<tr><td>{name}</td><td class=\"n\">{}</td><td class=\"n\">{:.1} ms</td>\
             <td class=\"n\">{:.1} ms</td><td class=\"n\">{:.1} ms</td></tr>",
            of.count, of.p50, of.p99, of.max
        );
    };
    if let Some(all) = bands::bands(&history.operations, u64::MAX).first() {
        for (kind, latencies) in &all.done {
            row(kind, latencies);
        }
    }
    row("all writes", &report.write_latency_ms);
    row("all reads", &report.read_latency_ms);
    page.push_str("</table></div>\n");
    if !report.counts.refused.is_empty() {
        page.push_str("<p>Refused:");
        for (code, count) in &report.counts.refused {
            let _ = write!(page, " {count} × <code>{}</code>", text(code));
        }
        page.push_str("</p>\n");
    }
    page.push_str("</section>\n");
}

#[cfg(test)]
mod tests;
