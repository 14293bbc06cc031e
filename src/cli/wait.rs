//! Waiting until a workload is as it was asked for, or cannot be.
//!
//! What is seen is judged by [`Watch::judge`], which has no clock and asks nobody.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use super::session::Whose;
use crate::{
    client::{BASE, Call, Client, segment},
    edge,
    output::{Exit, Failure, Outcome, Progress, cell, number, text},
};

/// So long must a reason stand before it ends the wait: what is passing gets time to pass.
const SETTLED: Duration = Duration::from_millis(1500);
const POLL_FIRST: Duration = Duration::from_millis(40);
const POLL_MAX: Duration = Duration::from_millis(250);
const LOG_LINES: usize = 5;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// As many instances as wanted, of the newest version, all healthy.
    Healthy,
    /// No instance runs.
    Stopped,
    /// It is no more.
    Gone,
}

impl Goal {
    /// What a workload's own record asks for.
    pub fn of(workload: &Value) -> Self {
        match text(workload, "/wanted") {
            Some("offline") => Self::Stopped,
            _ => Self::Healthy,
        }
    }
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Done(String),
    Going(String),
    Failed(Failure),
}

/// One workload that is waited for.
#[derive(Debug)]
pub(super) struct Watch {
    name: String,
    /// By what it is looked for: names are one tenant's.
    id: String,
    goal: Goal,
    /// The version that is waited for; a later one is somebody else's.
    version: Option<u64>,
    /// Processes that are to be replaced, by instance.
    before: BTreeMap<String, u64>,
    /// Since when a reason to give up stands, by what it is about.
    standing: BTreeMap<String, Duration>,
}

impl Watch {
    pub fn new(name: &str, goal: Goal) -> Self {
        Self {
            name: name.to_owned(),
            id: name.to_owned(),
            goal,
            version: None,
            before: BTreeMap::new(),
            standing: BTreeMap::new(),
        }
    }

    /// Waits for this very one: others may have its name.
    pub fn of(self, workload: &Value) -> Self {
        match text(workload, "/id") {
            Some(id) => Self { id: id.to_owned(), ..self },
            None => self,
        }
    }

    /// Waits for this version, and fails when another takes its place.
    pub fn of_version(self, version: u64) -> Self {
        Self { version: Some(version).filter(|version| *version != 0), ..self }
    }

    fn superseded(&self, workload: &Value) -> Option<Failure> {
        let (asked, now) = (self.version?, number(workload, "/version"));
        (now > asked).then(|| {
            Failure::new(
                Exit::Conflict,
                format!(
                    "{}: version {asked} was superseded by version {now}, which somebody else applied meanwhile",
                    self.name
                ),
            )
            .hint(format!("see `palisade workload show {}`, and apply again if yours is meant", self.name))
        })
    }

    /// Waits until none of these instances has the process that it has here: a restart changes no
    /// version, and right after it all still look healthy.
    pub fn restarted(name: &str, instances: &[Value]) -> Self {
        let pid = |one: &Value| number(one, "/status/pid");
        let before = instances
            .iter()
            .filter(|one| pid(one) != 0)
            .map(|one| (cell(one, "/id"), pid(one)))
            .collect();
        Self { before, ..Self::new(name, Goal::Healthy) }
    }

    fn is_before(&self, instance: &Value) -> bool {
        self.before.get(&cell(instance, "/id")) == Some(&number(instance, "/status/pid"))
    }

    /// Judges what is seen at `now`, counted from the beginning of the wait.
    pub fn judge(&mut self, seen: Option<(&Value, &[Value])>, now: Duration) -> Verdict {
        let Some((workload, instances)) = seen else {
            return match self.goal {
                Goal::Gone => Verdict::Done(format!("{} is gone", self.name)),
                _ => Verdict::Failed(Failure::new(
                    Exit::NotFound,
                    format!("workload {:?} was removed while it was waited for", self.name),
                )),
            };
        };
        if let Some(failure) = self.superseded(workload) {
            return Verdict::Failed(failure);
        }
        match self.goal {
            Goal::Gone => {
                Verdict::Going(format!("{}: {} left to stop", self.name, instances.len()))
            }
            Goal::Stopped => self.stopped(workload, instances),
            Goal::Healthy => self.healthy(workload, instances, now),
        }
    }

    fn stopped(&self, workload: &Value, instances: &[Value]) -> Verdict {
        let up = instances
            .iter()
            .filter(|one| !matches!(phase(one), "stopped" | "exited" | "pending"))
            .count();
        if up == 0 && text(workload, "/status/phase") == Some("stopped") {
            return Verdict::Done(format!("{} is stopped", self.name));
        }
        Verdict::Going(format!("{}: {up} of {} still running", self.name, instances.len()))
    }

