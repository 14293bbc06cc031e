//! Charts over the time of a run: how much was done, and how long it took.

use std::fmt::Write as _;

use super::svg::{self, LEFT, RIGHT, WIDTH};
use crate::{bands::Second, inject::Injected, report::Latencies};

/// What all drawings of a run share.
pub(super) struct Axis<'a> {
    pub(super) until_ms: u64,
    pub(super) faults: &'a [Injected],
    pub(super) bands: &'a [Second],
    /// Seconds of each band.
    pub(super) width: u64,
}

impl Axis<'_> {
    /// Where a moment is, in milliseconds of the run.
    pub(super) fn x(&self, ms: u64) -> f64 {
        let share = ms.min(self.until_ms) as f64 / self.until_ms as f64;
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    /// The faults as shades behind a chart.
    fn shade(&self, out: &mut String, height: f64) {
        for fault in self.faults.iter().filter(|fault| fault.error.is_none()) {
            let (from, until) =
                (self.x(fault.began_ms), self.x(fault.ended_ms.max(fault.began_ms)));
            let title = format!("{} {}", fault.planned.fault.name(), fault.hit.join(", "));
            svg::rect(out, (from, 0.0), (until - from, height), "shade", &title);
        }
    }

    /// Seconds below a drawing.
    pub(super) fn seconds(&self, out: &mut String, y: f64) {
        let seconds = self.until_ms / 1000;
        let steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200];
        let step = steps.into_iter().find(|step| seconds / step <= 12).unwrap_or(86_400);
        for second in (0..=seconds).step_by(usize::try_from(step).unwrap_or(1)) {
            let x = self.x(second * 1000);
            svg::line(out, (x, y), (x, y + 4.0), "axis");
            svg::label(out, (x, y + 15.0), "middle", &format!("{second} s"));
        }
    }

    fn band_x(&self, band: &Second) -> (f64, f64) {
        let from = self.x(band.second * 1000);
        (from, self.x((band.second + self.width) * 1000) - from)
    }
}

/// A round number that is not below.
fn round_up(value: f64) -> f64 {
    let mut round = 1.0;
    while round < value {
        for factor in [2.0, 5.0, 10.0] {
            if round * factor >= value {
                return round * factor;
            }
        }
        round *= 10.0;
    }
    round
}

/// What was done, not answered and refused in each second, above each other.
pub(super) fn throughput(out: &mut String, axis: &Axis<'_>) {
    const HEIGHT: f64 = 150.0;
    svg::begin(out, HEIGHT + 24.0, "Operations that ended, each second");
    axis.shade(out, HEIGHT);
    let parts = |band: &Second| {
        [
            ("reads", band.reads.count),
            ("writes", band.writes.count),
            ("refused", band.refused),
            ("unknown", band.unknown),
        ]
    };
    let seconds = axis.width as f64;
    let all = |band: &Second| parts(band).iter().map(|(_, count)| count).sum::<usize>();
    let most = axis.bands.iter().map(all).max().unwrap_or(0) as f64 / seconds;
    let top = round_up(most);
    let y = |value: f64| HEIGHT - value / top * (HEIGHT - 8.0);
    for value in [top / 2.0, top] {
        svg::line(out, (LEFT, y(value)), (WIDTH - RIGHT, y(value)), "grid");
        svg::label(out, (LEFT - 6.0, y(value) + 4.0), "end", &format!("{value}"));
    }
    for band in axis.bands {
        let (x, width) = axis.band_x(band);
        let words: Vec<String> =
            parts(band).iter().map(|(name, count)| format!("{count} {name}")).collect();
        let title = format!("from {} s: {}", band.second, words.join(", "));
        let mut below = 0.0;
        for (name, count) in parts(band).into_iter().filter(|(_, count)| *count > 0) {
            let count = count as f64 / seconds;
            let (upper, lower) = (y(below + count), y(below));
            let at = (x + 0.5, upper);
            svg::rect(out, at, (width - 1.0, lower - upper), name, &title);
            below += count;
        }
    }
    svg::line(out, (LEFT, HEIGHT), (WIDTH - RIGHT, HEIGHT), "axis");
    axis.seconds(out, HEIGHT);
    svg::end(out);
    out.push_str(
        "<p class=\"legend\"><i class=\"reads\"></i>reads <i class=\"writes\"></i>writes \
         <i class=\"refused\"></i>refused <i class=\"unknown\"></i>without an answer \
         <i class=\"shade\"></i>a fault is on</p>\n",
    );
}

/// The band from the half to the 99th percentile in each second, in decades.
pub(super) fn latency(
    out: &mut String,
    axis: &Axis<'_>,
    what: &str,
    of: impl Fn(&Second) -> &Latencies,
) {
    const HEIGHT: f64 = 150.0;
    svg::begin(out, HEIGHT + 24.0, &format!("{what} (milliseconds; p50, p99, longest)"));
    axis.shade(out, HEIGHT);
    let longest = axis.bands.iter().map(|band| of(band).max).fold(10.0, f64::max);
    let decades = longest.log10().ceil().max(1.0);
    // From 0.1 ms at the bottom.
    let y = |ms: f64| {
        let share = (ms.max(0.1).log10() + 1.0) / (decades + 1.0);
        HEIGHT - share * (HEIGHT - 8.0)
    };
    let mut value = 0.1;
    while value <= 10f64.powf(decades) * 1.01 {
        svg::line(out, (LEFT, y(value)), (WIDTH - RIGHT, y(value)), "grid");
        svg::label(
            out,
            (LEFT - 6.0, y(value) + 4.0),
            "end",
            &format!("{}", (value * 10.0).round() / 10.0),
        );
        value *= 10.0;
    }
    for run in axis.bands.split(|band| of(band).count == 0).filter(|run| !run.is_empty()) {
        let middle = |band: &Second| {
            let (x, width) = axis.band_x(band);
            x + width / 2.0
        };
        let mut upper = String::new();
        let mut lower = Vec::new();
        let mut half = String::new();
        for band in run {
            // A band alone has a width too.
            let (x, width) = axis.band_x(band);
            let ends = if run.len() == 1 { vec![x, x + width] } else { vec![middle(band)] };
            for x in ends {
                let latencies = of(band);
                let _ = write!(upper, "{x:.1},{:.1} ", y(latencies.p99));
                let _ = write!(half, "{x:.1},{:.1} ", y(latencies.p50));
                lower.push(format!("{x:.1},{:.1}", y(latencies.p50)));
            }
        }
        lower.reverse();
        let _ = writeln!(
            out,
            "<polygon points=\"{upper}{}\" class=\"band\"/><polyline points=\"{half}\" class=\"half\"/>",
            lower.join(" ")
        );
        for band in run {
            let latencies = of(band);
            let title = format!(
                "from {} s: {} of them, p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms",
                band.second, latencies.count, latencies.p50, latencies.p99, latencies.max
            );
            let at = (middle(band) - 1.5, y(latencies.max) - 1.5);
            svg::rect(out, at, (3.0, 3.0), "longest", &title);
        }
    }
    svg::line(out, (LEFT, HEIGHT), (WIDTH - RIGHT, HEIGHT), "axis");
    axis.seconds(out, HEIGHT);
    svg::end(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_of_a_chart_is_a_round_number() {
        assert_eq!(
            [0.3, 1.0, 1.1, 4.0, 7.0, 130.0].map(round_up),
            [1.0, 1.0, 2.0, 5.0, 10.0, 200.0]
        );
    }
}
