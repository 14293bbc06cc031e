//! The built-in resource plugin `cpumem`: CPU and memory.
//!
//! Requests are normalised as its older relatives do it; three differences are deliberate: junk is
//! refused instead of read as 0, amounts are integers (thousandths of a thread, bytes), and CPU
//! limits placement for all work, not for pinned work alone.

use std::collections::BTreeMap;

use palisade_contract::{
    input::{Problems, nearest, pointer_segment},
    node::{HostFacts, InstanceResources},
};
use serde_json::{Map, Value, json};

use super::{
    size::{self, parse_bytes, parse_cpus},
    types::Amount,
};

/// The name of the plugin.
pub const NAME: &str = "cpumem";

const FIELDS: [&str; 4] = ["cpu-request", "cpu-limit", "memory-request", "memory-limit"];
const LATER: [&str; 2] = ["cpu-bind", "keep-cpu-bind"];

/// A normalised request; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// Thousandths of a thread, charged.
    pub cpu_request_milli: u64,
    /// Thousandths of a thread, at most.
    pub cpu_limit_milli: u64,
    /// Bytes, charged.
    pub memory_request_bytes: u64,
    /// Bytes, at most.
    pub memory_limit_bytes: u64,
}

impl Request {
    /// What it is charged.
    #[must_use]
    pub fn need(&self) -> Amount {
        Amount { cpu_milli: self.cpu_request_milli, memory_bytes: self.memory_request_bytes }
    }

    /// What its driver enforces.
    #[must_use]
    pub fn limits(&self) -> InstanceResources {
        InstanceResources {
            cpu_request_milli: self.cpu_request_milli,
            cpu_limit_milli: self.cpu_limit_milli,
            memory_request_bytes: self.memory_request_bytes,
            memory_limit_bytes: self.memory_limit_bytes,
            pids_max: 0,
        }
    }

    /// A limit alone is the request too; a limit below the request is raised to it.
    #[must_use]
    pub fn normalised(mut self) -> Self {
        for (request, limit) in [
            (&mut self.cpu_request_milli, &mut self.cpu_limit_milli),
            (&mut self.memory_request_bytes, &mut self.memory_limit_bytes),
        ] {
            if *request == 0 {
                *request = *limit;
            }
            if *limit > 0 && *limit < *request {
                *limit = *request;
            }
        }
        self
    }
}

/// Reads a map of resources by plugin, noting every problem with its pointer below `at`.
pub fn resources(map: &BTreeMap<String, Value>, at: &str, problems: &mut Problems) -> Request {
    let mut request = Request::default();
    for (plugin, value) in map {
        let here = format!("{at}/{}", pointer_segment(plugin));
        if plugin == NAME {
            request = parse(value, &here, problems);
        } else {
            let hint = nearest(plugin, std::iter::once(NAME))
                .map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
            problems.add(here, format!("no resource plugin of this name; known: {NAME}{hint}"));
        }
    }
    request
}

/// Reads one request.
pub fn parse(value: &Value, at: &str, problems: &mut Problems) -> Request {
    let Value::Object(fields) = value else {
        problems.add(at, "must be an object such as {\"cpu-request\": 0.5}");
        return Request::default();
    };
    for name in fields.keys().filter(|name| !FIELDS.contains(&name.as_str())) {
        let here = format!("{at}/{}", pointer_segment(name));
        if LATER.contains(&name.as_str()) {
            problems.add(here, format!("{name} is not supported yet"));
        } else {
            let hint = nearest(name, FIELDS.into_iter()).map_or_else(
                || format!("; known fields: {}", FIELDS.join(", ")),
                |near| format!("; did you mean {near:?}?"),
            );
            problems.add(here, format!("unknown field{hint}"));
        }
    }
    let mut amount = |name: &str, read: fn(&Value) -> Result<u64, String>| {
        read_field(fields, name, read).unwrap_or_else(|message| {
            problems.add(format!("{at}/{name}"), message);
            0
        })
    };
    Request {
        cpu_request_milli: amount("cpu-request", parse_cpus),
        cpu_limit_milli: amount("cpu-limit", parse_cpus),
        memory_request_bytes: amount("memory-request", parse_bytes),
        memory_limit_bytes: amount("memory-limit", parse_bytes),
    }
    .normalised()
}

fn read_field(
    fields: &Map<String, Value>,
    name: &str,
    read: fn(&Value) -> Result<u64, String>,
) -> Result<u64, String> {
    fields.get(name).map_or(Ok(0), read)
}

/// What a machine offers: what its agent says, else all threads and 80 % of the memory.
#[must_use]
pub fn offered(facts: &HostFacts) -> Amount {
    let cpu_milli = match facts.offered_cpu_milli {
        0 => u64::from(facts.threads) * 1000,
        offered => offered,
    };
    let memory_bytes = match facts.offered_memory_bytes {
        0 => u64::try_from(u128::from(facts.memory_bytes) * 8 / 10).unwrap_or(u64::MAX),
        offered => offered,
    };
    Amount { cpu_milli, memory_bytes }
}

/// An amount as records show it: CPUs and bytes. For people; nothing decides by it.
#[must_use]
pub fn shown(amount: Amount) -> Value {
    let cpus = match amount.cpu_milli % 1000 {
        0 => json!(amount.cpu_milli / 1000),
        _ => json!(size::cpus(amount.cpu_milli).parse::<f64>().unwrap_or_default()),
    };
    json!({ "cpu": cpus, "memory": amount.memory_bytes })
}