    fn healthy(&mut self, workload: &Value, instances: &[Value], now: Duration) -> Verdict {
        let wanted = number(workload, "/count");
        let is_good = |one: &&Value| phase(one) == "healthy" && !self.is_before(one);
        let good = instances.iter().filter(is_good).count() as u64;
        let settled = good == wanted
            && instances.len() as u64 == wanted
            && number(workload, "/status/healthy") >= wanted
            && number(workload, "/status/upToDate") >= wanted;
        if settled {
            return Verdict::Done(format!("{}: {good} of {wanted} healthy", self.name));
        }
        if let Some(failure) = self.hopeless(workload, instances, good, wanted, now) {
            return Verdict::Failed(failure);
        }
        Verdict::Going(self.describe(workload, instances, good, wanted))
    }

    fn describe(&self, workload: &Value, instances: &[Value], good: u64, wanted: u64) -> String {
        let mut line = format!("{}: {good} of {wanted} healthy", self.name);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for one in instances.iter().filter(|one| phase(one) != "healthy") {
            *counts.entry(phase(one)).or_default() += 1;
        }
        for (phase, count) in counts {
            line.push_str(&format!(", {count} {phase}"));
        }
        let before = instances.iter().filter(|one| self.is_before(one)).count();
        let newest = number(workload, "/status/upToDate");
        if before > 0 {
            line.push_str(&format!(", {before} to be restarted"));
        } else if good == wanted && newest < wanted {
            line.push_str(&format!(", {newest} of the newest version"));
        }
        let is_odd = matches!(text(workload, "/status/phase"), Some("degraded" | "pending"));
        if let Some(message) = text(workload, "/status/message").filter(|_| is_odd) {
            line.push_str(&format!(" ({message})"));
        }
        line
    }

    fn hopeless(
        &mut self,
        workload: &Value,
        instances: &[Value],
        good: u64,
        wanted: u64,
        now: Duration,
    ) -> Option<Failure> {
        let mut standing = BTreeMap::new();
        let mut failed = Vec::new();
        for one in instances {
            let name = cell(one, "/name");
            let at_once = phase(one) == "crashLoop";
            if !at_once && phase(one) != "failed" {
                continue;
            }
            if self.stands(&mut standing, name, now) || at_once {
                failed.push(one);
            }
        }
        let misfits = misfits(workload, instances);
        let waiting = instances.iter().filter(|one| phase(one) == "pending").count() as u64;
        let starting =
            instances.iter().any(|one| matches!(phase(one), "starting" | "unhealthy" | "stopping"));
        let missing = waiting.max(wanted.saturating_sub(instances.len() as u64));
        let stuck = !misfits.is_empty()
            && missing > 0
            && !starting
            && self.stands(&mut standing, misfits.join("\n"), now);
        self.standing = standing;
        if !failed.is_empty() {
            return Some(self.failed(&failed, wanted));
        }
        stuck.then(|| self.no_room(misfits, missing, good, wanted))
    }

    /// Whether a reason has stood long enough.
    fn stands(
        &self,
        standing: &mut BTreeMap<String, Duration>,
        reason: String,
        now: Duration,
    ) -> bool {
        let since = self.standing.get(&reason).copied().unwrap_or(now);
        standing.insert(reason, since);
        now.saturating_sub(since) >= SETTLED
    }

    fn failed(&self, failed: &[&Value], wanted: u64) -> Failure {
        let mut failure = Failure::new(
            Exit::Error,
            format!("{}: {} of {wanted} instances failed", self.name, failed.len()),
        );
        for one in failed {
            let node = text(one, "/nodeName").or_else(|| text(one, "/node")).unwrap_or("no node");
            let code = text(one, "/status/code").unwrap_or(phase(one));
            let message =
                text(one, "/status/message").map_or_else(|| exit_text(one), str::to_owned);
            failure = failure.note(format!("{} on {node}: {code}: {message}", cell(one, "/name")));
        }
        let first = failed.first().map_or("-".to_owned(), |one| cell(one, "/name"));
        failure.hint(format!(
            "`palisade instance logs {first}` shows what it said; apply a corrected spec, or `palisade workload rm {}`",
            self.name
        ))
    }

    fn no_room(&self, misfits: Vec<String>, missing: u64, good: u64, wanted: u64) -> Failure {
        let mut failure = Failure::new(
            Exit::NoRoom,
            format!(
                "{}: no node can take {missing} of {wanted} instances ({good} healthy)",
                self.name
            ),
        );
        failure.notes = misfits;
        failure.hint(format!(
            "they stay pending and start when a node can take them; ask for less, or `palisade workload rm {}`",
            self.name
        ))
    }

