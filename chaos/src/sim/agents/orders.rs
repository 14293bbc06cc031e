//! C2: what became of commands, as it was told of, against what machines have done.

use std::{collections::BTreeMap, sync::Arc};

use palisade_state::{View, outbox::Event};
use serde_json::Value;

use super::{
    super::Breach,
    errands::{Done, ERRANDS, ErrandRow, LAST},
    machine::Machine,
    rows::{all, text},
};

const COMMANDS: &str = "commands";

fn breach(message: String) -> Breach {
    Breach { check: "C2", message }
}

/// How a command ended: its state, and its result's code.
type End = (String, String);

/// What was told of commands while a run goes on.
#[derive(Default)]
pub(crate) struct Orders {
    /// How each ended, by the event that said so.
    ended: BTreeMap<String, End>,
    /// Those that users were told of, and how they ended, as soon as a user was told that.
    told: BTreeMap<String, Option<End>>,
    /// How often each signal was asked for of each instance.
    signals: BTreeMap<(String, String), u64>,
    breaches: Vec<Breach>,
}

fn is_finished(state: &str) -> bool {
    !matches!(state, "held" | "pending" | "sent" | "running")
}

fn end_of(record: &Value) -> End {
    (text(record, "/state").to_owned(), text(record, "/result/code").to_owned())
}

impl Orders {
    /// What was found since it was last asked for.
    pub(crate) fn take_breaches(&mut self) -> Vec<Breach> {
        std::mem::take(&mut self.breaches)
    }

    /// CMD-2: a command ends once.
    pub(crate) fn happens(&mut self, event: &Event) {
        if event.kind.as_ref() != "command.finished" {
            return;
        }
        let data: Value = serde_json::from_slice(&event.data).unwrap_or_default();
        let (id, end) = (text(&data, "/command").to_owned(), end_of_event(&data));
        if let Some(before) = self.ended.insert(id.clone(), end.clone()) {
            let message = format!("command {id} ended as {before:?}, and again as {end:?}");
            self.breaches.push(breach(message));
        }
    }

    /// A user was shown a command.
    pub(crate) fn tells(&mut self, record: &Value) {
        let id = text(record, "/id").to_owned();
        let before = self.told.entry(id.clone()).or_default();
        let end = end_of(record);
        // Of two users who look, the one who looked first may hear later.
        if !is_finished(&end.0) {
            return;
        }
        if let Some(before) = before.as_ref().filter(|before| **before != end) {
            let message = format!("a user was told that command {id} ended as {before:?}");
            self.breaches.push(breach(format!("{message}, and then as {end:?}")));
        }
        *before = Some(end);
    }

    /// A user asks for a signal.
    pub(crate) fn signals(&mut self, instance: &str, signal: &str) {
        *self.signals.entry((instance.to_owned(), signal.to_owned())).or_default() += 1;
    }

    /// Commands of which a user has not been told the end.
    pub(crate) fn open(&self) -> Vec<String> {
        let open = self.told.iter().filter(|(_, end)| end.is_none());
        open.map(|(id, _)| id.clone()).collect()
    }

    /// What is not as it must be at the end.
    pub(crate) fn unsettled(&self, machines: &[Arc<Machine>], view: &View) -> Vec<Breach> {
        let mut breaches = self.rows(view);
        breaches.extend(self.answers());
        breaches.extend(self.errands(machines, view));
        breaches.extend(self.sent_signals(machines));
        breaches
    }

    /// None is open, and those that are kept ended as was told.
    fn rows(&self, view: &View) -> Vec<Breach> {
        let mut breaches = vec![];
        for (_, row) in all(view, COMMANDS) {
            let (id, end) = (text(&row, "/id"), end_of(&row));
            if !is_finished(&end.0) {
                let (kind, state) = (text(&row, "/kind"), end.0);
                breaches.push(breach(format!("command {id}, {kind}, is still {state}")));
            } else if self.ended.get(id) != Some(&end) {
                let told = self.ended.get(id);
                breaches.push(breach(format!("command {id} is {end:?}, and was told as {told:?}")));
            }
        }
        breaches
    }

