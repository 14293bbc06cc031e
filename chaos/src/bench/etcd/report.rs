//! The lines of the result: ratios of rounds, goals, a table for people and JSON for programs.

use serde::Serialize;

use crate::bench::{Better, median};

/// The share of the machine that others may have while something is measured.
pub(in crate::bench) const FOREIGN_MAX: f64 = 0.05;

/// What must be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::bench) enum Goal {
    /// Ours divided by the peer's must be at least this.
    RatioAtLeast(f64),
    /// Ours divided by the peer's must be at most this.
    RatioAtMost(f64),
    /// Ours must be at most this.
    ValueAtMost(f64),
    /// Nothing: it is there to be seen.
    None,
}

impl Goal {
    fn is_met(self, ours: f64, ratio: Option<f64>) -> Option<bool> {
        match self {
            Self::RatioAtLeast(least) => ratio.map(|ratio| ratio >= least),
            Self::RatioAtMost(most) => ratio.map(|ratio| ratio <= most),
            Self::ValueAtMost(most) => Some(ours <= most),
            Self::None => None,
        }
    }

    fn number(self) -> Option<f64> {
        match self {
            Self::RatioAtLeast(number) | Self::RatioAtMost(number) | Self::ValueAtMost(number) => {
                Some(number)
            }
            Self::None => None,
        }
    }

    fn describe(self, unit: &str) -> String {
        match self {
            Self::RatioAtLeast(least) => format!(">= {least} x"),
            Self::RatioAtMost(most) => format!("<= {most} x"),
            Self::ValueAtMost(most) => format!("<= {most} {unit}"),
            Self::None => String::new(),
        }
    }
}

/// One round of one measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::bench) struct Round {
    pub(in crate::bench) ours: f64,
    pub(in crate::bench) peer: Option<f64>,
    /// The share of the machine that others had, in the worse of the two.
    pub(in crate::bench) foreign: f64,
}

impl Round {
    fn ratio(&self) -> Option<f64> {
        self.peer.filter(|peer| *peer > 0.0).map(|peer| self.ours / peer)
    }
}

/// One line of the result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::bench) struct Line {
    bench: &'static str,
    pub(super) measure: String,
    unit: &'static str,
    ours: f64,
    peer: Option<f64>,
    peer_name: Option<String>,
    /// The median of the rounds' ratios.
    ratio: Option<f64>,
    ratio_min: Option<f64>,
    ratio_max: Option<f64>,
    goal: Option<f64>,
    /// `ratio` or `value`: what the goal is about.
    goal_of: Option<&'static str>,
    better: Better,
    ok: Option<bool>,
    foreign_cpu: f64,
    rounds: usize,
    /// Rounds in which others had more than 5 % of the machine although they were repeated.
    noisy_rounds: usize,
    #[serde(skip)]
    shown_goal: String,
    /// More about it.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    detail: serde_json::Map<String, serde_json::Value>,
}

fn rounded(number: f64) -> f64 {
    (number * 10_000.0).round() / 10_000.0
}

impl Line {
    /// The medians of the rounds.
    pub(in crate::bench) fn new(
        measure: impl Into<String>,
        unit: &'static str,
        rounds: &[Round],
        goal: Goal,
        better: Better,
    ) -> Self {
        let ratios: Vec<f64> = rounds.iter().filter_map(Round::ratio).collect();
        let of = |numbers: &[f64]| (!numbers.is_empty()).then(|| rounded(median(numbers)));
        let ours: Vec<f64> = rounds.iter().map(|round| round.ours).collect();
        let peers: Vec<f64> = rounds.iter().filter_map(|round| round.peer).collect();
        let ratio = of(&ratios);
        let extreme = |pick: fn(f64, f64) -> f64| ratios.iter().copied().reduce(pick).map(rounded);
        let ours = rounded(median(&ours));
        let foreign: Vec<f64> = rounds.iter().map(|round| round.foreign).collect();
        Self {
            bench: "etcd",
            measure: measure.into(),
            unit,
            ours,
            peer: of(&peers),
            peer_name: None,
            ratio,
            ratio_min: extreme(f64::min),
            ratio_max: extreme(f64::max),
            goal: goal.number(),
            goal_of: match goal {
                Goal::None => None,
                Goal::ValueAtMost(_) => Some("value"),
                Goal::RatioAtLeast(_) | Goal::RatioAtMost(_) => Some("ratio"),
            },
            better,
            ok: goal.is_met(ours, ratio),
            foreign_cpu: rounded(foreign.iter().copied().fold(0.0, f64::max)),
            rounds: rounds.len(),
            noisy_rounds: foreign.iter().filter(|share| **share > FOREIGN_MAX).count(),
            shown_goal: goal.describe(unit),
            detail: serde_json::Map::new(),
        }
    }

    /// A figure of another benchmark.
    #[must_use]
    pub(in crate::bench) fn of(self, bench: &'static str) -> Self {
        Self { bench, ..self }
    }

    /// With one more thing to be known about it.
    #[must_use]
    pub(in crate::bench) fn with(
        mut self,
        name: &str,
        value: impl Into<serde_json::Value>,
    ) -> Self {
        self.detail.insert(name.to_owned(), value.into());
        self
    }

    /// The peer's name and version.
    pub(in crate::bench) fn named(&mut self, peer: &str) {
        if self.peer.is_some() {
            self.peer_name = Some(peer.to_owned());
        }
    }

