//! `palisade cluster upgrade`: who runs what, and which replica is next. It changes nothing.

use serde_json::{Value, json};

use super::look::{Change, SILENT_MS, leader, of_leader};
use crate::{
    cli::{Session, survey::members},
    output::{self, Exit, Failure, Format, Outcome, Table, cell, number, text},
};

/// Entries that a replica may lack while another one is taken away.
const LAG_MAX: u64 = 1_000;

/// Flags of `cluster upgrade`.
#[derive(Debug, clap::Args)]
pub(super) struct Upgrade {
    /// The release that all are to run [default: the newest of those that they run and this program's]
    #[arg(long, value_name = "VERSION", value_parser = release)]
    to: Option<String>,
}

/// A release as it is ordered: by its numbers.
fn rank(version: &str) -> (Vec<u64>, bool, String) {
    // What follows a `+` is of a build, and orders nothing (semver.org, 10).
    let version = version.split('+').next().unwrap_or_default();
    let core = version.split('-').next().unwrap_or_default();
    let numbers = core.split('.').map(|number| number.parse().unwrap_or(0)).collect();
    // `1.2.0-rc` comes before `1.2.0`.
    (numbers, !version.contains('-'), version.to_owned())
}

/// A release that somebody names.
fn release(text: &str) -> Result<String, String> {
    if text.contains('+') {
        return Err("builds of one release are not told apart: leave out the `+` and what follows"
            .to_owned());
    }
    let (core, before) =
        text.split_once('-').map_or((text, None), |(core, rest)| (core, Some(rest)));
    let is_number = |part: &str| part.parse::<u64>().is_ok_and(|number| number.to_string() == part);
    let is_word = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    let is_core = core.split('.').count() == 3 && core.split('.').all(is_number);
    if is_core && before.is_none_or(|before| before.split('.').all(is_word)) {
        return Ok(text.to_owned());
    }
    Err("it is no release: write MAJOR.MINOR.PATCH, such as 0.2.0, or 0.2.0-rc.1".to_owned())
}

/// Whether two releases are one: what follows a `+` tells no two apart.
fn is_same(one: &str, other: &str) -> bool {
    rank(one) == rank(other)
}

/// A member, and what its turn takes.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    id: u64,
    role: &'static str,
    version: Option<String>,
    is_done: bool,
    /// Why nothing else may be taken away now.
    trouble: Option<String>,
}

/// What is to be done, and whether it may be.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    target: String,
    steps: Vec<Step>,
    /// Those that do not run it, in their order: those who follow, and the leader last.
    order: Vec<u64>,
    next_leads: bool,
    /// Whether the others are a majority without the next one.
    goes_on: bool,
    reasons: Vec<String>,
}

fn trouble(member: &Value, leads: bool) -> Option<String> {
    let id = number(member, "/id");
    if leads {
        return None;
    }
    match member.get("lastAckMs").and_then(Value::as_u64) {
        None => return Some(format!("replica {id} has not answered the leader")),
        Some(silent) if silent > SILENT_MS => {
            return Some(format!(
                "replica {id} is away: it has not answered for {} s",
                silent / 1000
            ));
        }
        Some(_) => {}
    }
    if let Some(phase) = text(member, "/phase") {
        return Some(format!("replica {id} is still joining ({phase})"));
    }
    match member.get("lag").and_then(Value::as_u64) {
        Some(lag) if lag <= LAG_MAX => None,
        Some(lag) => Some(format!("replica {id} is {lag} entries behind")),
        None => Some(format!("how far replica {id} is behind is not known")),
    }
}