    /// What to say when the time is up.
    fn late(&self, last: &str, limit: Duration) -> Failure {
        Failure::new(
            Exit::TimedOut,
            format!("{} is not there yet after {} s: {last}", self.name, limit.as_secs()),
        )
        .hint(format!(
            "it goes on by itself; see `palisade workload show {}`, or wait longer with --timeout",
            self.name
        ))
    }
}

fn phase(instance: &Value) -> &str {
    text(instance, "/status/phase").unwrap_or("pending")
}

fn exit_text(instance: &Value) -> String {
    match instance.pointer("/status/lastExit") {
        Some(exit @ Value::Object(_)) if number(exit, "/signal") != 0 => {
            format!("ended by signal {}", number(exit, "/signal"))
        }
        Some(exit @ Value::Object(_)) => format!("ended with code {}", cell(exit, "/code")),
        _ => "no reason was given".to_owned(),
    }
}

/// `node: reason` for each node that cannot take an instance, each once.
fn misfits(workload: &Value, instances: &[Value]) -> Vec<String> {
    let mut lines = Vec::new();
    for record in std::iter::once(workload).chain(instances) {
        let Some(Value::Array(all)) = record.pointer("/status/misfits") else { continue };
        for misfit in all {
            let line = format!("{}: {}", cell(misfit, "/node"), cell(misfit, "/reason"));
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

/// Waits for all of them; answers nothing, says on stderr what it sees.
pub(super) async fn wait(client: &Client, mut watches: Vec<Watch>, limit: Duration) -> Outcome {
    let begin = edge::now();
    let mut progress = Progress::new();
    let mut pause = POLL_FIRST;
    while let Some(watch) = watches.first_mut() {
        let seen = look(client, &watch.id).await?;
        let seen = seen.as_ref().map(|(workload, instances)| (workload, instances.as_slice()));
        let elapsed = begin.elapsed();
        match watch.judge(seen, elapsed) {
            Verdict::Done(text) => {
                progress.line(&format!("{text} after {:.1} s", elapsed.as_secs_f64()));
                watches.remove(0);
                continue;
            }
            Verdict::Failed(failure) => {
                progress.end();
                return Err(with_log(client, failure, seen).await);
            }
            Verdict::Going(text) if elapsed >= limit => return Err(watch.late(&text, limit)),
            Verdict::Going(text) => progress.update(&text),
        }
        edge::sleep(pause).await;
        pause = (pause + POLL_FIRST / 4).min(POLL_MAX);
    }
    progress.end();
    Ok(())
}

/// The instances of a workload.
pub(super) async fn instances(client: &Client, name: &str, whose: &Whose) -> Outcome<Vec<Value>> {
    let call = Call::get(format!("{BASE}/instances")).query("workload", name);
    Ok(client.list(whose.say(call)).await?)
}

async fn look(client: &Client, name: &str) -> Outcome<Option<(Value, Vec<Value>)>> {
    let path = format!("{BASE}/workloads/{}", segment(name));
    let workload = match client.call(Call::get(path)).await {
        Ok(answer) => answer.body,
        Err(error) if error.is("NOT_FOUND") => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let call = Call::get(format!("{BASE}/instances")).query("workload", name);
    match client.list(call).await {
        Ok(instances) => Ok(Some((workload, instances))),
        // It went away between the two questions.
        Err(error) if error.is("NOT_FOUND") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Adds the end of the log of the first instance that failed; what cannot be had is left out.
async fn with_log(client: &Client, failure: Failure, seen: Option<(&Value, &[Value])>) -> Failure {
    let failed = seen.and_then(|(_, instances)| {
        instances.iter().find(|one| matches!(phase(one), "failed" | "crashLoop"))
    });
    let Some(id) = failed.and_then(|one| text(one, "/id")) else { return failure };
    let call = Call::get(format!("{BASE}/instances/{}/logs", segment(id)))
        .query("tail", LOG_LINES)
        .query("follow", false);
    let read = async { client.stream(call).await.ok()?.text().await.ok() };
    let log = edge::within(Duration::from_secs(3), read).await.flatten().unwrap_or_default();
    log_notes(&log, failure)
}

/// The log's last lines as notes, without what was said already.
fn log_notes(log: &str, failure: Failure) -> Failure {
    let mut lines: Vec<&str> = log.lines().collect();
    lines.dedup();
    let said = failure.notes.clone();
    let is_new = |line: &&&str| {
        let message = line.rsplit_once(": ").map_or(**line, |(_, message)| message);
        !said.iter().any(|note| note.ends_with(message))
    };
    lines
        .iter()
        .skip(lines.len().saturating_sub(LOG_LINES))
        .filter(is_new)
        .fold(failure, |failure, line| failure.note(format!("| {line}")))
}