    fn verdict(&self) -> &'static str {
        match self.ok {
            Some(true) => "met",
            Some(false) => "MISSED",
            None if self.goal.is_some() => "not judged",
            None => "",
        }
    }

    fn cells(&self) -> [String; 8] {
        let ratio = match (self.ratio, self.ratio_min, self.ratio_max) {
            (Some(ratio), Some(min), Some(max)) => {
                format!("{} [{}-{}]", significant(ratio), significant(min), significant(max))
            }
            _ => "-".to_owned(),
        };
        let noisy = match self.noisy_rounds {
            0 => String::new(),
            rounds => format!(" NOISY x{rounds}"),
        };
        [
            self.measure.clone(),
            significant(self.ours),
            self.peer.map_or("-".to_owned(), significant),
            self.unit.to_owned(),
            ratio,
            self.shown_goal.clone(),
            self.verdict().to_owned(),
            format!("{:.1} %{noisy}", self.foreign_cpu * 100.0),
        ]
    }
}

/// Four digits, or all that are before the point.
fn significant(number: f64) -> String {
    let digits = match number.abs() {
        above if above >= 1000.0 => 0,
        above if above >= 100.0 => 1,
        above if above >= 10.0 => 2,
        _ => 3,
    };
    format!("{number:.digits$}")
}

/// A table for people, with what ours and the peer's are called.
pub(in crate::bench) fn table(lines: &[Line], (ours, peer): (&str, &str)) -> String {
    let head = ["measure", ours, peer, "unit", "ratio [min-max]", "goal", "", "others' CPU"];
    let head = head.map(str::to_owned);
    let rows: Vec<[String; 8]> =
        std::iter::once(head).chain(lines.iter().map(Line::cells)).collect();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..8).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            let is_number = (1..=2).contains(&column);
            line.push_str(&if is_number {
                format!("{pad}{cell}  ")
            } else {
                format!("{cell}{pad}  ")
            });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// All of it, for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report<'a> {
    pub(super) palisade: &'a str,
    pub(super) etcd: Option<&'a str>,
    pub(super) machine: &'a str,
    pub(super) unix_seconds: u64,
    pub(super) lines: &'a [Line],
    /// What could not be measured, and why.
    pub(super) failed: &'a [String],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(ours: f64, peer: f64) -> Round {
        Round { ours, peer: Some(peer), foreign: 0.01 }
    }

    fn rate(rounds: &[Round], goal: Goal) -> Line {
        Line::new("writes", "1/s", rounds, goal, Better::Higher)
    }

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_ratios_and_not_of_the_medians() {
        let line = rate(&[round(10.0, 1.0), round(9.0, 3.0), round(40.0, 8.0)], Goal::None);
        assert_eq!(
            (line.ratio, line.ratio_min, line.ratio_max),
            (Some(5.0), Some(3.0), Some(10.0))
        );
        assert_eq!((line.ours, line.peer), (10.0, Some(3.0)));
    }

    #[test]
    fn a_goal_is_met_on_its_own_side() {
        let rounds = [round(3.0, 2.0)];
        assert_eq!(rate(&rounds, Goal::RatioAtLeast(1.5)).ok, Some(true));
        assert_eq!(rate(&rounds, Goal::RatioAtLeast(1.6)).ok, Some(false));
        assert_eq!(rate(&rounds, Goal::RatioAtMost(1.5)).ok, Some(true));
        assert_eq!(rate(&rounds, Goal::RatioAtMost(1.4)).ok, Some(false));
        assert_eq!(rate(&rounds, Goal::ValueAtMost(3.0)).ok, Some(true));
        assert_eq!(rate(&rounds, Goal::ValueAtMost(2.9)).ok, Some(false));
        assert_eq!(rate(&rounds, Goal::None).ok, None);
    }

    #[test]
    fn without_a_peer_a_ratio_is_not_judged() {
        let alone = Round { ours: 3.0, peer: None, foreign: 0.0 };
        let line = rate(&[alone], Goal::RatioAtLeast(1.0));
        assert_eq!((line.ok, line.ratio, line.verdict()), (None, None, "not judged"));
        assert_eq!(rate(&[Round { peer: Some(0.0), ..alone }], Goal::None).ratio, None);
    }

    #[test]
    fn a_noisy_round_is_marked_and_the_worst_share_is_told() {
        let noisy = Round { foreign: 0.2, ..round(1.0, 1.0) };
        let line = rate(&[round(1.0, 1.0), noisy, round(1.0, 1.0)], Goal::None);
        assert_eq!((line.noisy_rounds, line.foreign_cpu), (1, 0.2));
        assert!(table(&[line], ("palisade", "etcd")).contains("20.0 % NOISY x1"));
    }

    #[test]
    fn a_table_says_what_was_missed() {
        let line = rate(&[round(1300.0, 1000.0)], Goal::RatioAtLeast(2.0));
        let text = table(&[line], ("palisade", "etcd"));
        let row = text.lines().nth(1).unwrap();
        let cells: Vec<&str> =
            row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(
            cells,
            ["writes", "1300", "1000", "1/s", "1.300 [1.300-1.300]", ">= 2 x", "MISSED", "1.0 %"]
        );
    }

    #[test]
    fn json_has_the_fields_of_every_benchmark_and_those_of_rounds() {
        let mut line = rate(&[round(2.0, 1.0)], Goal::RatioAtLeast(1.5)).with("p99Ms", 3.5);
        line.named("etcd 3");
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            r#"{"bench":"etcd","measure":"writes","unit":"1/s","ours":2.0,"peer":1.0,"peerName":"etcd 3","ratio":2.0,"ratioMin":2.0,"ratioMax":2.0,"goal":1.5,"goalOf":"ratio","better":"higher","ok":true,"foreignCpu":0.01,"rounds":1,"noisyRounds":0,"detail":{"p99Ms":3.5}}"#
        );
    }

    #[test]
    fn numbers_show_four_digits() {
        let shown = [0.0184, 2.76, 27.6, 276.4, 27_640.4].map(significant);
        assert_eq!(shown, ["0.018", "2.760", "27.60", "276.4", "27640"]);
    }
}