fn plan(status: &Value, own: &str, to: Option<&str>) -> Plan {
    let leads = |member: &Value| Some(number(member, "/id")) == leader(status);
    let versions = members(status).iter().filter_map(|member| text(member, "/version"));
    let newest = versions.chain([own]).max_by_key(|version| rank(version)).unwrap_or(own);
    let target = to.unwrap_or(newest).to_owned();
    let mut steps: Vec<Step> = vec![];
    let mut reasons = vec![];
    let asked = status.get("replica").and_then(Value::as_u64);
    // It alone knows how far the others are.
    let is_known = match leader(status) {
        None => {
            reasons.push("there is no leader".to_owned());
            false
        }
        Some(id) if asked.is_some_and(|asked| asked != id) => {
            reasons.push(format!("replica {id} leads, and cannot be asked how far the others are"));
            false
        }
        Some(_) => true,
    };
    if let Some(change) = Change::of(status) {
        reasons.push(format!("{change} is not over"));
    }
    for member in members(status) {
        let version = text(member, "/version").map(str::to_owned);
        let role = match member.get("voter").and_then(Value::as_bool) {
            _ if leads(member) => "leader",
            Some(false) => "learner",
            _ => "follower",
        };
        let trouble = trouble(member, leads(member)).filter(|_| is_known);
        let id = number(member, "/id");
        if version.is_none() && trouble.is_none() {
            reasons.push(format!("replica {id} has not said yet what it runs"));
        }
        reasons.extend(trouble.clone());
        let is_done = version.as_deref().is_some_and(|version| is_same(version, &target));
        steps.push(Step { id, role, version, is_done, trouble });
    }
    steps.sort_by_key(|step| (step.role == "leader", step.id));
    let left: Vec<&Step> = steps.iter().filter(|step| !step.is_done).collect();
    let next_leads = left.first().is_some_and(|step| step.role == "leader");
    let order: Vec<u64> = left.iter().map(|step| step.id).collect();
    // One whose turn is over is to lead and own again before the next one goes.
    for member in members(status) {
        let id = number(member, "/id");
        let drained = member.get("drained").and_then(Value::as_bool) == Some(true);
        if drained && order.first() != Some(&id) && !order.is_empty() {
            reasons.push(format!("replica {id} is still drained: `palisade cluster undrain {id}`"));
        }
    }
    if let Some(newer) = newer_than(status, &target) {
        reasons.push(newer);
    }
    let voters = steps.iter().filter(|step| step.role != "learner").count();
    let takes_a_voter = left.first().is_none_or(|step| step.role != "learner");
    let goes_on = !takes_a_voter || voters > 2;
    Plan { target, steps, order, next_leads, goes_on, reasons }
}

/// A program that is older than what a member runs cannot read what that may write.
fn newer_than(status: &Value, target: &str) -> Option<String> {
    let newer = members(status).iter().find_map(|member| {
        let version = text(member, "/version").filter(|version| rank(version) > rank(target))?;
        Some((number(member, "/id"), version))
    });
    newer.map(|(id, version)| format!("{target} is older than {version}, which replica {id} runs"))
}

