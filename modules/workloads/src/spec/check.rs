//! What the types alone cannot say of a spec.

use std::collections::{BTreeMap, BTreeSet};

use palisade_contract::{
    Check, Problems,
    id::{NAME_RULE, is_name},
    input::{nearest, pointer_segment},
};
use palisade_scheduler::placement::strategy::Strategy;

use super::{EnvValue, Health, Later, Placement, PortRef, Restart, Span, Spec, Task, Update};

const ARGS_MAX: usize = 1000;
const ENV_MAX: usize = 500;
const FILES_MAX: usize = 100;
const FILES_BYTES_MAX: usize = 64 * 1024;
const PORTS_MAX: usize = 16;
const LABELS_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 253;
const NODES_MAX: usize = 256;

const DRIVERS_LATER: [&str; 4] = ["docker", "oci", "nspawn", "qemu"];
const SIGNALS: [&str; 8] =
    ["SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGWINCH"];

fn later(problems: &mut Problems, at: &str, fields: &[(&str, &Option<Later>)]) {
    for (name, _) in fields.iter().filter(|(_, value)| value.is_some()) {
        problems.add(format!("{at}/{name}"), format!("{name} is not supported yet"));
    }
}

fn name(problems: &mut Problems, at: String, value: &str) {
    if !is_name(value) {
        problems.add(at, format!("must be {NAME_RULE}"));
    }
}

fn span(problems: &mut Problems, at: String, value: &Span, least_ms: u64) {
    match value.parse() {
        Err(message) => problems.add(at, message),
        Ok(ms) if ms < least_ms => {
            problems.add(at, format!("must be at least {least_ms}ms"));
        }
        Ok(_) => {}
    }
}

fn at_most(problems: &mut Problems, at: String, size: usize, limit: usize) {
    if size > limit {
        problems.add(at, format!("must have at most {limit} entries, has {size}"));
    }
}

fn no_zero_byte(problems: &mut Problems, at: String, text: &str) {
    if text.contains('\0') {
        problems.add(at, "must not hold a zero byte");
    }
}

fn labels(problems: &mut Problems, at: &str, labels: &BTreeMap<String, String>) {
    at_most(problems, at.to_owned(), labels.len(), LABELS_MAX);
    for (key, value) in labels {
        if key.is_empty() || key.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX {
            problems.add(
                format!("{at}/{}", pointer_segment(key)),
                format!("keys have 1 to {LABEL_BYTES_MAX} bytes, values at most {LABEL_BYTES_MAX}"),
            );
        }
    }
}

impl Check for Spec {
    fn check(&self, at: &str, problems: &mut Problems) {
        name(problems, format!("{at}/name"), &self.name);
        name(problems, format!("{at}/pool"), &self.pool);
        if !self.tenant.is_empty() {
            name(problems, format!("{at}/tenant"), &self.tenant);
        }
        self.check_driver(at, problems);
        self.task.check(&format!("{at}/task"), problems);
        self.check_ports(at, problems);
        self.placement.check(&format!("{at}/placement"), problems);
        if let Some(health) = &self.health {
            health.check(&format!("{at}/health"), problems);
            self.check_probe_port(health, &format!("{at}/health"), problems);
        }
        self.restart.check(&format!("{at}/restart"), problems);
        self.update.check(&format!("{at}/update"), problems);
        self.check_stop(at, problems);
        labels(problems, &format!("{at}/labels"), &self.labels);
        if self.priority != 0 {
            problems.add(format!("{at}/priority"), "a priority other than 0 is not supported yet");
        }
        let fields = [
            ("disconnect", &self.disconnect),
            ("disruptionBudget", &self.disruption_budget),
            ("contributes", &self.contributes),
            ("requires", &self.requires),
        ];
        later(problems, at, &fields);
    }
}

impl Spec {
    fn check_driver(&self, at: &str, problems: &mut Problems) {
        let here = format!("{at}/driver");
        match self.driver.as_str() {
            "process" => {}
            known if DRIVERS_LATER.contains(&known) => {
                problems.add(here, format!("driver {known} is not supported yet; use process"));
            }
            other => {
                let hint = nearest(other, std::iter::once("process").chain(DRIVERS_LATER))
                    .map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
                problems.add(here, format!("no such driver; known: process{hint}"));
            }
        }
    }

    fn check_ports(&self, at: &str, problems: &mut Problems) {
        at_most(problems, format!("{at}/ports"), self.ports.len(), PORTS_MAX);
        let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
        for (position, port) in self.ports.iter().enumerate() {
            let here = format!("{at}/ports/{position}");
            name(problems, format!("{here}/name"), &port.name);
            if !names.insert(&port.name) {
                problems.add(format!("{here}/name"), "another port has this name");
            }
            if port.port.is_some_and(|number| !numbers.insert(number)) {
                problems.add(format!("{here}/port"), "another port has this number");
            }
        }
    }

    fn check_probe_port(&self, health: &Health, at: &str, problems: &mut Problems) {
        let http = health.http.as_ref().map(|http| ("http", &http.port));
        let tcp = health.tcp.as_ref().map(|tcp| ("tcp", &tcp.port));
        for (kind, port) in http.into_iter().chain(tcp) {
            let here = format!("{at}/{kind}/port");
            match port {
                PortRef::Number(0) => problems.add(here, "must be 1 to 65535"),
                PortRef::Number(_) => {}
                PortRef::Name(wanted) => {
                    let names = || self.ports.iter().map(|port| port.name.as_str());
                    if !names().any(|known| known == wanted) {
                        let known: Vec<&str> = names().collect();
                        let hint = nearest(wanted, names())
                            .map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
                        problems.add(
                            here,
                            format!("no port of this name; ports: {}{hint}", known.join(", ")),
                        );
                    }
                }
            }
        }
    }