    /// Each command that a user was told of has ended, and as it was told.
    fn answers(&self) -> Vec<Breach> {
        let mut breaches = vec![];
        for (id, told) in &self.told {
            match (self.ended.get(id), told) {
                (None, _) => {
                    breaches.push(breach(format!("command {id} was acknowledged and never ends")));
                }
                (Some(end), Some(told)) if end != told => {
                    let message = format!("command {id} ended as {end:?}, and a user was told");
                    breaches.push(breach(format!("{message} {told:?}")));
                }
                _ => {}
            }
        }
        breaches
    }

    /// What reconcilers have learnt of their errands, against what machines did.
    fn errands(&self, machines: &[Arc<Machine>], view: &View) -> Vec<Breach> {
        let mut breaches = vec![];
        let mut done: BTreeMap<String, (String, Done)> = BTreeMap::new();
        for machine in machines {
            for (errand, one) in &machine.state().errands {
                let here = (machine.name.clone(), one.clone());
                if let Some((other, _)) = done.insert(errand.clone(), here) {
                    let name = &machine.name;
                    let message = format!("errand {errand} was begun on {other} and on {name}");
                    breaches.push(breach(message));
                }
            }
        }
        for (errand, row) in all(view, ERRANDS) {
            let Ok(row) = serde_json::from_value::<ErrandRow>(row) else { continue };
            let done = done.remove(&errand).map(|(_, done)| done).unwrap_or_default();
            breaches.extend(self.errand(&errand, &row, &done));
        }
        for (errand, (name, _)) in done {
            breaches.push(breach(format!("{name} did errand {errand}, for which nobody asked")));
        }
        breaches
    }

    fn errand(&self, errand: &str, row: &ErrandRow, done: &Done) -> Option<Breach> {
        if row.commands.len() > 1 {
            let commands: Vec<&String> = row.commands.iter().collect();
            return Some(breach(format!("errand {errand} is more than one command: {commands:?}")));
        }
        let Some(ended) = &row.ended else {
            return Some(breach(format!("whoever waits for errand {errand} was not told its end")));
        };
        let told = row.commands.first().and_then(|id| self.ended.get(id));
        let end = (ended.state.clone(), ended.code.clone());
        if told != Some(&end) {
            return Some(breach(format!("errand {errand} ended as {told:?}, not as {end:?}")));
        }
        let said = &done.said;
        let is_true = match ended.state.as_str() {
            // The agent ended with it, before it could say so.
            "succeeded" if row.kind == LAST => true,
            "succeeded" => said.contains(&Ok(ended.data.clone())),
            "failed" if ended.code == "UNABLE" => said.contains(&Err(ended.code.clone())),
            "expired" | "cancelled" => done.begun.is_empty(),
            _ => true,
        };
        (!is_true).then(|| {
            let did = format!("the machine began it {} times and said {said:?}", done.begun.len());
            breach(format!("errand {errand} ended as {ended:?}, and {did}"))
        })
    }

    /// Of each signal no more come than were asked for.
    fn sent_signals(&self, machines: &[Arc<Machine>]) -> Vec<Breach> {
        let mut came: BTreeMap<(String, String), u64> = BTreeMap::new();
        for machine in machines {
            for (signal, times) in &machine.state().signals {
                *came.entry(signal.clone()).or_default() += times;
            }
        }
        let asked = |signal| self.signals.get(signal).copied().unwrap_or_default();
        let more = came.iter().filter(|(signal, times)| **times > asked(signal));
        more.map(|(signal, times)| {
            let ((instance, name), asked) = (signal, asked(signal));
            breach(format!("{name} came to {instance} {times} times, and was asked for {asked}"))
        })
        .collect()
    }
}

fn end_of_event(data: &Value) -> End {
    (text(data, "/state").to_owned(), text(data, "/code").to_owned())
}