impl Plan {
    fn is_done(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether the next one may be taken away.
    fn is_safe(&self) -> bool {
        self.reasons.is_empty()
    }

    /// What is to be done now, line by line.
    fn advice(&self) -> Vec<String> {
        if !self.is_safe() {
            return vec![];
        }
        let Some(next) = self.order.first() else {
            return vec![format!("every replica runs {}", self.target)];
        };
        let mut lines = vec![];
        let is_alone = self.steps.len() == 1;
        if self.next_leads && !is_alone {
            lines.push(format!("next: replica {next}, which leads: let another one lead first"));
            lines.push("  palisade cluster transfer-leader".to_owned());
            lines.push("then ask again".to_owned());
            return lines;
        }
        lines.push(format!("next: replica {next}"));
        if is_alone {
            lines.push("it is the only one: nobody serves until it is back".to_owned());
        } else {
            if !self.goes_on {
                lines.push(
                    "there are but two voters: nothing is served until it is back".to_owned(),
                );
            }
            lines.push(format!("  palisade cluster drain {next}"));
        }
        lines.push(format!(
            "  on its machine: end it (SIGTERM), put {} in the program's place, start it",
            self.target
        ));
        if !is_alone {
            lines.push(format!("  palisade cluster undrain {next}"));
        }
        lines.push("then ask again: the next one waits until this one is back".to_owned());
        lines
    }

    fn page(&self, format: &str) -> String {
        let mut table = Table::new(&["REPLICA", "ROLE", "VERSION", "TURN"]);
        for step in &self.steps {
            let turn = self.order.iter().position(|id| *id == step.id);
            let turn = turn.map_or("done".to_owned(), |at| (at + 1).to_string());
            let version = step.version.clone().unwrap_or_default();
            table.row(vec![step.id.to_string(), step.role.to_owned(), version, turn]);
        }
        let mut page = format!("{:<8} {}\n{:<8} {format}\n\n", "Target", self.target, "Format");
        page.push_str(&table.render());
        let advice = self.advice();
        if !advice.is_empty() {
            page.push('\n');
        }
        advice.iter().for_each(|line| page.push_str(&format!("{line}\n")));
        page
    }

    fn document(&self, status: &Value) -> Value {
        let members: Vec<Value> = self
            .steps
            .iter()
            .map(|step| {
                json!({"id": step.id, "role": step.role, "version": step.version, "done": step.is_done,
                    "trouble": step.trouble})
            })
            .collect();
        json!({
            "target": self.target, "format": status.get("format"), "members": members, "order": self.order,
            "next": self.order.first(), "transferFirst": self.next_leads && self.steps.len() > 1,
            "done": self.is_done(), "safe": self.is_safe(), "servesMeanwhile": self.goes_on, "reasons": self.reasons,
        })
    }
}

impl Upgrade {
    /// Asks, and prints.
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let status = of_leader(&session.client()?).await?;
        let plan = plan(&status, env!("CARGO_PKG_VERSION"), self.to.as_deref());
        let data = match session.format() {
            Format::Table | Format::Wide => plan.page(&cell(&status, "/format")),
            Format::Name => plan.order.iter().map(|id| format!("replica/{id}\n")).collect(),
            format => output::render_value(format, &plan.document(&status))?,
        };
        output::data(data.as_bytes())?;
        if plan.is_safe() {
            return Ok(());
        }
        let why = plan.reasons.join("; ");
        let what = if plan.is_done() {
            format!("every replica runs {}, and not all is well: {why}", plan.target)
        } else {
            format!("it is not safe to take a replica away now: {why}")
        };
        Err(Failure::new(Exit::Conflict, what).hint(
            "mend that and ask again: `palisade cluster status` and `palisade doctor` say more",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, version: &str, ack: Option<u64>, lag: Option<u64>) -> Value {
        json!({"id": id, "voter": true, "version": version, "lastAckMs": ack, "lag": lag})
    }

    fn status(members: &[Value]) -> Value {
        json!({"leader": 1, "format": 1, "members": members})
    }

    #[test]
    fn followers_are_first_and_the_leader_is_last() {
        let old = |id| member(id, "0.1.0", Some(5), Some(0));
        let mut all = [old(1), old(2), old(3)];
        all[0]["lastAckMs"] = Value::Null;
        let first = plan(&status(&all), "0.2.0", None);
        assert_eq!((first.target.as_str(), first.order.as_slice()), ("0.2.0", &[2, 3, 1][..]));
        assert!(first.is_safe() && !first.next_leads);
        for id in [2, 3] {
            all[id - 1]["version"] = "0.2.0".into();
        }
        let last = plan(&status(&all), "0.1.0", None);
        assert_eq!((last.target.as_str(), last.order.as_slice()), ("0.2.0", &[1][..]));
        assert!(last.next_leads && last.advice().concat().contains("transfer-leader"));
        all[0]["version"] = "0.2.0".into();
        let done = plan(&status(&all), "0.1.0", None);
        assert!(done.is_done() && done.advice() == ["every replica runs 0.2.0"]);
        assert_eq!(plan(&status(&all), "0.1.0", Some("0.3.0")).order, [2, 3, 1]);
    }

    #[test]
    fn a_replica_that_is_away_or_behind_or_joins_makes_it_unsafe() {
        let leads = || member(1, "0.1.0", None, None);
        let of = |other: Value| {
            let members = [leads(), other, member(3, "0.1.0", Some(5), Some(3))];
            plan(&status(&members), "0.1.0", None).reasons.join("; ")
        };
        assert_eq!(of(member(2, "0.1.0", Some(5), Some(LAG_MAX))), "");
        assert!(of(member(2, "0.1.0", Some(2_600), Some(0))).contains("replica 2 is away"));
        assert!(of(member(2, "0.1.0", None, None)).contains("replica 2 has not answered"));
        let behind = of(member(2, "0.1.0", Some(5), Some(LAG_MAX + 1)));
        assert_eq!(behind, "replica 2 is 1001 entries behind");
        let mut joins = member(2, "0.1.0", Some(5), Some(0));
        joins["phase"] = "catching up".into();
        assert!(of(joins).contains("still joining"));
        let mut silent = member(2, "", Some(5), Some(0));
        silent["version"] = Value::Null;
        assert!(of(silent).contains("has not said yet"));
        let nobody = plan(&json!({"members": []}), "0.1.0", None);
        assert!(!nobody.is_safe(), "there is no leader");
        let mut changing = status(&[leads()]);
        changing["change"] = json!({"from": [1, 2], "to": [1]});
        assert!(plan(&changing, "0.1.0", None).reasons.concat().contains("is not over"));
        let hearsay = json!({"leader": 1, "replica": 2, "members": [leads()]});
        assert!(plan(&hearsay, "0.1.0", None).reasons.concat().contains("cannot be asked"));
    }

    #[test]
    fn of_two_voters_none_can_be_spared_and_that_is_said() {
        let pair = |n: u64| (1..=n).map(|id| member(id, "0.1.0", Some(5), Some(0))).collect();
        let of = |members: Vec<Value>| plan(&status(&members), "0.2.0", None);
        let two = of(pair(2));
        assert!(two.is_safe() && !two.goes_on);
        assert!(two.advice().concat().contains("nothing is served until it is back"));
        let three = of(pair(3));
        assert!(three.goes_on && !three.advice().concat().contains("nothing is served"));
        let mut learns = pair(3);
        learns[2]["voter"] = false.into();
        learns[1]["version"] = "0.2.0".into();
        assert!(of(learns).goes_on, "a learner is spared");
    }

    #[test]
    fn a_replica_that_was_left_drained_makes_it_unsafe() {
        let mut all = [1, 2, 3].map(|id| member(id, "0.1.0", Some(5), Some(0)));
        all[1]["drained"] = true.into();
        assert!(plan(&status(&all), "0.2.0", None).is_safe(), "its turn has begun");
        all[1]["version"] = "0.2.0".into();
        let next = plan(&status(&all), "0.2.0", None);
        assert!(next.reasons.concat().contains("undrain 2"), "{:?}", next.reasons);
    }

    #[test]
    fn an_older_release_is_no_upgrade_and_other_words_are_none() {
        let all = [1, 2, 3].map(|id| member(id, "0.2.0", Some(5), Some(0)));
        let back = plan(&status(&all), "0.2.0", Some("0.1.9"));
        assert!(back.reasons.concat().contains("0.1.9 is older than 0.2.0, which replica 1 runs"));
        for bad in [
            "",
            "abc",
            "1.2",
            "1.2.x",
            "1.2.3.4",
            "1.2.3-",
            "01.2.3",
            "1.2.3-rc 1",
            "1.2.3-\u{1b}[31m",
        ] {
            assert!(release(bad).unwrap_err().contains("MAJOR.MINOR.PATCH"), "{bad}");
        }
        assert_eq!(release("1.2.3-rc.1").as_deref(), Ok("1.2.3-rc.1"));
        assert!(release("1.2.3+git").unwrap_err().contains("not told apart"));
        let built = [1, 2].map(|id| member(id, "0.2.0+git", Some(5), Some(0)));
        assert!(
            plan(&status(&built), "0.2.0", None).is_done(),
            "another build is no other release"
        );
    }

    #[test]
    fn releases_are_ordered_by_their_numbers() {
        let newest = ["0.9.0", "0.10.0", "0.10.0-rc1", "0.2.1"];
        assert_eq!(newest.into_iter().max_by_key(|version| rank(version)), Some("0.10.0"));
        assert_eq!(rank("1.2.0+git-ab"), rank("1.2.0"), "a build is no release before it");
    }
}