    fn check_stop(&self, at: &str, problems: &mut Problems) {
        if !SIGNALS.contains(&self.stop_signal.as_str()) {
            problems
                .add(format!("{at}/stopSignal"), format!("must be one of {}", SIGNALS.join(", ")));
        }
        span(problems, format!("{at}/stopGrace"), &self.stop_grace, 0);
    }
}

impl Check for Task {
    fn check(&self, at: &str, problems: &mut Problems) {
        if self.command.first().is_none_or(String::is_empty) {
            problems.add(format!("{at}/command"), "must name a program");
        }
        at_most(problems, format!("{at}/command"), self.command.len(), ARGS_MAX);
        at_most(problems, format!("{at}/args"), self.args.len(), ARGS_MAX);
        for (field, list) in [("command", &self.command), ("args", &self.args)] {
            for (position, text) in list.iter().enumerate() {
                no_zero_byte(problems, format!("{at}/{field}/{position}"), text);
            }
        }
        at_most(problems, format!("{at}/env"), self.env.len(), ENV_MAX);
        for (key, value) in &self.env {
            let here = format!("{at}/env/{}", pointer_segment(key));
            if key.is_empty() || key.contains(['=', '\0']) {
                problems.add(here.clone(), "a name must not be empty or hold \"=\"");
            }
            match value {
                EnvValue::Text(text) => no_zero_byte(problems, here, text),
                EnvValue::Secret(secret) => {
                    name(problems, format!("{here}/secret"), &secret.secret);
                }
            }
        }
        no_zero_byte(problems, format!("{at}/workingDir"), &self.working_dir);
        no_zero_byte(problems, format!("{at}/user"), &self.user);
        self.check_files(&format!("{at}/files"), problems);
        let fields = [("image", &self.image), ("secrets", &self.secrets), ("mounts", &self.mounts)];
        later(problems, at, &fields);
    }
}

impl Task {
    fn check_files(&self, at: &str, problems: &mut Problems) {
        at_most(problems, at.to_owned(), self.files.len(), FILES_MAX);
        let bytes: usize = self.files.values().map(String::len).sum();
        if bytes > FILES_BYTES_MAX {
            problems.add(at, format!("files have {bytes} bytes, the limit is {FILES_BYTES_MAX}"));
        }
        for path in self.files.keys() {
            let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
            if path.len() > 255 || path.contains('\0') || !path.split('/').all(plain) {
                problems.add(
                    format!("{at}/{}", pointer_segment(path)),
                    "must be a relative path without empty parts, \".\" and \"..\"",
                );
            }
        }
    }
}

impl Check for Placement {
    fn check(&self, at: &str, problems: &mut Problems) {
        if let Err(message) = Strategy::parse(&self.strategy) {
            problems.add(format!("{at}/strategy"), message);
        }
        labels(problems, &format!("{at}/labels"), &self.labels);
        for (field, names) in [("includes", &self.includes), ("excludes", &self.excludes)] {
            at_most(problems, format!("{at}/{field}"), names.len(), NODES_MAX);
            for (position, node) in names.iter().enumerate() {
                name(problems, format!("{at}/{field}/{position}"), node);
            }
        }
        let fields = [
            ("limit", &self.limit),
            ("constraints", &self.constraints),
            ("affinity", &self.affinity),
            ("spread", &self.spread),
        ];
        later(problems, at, &fields);
    }
}

impl Check for Health {
    fn check(&self, at: &str, problems: &mut Problems) {
        let given = [self.http.is_some(), self.tcp.is_some(), self.exec.is_some()];
        if given.iter().filter(|is| **is).count() != 1 {
            problems.add(at, "must have exactly one of http, tcp and exec");
        }
        if self.http.as_ref().is_some_and(|http| !http.path.starts_with('/')) {
            problems.add(format!("{at}/http/path"), "must begin with \"/\"");
        }
        if self.exec.as_ref().is_some_and(|e| e.command.first().is_none_or(String::is_empty)) {
            problems.add(format!("{at}/exec/command"), "must name a program");
        }
        span(problems, format!("{at}/interval"), &self.interval, 100);
        span(problems, format!("{at}/timeout"), &self.timeout, 10);
        span(problems, format!("{at}/startPeriod"), &self.start_period, 0);
    }
}

impl Check for Restart {
    fn check(&self, at: &str, problems: &mut Problems) {
        span(problems, format!("{at}/backoffInitial"), &self.backoff_initial, 1);
        span(problems, format!("{at}/backoffMax"), &self.backoff_max, 1);
        span(problems, format!("{at}/crashLoopWindow"), &self.crash_loop_window, 1000);
        if self.backoff_max.ms() < self.backoff_initial.ms() {
            problems.add(format!("{at}/backoffMax"), "must not be below backoffInitial");
        }
    }
}

impl Check for Update {
    fn check(&self, at: &str, problems: &mut Problems) {
        if self.max_surge == 0 && self.max_unavailable == 0 {
            problems
                .add(at, "maxSurge and maxUnavailable must not both be 0: no update could begin");
        }
        span(problems, format!("{at}/healthDeadline"), &self.health_deadline, 1000);
        let fields = [
            ("order", &self.order),
            ("canary", &self.canary),
            ("autoRevert", &self.auto_revert),
            ("manualPromote", &self.manual_promote),
        ];
        later(problems, at, &fields);
    }
}
