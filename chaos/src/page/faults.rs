//! The faults of a run: a lane for each process that one hit, and who led when.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    chart::Axis,
    svg::{self, LEFT, RIGHT, WIDTH, text},
};
use crate::{history::LeaderSeen, inject::Injected};

const ROW: f64 = 22.0;

/// Draws them.
pub(super) fn lanes(out: &mut String, axis: &Axis<'_>, leaders: &[LeaderSeen]) {
    let mut lanes: BTreeMap<&str, Vec<&Injected>> = BTreeMap::new();
    for fault in axis.faults {
        for hit in &fault.hit {
            lanes.entry(hit).or_default().push(fault);
        }
        if fault.hit.is_empty() {
            lanes.entry("nobody").or_default().push(fault);
        }
    }
    let height = (lanes.len() + 1) as f64 * ROW;
    svg::begin(out, height + 24.0, "Faults by whom they hit, and the replica that led");
    led(out, axis, leaders);
    for (row, (name, faults)) in (1..).map(f64::from).zip(&lanes) {
        let y = row * ROW;
        svg::line(out, (LEFT, y + ROW / 2.0), (WIDTH - RIGHT, y + ROW / 2.0), "grid");
        svg::label(out, (LEFT - 6.0, y + 15.0), "end", name);
        for fault in faults {
            one(out, axis, y, fault);
        }
    }
    axis.seconds(out, height);
    svg::end(out);
    out.push_str(
        "<p class=\"legend\"><i class=\"fault\"></i>the fault is on <i class=\"recover\"></i>until \
         ready again <i class=\"led\"></i>led (the number is the replica's)</p>\n",
    );
}

fn one(out: &mut String, axis: &Axis<'_>, y: f64, fault: &Injected) {
    let name = fault.planned.fault.name();
    let began = axis.x(fault.began_ms);
    if let Some(error) = &fault.error {
        let title = format!("{name} did not happen: {error}");
        svg::rect(out, (began, y + 4.0), (6.0, ROW - 8.0), "failed", &title);
        return;
    }
    let ended = axis.x(fault.ended_ms.max(fault.began_ms));
    let title = format!(
        "{name}{}: {} to {} ms{}",
        if fault.note.is_empty() { String::new() } else { format!(" ({})", fault.note) },
        fault.began_ms,
        fault.ended_ms,
        fault.ready_ms.map_or(", not ready again".into(), |ready| format!(", ready at {ready} ms"))
    );
    if let Some(ready) = fault.ready_ms {
        let size = (axis.x(ready.max(fault.ended_ms)) - ended, ROW - 12.0);
        svg::rect(out, (ended, y + 6.0), size, "recover", &title);
    }
    svg::rect(out, (began, y + 4.0), ((ended - began).max(2.0), ROW - 8.0), "fault", &title);
    // Beside the bar if it does not fit into it.
    let fits = ended - began > 7.0 * name.len() as f64;
    if fits {
        svg::label(out, (began + 3.0, y + 15.0), "inside", name);
    }
}

/// Whom the replicas took for the leader in the highest term until then.
fn led(out: &mut String, axis: &Axis<'_>, leaders: &[LeaderSeen]) {
    svg::label(out, (LEFT - 6.0, 15.0), "end", "leader");
    let mut terms: Vec<&LeaderSeen> = Vec::new();
    for seen in leaders {
        if terms.last().is_none_or(|last| last.term < seen.term) {
            terms.push(seen);
        }
    }
    for (index, seen) in terms.iter().enumerate() {
        let from = axis.x(seen.at / 1000);
        let until =
            terms.get(index + 1).map_or(axis.x(axis.until_ms), |next| axis.x(next.at / 1000));
        let title = format!("replica {} led in term {}", seen.leader, seen.term);
        let class = if seen.leader % 2 == 0 { "led even" } else { "led" };
        svg::rect(out, (from, 3.0), (until - from - 0.5, ROW - 6.0), class, &title);
        if until - from > 12.0 {
            svg::label(out, ((from + until) / 2.0, 15.0), "middle", &seen.leader.to_string());
        }
    }
}

/// All faults with their times.
pub(super) fn table(out: &mut String, faults: &[Injected]) {
    if faults.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<section><h2>Faults</h2>\n<details><summary>{} faults</summary>\n<div class=\"wide\"><table>\n\
         <tr><th>fault</th><th>hit</th><th class=\"n\">began</th><th class=\"n\">ended</th>\
         <th class=\"n\">ready again</th><th>what</th></tr>\n",
        faults.len()
    );
    for fault in faults {
        let ready = fault.ready_ms.map_or("never".into(), |ms| format!("{ms} ms"));
        let _ = writeln!(
            out,
            "<tr><td class=\"word\">{}</td><td>{}</td><td class=\"n\">{} ms</td><td class=\"n\">{} ms</td>\
             <td class=\"n\">{ready}</td><td class=\"words\">{}</td></tr>",
            fault.planned.fault.name(),
            text(&fault.hit.join(", ")),
            fault.began_ms,
            fault.ended_ms,
            text(fault.error.as_deref().unwrap_or(&fault.note)),
        );
    }
    out.push_str("</table></div></details></section>\n");
}
