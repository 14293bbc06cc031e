//! Between the agent wire and the contract's types.

use std::collections::BTreeMap;

use palisade_contract::{
    InstanceId,
    node::{
        Condition, Disk, Exit, HealthCheck, HostFacts, InstancePhase, InstanceResources,
        InstanceSpec, InstanceStatus, Interface, NodeStatus, Probe, RestartMode, RestartPolicy,
        Wanted,
    },
    node_spec::NodeSpecRecord,
    secrets::SecretUse,
};
use palisade_proto::agent as wire;
use palisade_state::Fence;

/// A fence for the wire.
#[must_use]
pub fn fence_to_wire(fence: Fence) -> wire::Fence {
    wire::Fence { epoch: fence.epoch, term: fence.term, index: fence.index }
}

/// A fence from the wire; absent: below all.
#[must_use]
pub fn fence_from_wire(fence: Option<&wire::Fence>) -> Fence {
    fence.map_or(Fence::NONE, |f| Fence { epoch: f.epoch, term: f.term, index: f.index })
}

fn port_from(port: u32) -> u16 {
    u16::try_from(port).unwrap_or(0)
}

/// What a machine is.
#[must_use]
pub fn facts_from_wire(inventory: wire::Inventory) -> HostFacts {
    let disks = inventory.disks.into_iter();
    let interfaces = inventory.interfaces.into_iter();
    HostFacts {
        hostname: inventory.hostname,
        os: inventory.os,
        kernel: inventory.kernel,
        arch: inventory.arch,
        product_uuid: inventory.product_uuid,
        boot_id: inventory.boot_id,
        cpu_model: inventory.cpu_model,
        sockets: inventory.sockets,
        cores: inventory.cores,
        threads: inventory.threads,
        memory_bytes: inventory.memory_bytes,
        offered_cpu_milli: inventory.offered_cpu_milli,
        offered_memory_bytes: inventory.offered_memory_bytes,
        disks: disks
            .map(|d| Disk { name: d.name, size_bytes: d.size_bytes, rotational: d.rotational })
            .collect(),
        interfaces: interfaces
            .map(|i| Interface { name: i.name, mac: i.mac, addresses: i.addresses })
            .collect(),
        drivers: inventory.drivers,
        port_first: port_from(inventory.port_first),
        port_last: port_from(inventory.port_last),
        address: inventory.address,
        isolation: inventory.isolation.into_iter().collect(),
        labels: inventory.labels.into_iter().collect(),
    }
}

/// What an agent reports. An instance whose id is none of ours is left out.
#[must_use]
pub fn status_from_wire(status: wire::Status) -> NodeStatus {
    NodeStatus {
        generation: status.generation,
        instances: status.instances.into_iter().filter_map(instance_from_wire).collect(),
        conditions: status
            .conditions
            .into_iter()
            .map(|c| Condition { code: c.code, message: c.message })
            .collect(),
    }
}

fn instance_from_wire(status: wire::InstanceStatus) -> Option<InstanceStatus> {
    Some(InstanceStatus {
        id: InstanceId::parse(&status.id)?,
        phase: phase_from_wire(status.phase()),
        pid: status.pid,
        started_at_ms: status.started_at_ms,
        restarts: status.restarts,
        last_exit: status.last_exit.map(|exit| Exit {
            code: exit.code,
            signal: exit.signal,
            at_ms: exit.at_ms,
            out_of_memory: exit.out_of_memory,
        }),
        message: status.message,
        code: status.code,
        spec_version: status.spec_version,
    })
}

fn phase_from_wire(phase: wire::InstancePhase) -> InstancePhase {
    match phase {
        // A phase of a newer agent: nothing is known yet.
        wire::InstancePhase::Unspecified | wire::InstancePhase::Pending => InstancePhase::Pending,
        wire::InstancePhase::Starting => InstancePhase::Starting,
        wire::InstancePhase::Healthy => InstancePhase::Healthy,
        wire::InstancePhase::Unhealthy => InstancePhase::Unhealthy,
        wire::InstancePhase::Stopping => InstancePhase::Stopping,
        wire::InstancePhase::Exited => InstancePhase::Exited,
        wire::InstancePhase::Failed => InstancePhase::Failed,
        wire::InstancePhase::CrashLoop => InstancePhase::CrashLoop,
        wire::InstancePhase::Stopped => InstancePhase::Stopped,
    }
}

/// A stored spec for the wire.
#[must_use]
pub fn spec_to_wire(record: &NodeSpecRecord) -> wire::NodeSpec {
    wire::NodeSpec {
        generation: record.generation,
        hash: hex::decode(&record.hash).unwrap_or_default(),
        fence: Some(fence_to_wire(record.fence)),
        instances: record.spec.instances.values().map(instance_to_wire).collect(),
    }
}

/// One instance for the wire.
#[must_use]
pub fn instance_to_wire(spec: &InstanceSpec) -> wire::InstanceSpec {
    let wanted = match spec.wanted {
        Wanted::Up => wire::Wanted::Up,
        Wanted::Offline => wire::Wanted::Offline,
    };
    wire::InstanceSpec {
        id: spec.id.to_string(),
        name: spec.name.clone(),
        workload: spec.workload.clone(),
        spec_version: spec.spec_version,
        wanted: wanted.into(),
        driver: spec.driver.clone(),
        command: spec.command.clone(),
        env: spec.env.clone().into_iter().collect(),
        secret_env: spec.secret_env.iter().map(|(n, s)| (n.clone(), use_to_wire(s))).collect(),
        working_dir: spec.working_dir.clone(),
        user: spec.user.clone(),
        resources: Some(resources_to_wire(&spec.resources)),
        ports: spec
            .ports
            .iter()
            .map(|(name, port)| wire::Port { name: name.clone(), port: (*port).into() })
            .collect(),
        health: spec.health.as_ref().map(health_to_wire),
        restart: Some(restart_to_wire(&spec.restart)),
        stop_signal: spec.stop_signal.clone(),
        stop_grace_ms: spec.stop_grace_ms,
        labels: spec.labels.clone().into_iter().collect(),
        fence: Some(fence_to_wire(spec.fence)),
        files: spec.files.iter().map(|(p, t)| (p.clone(), t.clone().into_bytes())).collect(),
    }
}

fn use_to_wire(secret: &SecretUse) -> wire::SecretUse {
    let SecretUse { tenant, secret, version: _, revision } = secret.clone();
    wire::SecretUse { tenant, name: secret, revision }
}

/// The version is not on the wire: the revision says which one it is.
fn use_from_wire(secret: wire::SecretUse) -> SecretUse {
    let wire::SecretUse { tenant, name, revision } = secret;
    SecretUse { tenant, secret: name, version: 0, revision }
}

fn resources_to_wire(limits: &InstanceResources) -> wire::Resources {
    wire::Resources {
        cpu_limit_milli: limits.cpu_limit_milli,
        memory_limit_bytes: limits.memory_limit_bytes,
        pids_max: limits.pids_max,
        cpu_request_milli: limits.cpu_request_milli,
        memory_request_bytes: limits.memory_request_bytes,
    }
}

fn health_to_wire(check: &HealthCheck) -> wire::HealthCheck {
    use wire::health_check::Kind;
    let kind = match &check.probe {
        Probe::Http { port, path } => {
            Kind::Http(wire::HttpCheck { path: path.clone(), port: (*port).into() })
        }
        Probe::Tcp { port } => Kind::Tcp(wire::TcpCheck { port: (*port).into() }),
        Probe::Exec { command } => Kind::Exec(wire::ExecCheck { command: command.clone() }),
    };
    wire::HealthCheck {
        kind: Some(kind),
        interval_ms: check.interval_ms,
        timeout_ms: check.timeout_ms,
        start_period_ms: check.start_period_ms,
        healthy_threshold: check.healthy_threshold,
        unhealthy_threshold: check.unhealthy_threshold,
    }
}

fn restart_to_wire(policy: &RestartPolicy) -> wire::RestartPolicy {
    let mode = match policy.mode {
        RestartMode::Always => wire::RestartMode::Always,
        RestartMode::OnFailure => wire::RestartMode::OnFailure,
        RestartMode::Never => wire::RestartMode::Never,
    };
    wire::RestartPolicy {
        mode: mode.into(),
        backoff_initial_ms: policy.backoff_initial_ms,
        backoff_max_ms: policy.backoff_max_ms,
        crash_loop_threshold: policy.crash_loop_threshold,
        crash_loop_window_ms: policy.crash_loop_window_ms,
    }
}

/// An instance from the wire; the inverse of [`instance_to_wire`].
#[must_use]
pub fn instance_spec_from_wire(spec: wire::InstanceSpec) -> Option<InstanceSpec> {
    let resources = spec.resources.unwrap_or_default();
    Some(InstanceSpec {
        id: InstanceId::parse(&spec.id)?,
        wanted: match spec.wanted() {
            wire::Wanted::Offline => Wanted::Offline,
            wire::Wanted::Up | wire::Wanted::Unspecified => Wanted::Up,
        },
        name: spec.name,
        workload: spec.workload,
        spec_version: spec.spec_version,
        driver: spec.driver,
        command: spec.command,
        env: spec.env.into_iter().collect(),
        secret_env: spec.secret_env.into_iter().map(|(n, s)| (n, use_from_wire(s))).collect(),
        working_dir: spec.working_dir,
        user: spec.user,
        resources: InstanceResources {
            cpu_request_milli: resources.cpu_request_milli,
            cpu_limit_milli: resources.cpu_limit_milli,
            memory_request_bytes: resources.memory_request_bytes,
            memory_limit_bytes: resources.memory_limit_bytes,
            pids_max: resources.pids_max,
        },
        ports: spec.ports.into_iter().map(|p| (p.name, port_from(p.port))).collect(),
        health: spec.health.and_then(health_from_wire),
        restart: restart_from_wire(&spec.restart.unwrap_or_default()),
        stop_signal: spec.stop_signal,
        stop_grace_ms: spec.stop_grace_ms,
        labels: spec.labels.into_iter().collect(),
        files: files_from_wire(spec.files.into_iter().collect())?,
        fence: fence_from_wire(spec.fence.as_ref()),
    })
}

fn files_from_wire(files: BTreeMap<String, Vec<u8>>) -> Option<BTreeMap<String, String>> {
    files.into_iter().map(|(path, bytes)| Some((path, String::from_utf8(bytes).ok()?))).collect()
}

fn health_from_wire(check: wire::HealthCheck) -> Option<HealthCheck> {
    use wire::health_check::Kind;
    let probe = match check.kind? {
        Kind::Http(http) => Probe::Http { port: port_from(http.port), path: http.path },
        Kind::Tcp(tcp) => Probe::Tcp { port: port_from(tcp.port) },
        Kind::Exec(exec) => Probe::Exec { command: exec.command },
    };
    Some(HealthCheck {
        probe,
        interval_ms: check.interval_ms,
        timeout_ms: check.timeout_ms,
        start_period_ms: check.start_period_ms,
        healthy_threshold: check.healthy_threshold,
        unhealthy_threshold: check.unhealthy_threshold,
    })
}

fn restart_from_wire(policy: &wire::RestartPolicy) -> RestartPolicy {
    RestartPolicy {
        mode: match policy.mode() {
            wire::RestartMode::OnFailure => RestartMode::OnFailure,
            wire::RestartMode::Never => RestartMode::Never,
            wire::RestartMode::Always | wire::RestartMode::Unspecified => RestartMode::Always,
        },
        backoff_initial_ms: policy.backoff_initial_ms,
        backoff_max_ms: policy.backoff_max_ms,
        crash_loop_threshold: policy.crash_loop_threshold,
        crash_loop_window_ms: policy.crash_loop_window_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_map(name: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(name.to_owned(), "1".to_owned())])
    }

    fn spec(probe: Option<Probe>, wanted: Wanted, mode: RestartMode) -> InstanceSpec {
        InstanceSpec {
            id: InstanceId::parse("in_01arz3ndektsv4rrffq69g5fav").unwrap(),
            name: "web-1".into(),
            workload: "web".into(),
            spec_version: 3,
            wanted,
            driver: "process".into(),
            command: vec!["a".into(), "b".into()],
            env: text_map("E"),
            secret_env: BTreeMap::from([(
                "S".to_owned(),
                SecretUse { tenant: "t".into(), secret: "s".into(), version: 0, revision: 7 },
            )]),
            working_dir: "/w".into(),
            user: "u".into(),
            resources: InstanceResources {
                cpu_request_milli: 1,
                cpu_limit_milli: 2,
                memory_request_bytes: 3,
                memory_limit_bytes: 4,
                pids_max: 5,
            },
            ports: BTreeMap::from([("http".to_owned(), 21000)]),
            health: probe.map(|probe| HealthCheck {
                probe,
                interval_ms: 1,
                timeout_ms: 2,
                start_period_ms: 3,
                healthy_threshold: 4,
                unhealthy_threshold: 5,
            }),
            restart: RestartPolicy {
                mode,
                backoff_initial_ms: 1,
                backoff_max_ms: 2,
                crash_loop_threshold: 3,
                crash_loop_window_ms: 4,
            },
            stop_signal: "SIGTERM".into(),
            stop_grace_ms: 9,
            labels: text_map("L"),
            files: text_map("f"),
            fence: Fence { epoch: 1, term: 2, index: 3 },
        }
    }

    #[test]
    fn an_instance_comes_back_from_the_wire_as_it_went() {
        let probes = [
            None,
            Some(Probe::Http { port: 1, path: "/h".into() }),
            Some(Probe::Tcp { port: 2 }),
            Some(Probe::Exec { command: vec!["x".into()] }),
        ];
        for probe in probes {
            for mode in [RestartMode::Always, RestartMode::OnFailure, RestartMode::Never] {
                for wanted in [Wanted::Up, Wanted::Offline] {
                    let spec = spec(probe.clone(), wanted, mode);
                    let back = instance_spec_from_wire(instance_to_wire(&spec)).unwrap();
                    assert_eq!(back, spec);
                }
            }
        }
    }

    #[test]
    fn a_status_keeps_every_field() {
        let status = wire::Status {
            generation: 7,
            instances: vec![
                wire::InstanceStatus {
                    id: "in_01arz3ndektsv4rrffq69g5fav".into(),
                    phase: wire::InstancePhase::CrashLoop.into(),
                    pid: 1,
                    started_at_ms: 2,
                    restarts: 3,
                    last_exit: Some(wire::Exit {
                        code: 4,
                        signal: 5,
                        at_ms: 6,
                        out_of_memory: true,
                    }),
                    message: "m".into(),
                    code: "C".into(),
                    spec_version: 8,
                    ..wire::InstanceStatus::default()
                },
                wire::InstanceStatus { id: "junk".into(), ..wire::InstanceStatus::default() },
            ],
            conditions: vec![wire::Condition {
                code: "X".into(),
                message: "y".into(),
                next_try_in_ms: 1,
            }],
            ..wire::Status::default()
        };
        let read = status_from_wire(status);
        assert_eq!(read.generation, 7);
        let [instance] = read.instances.as_slice() else { panic!("{read:?}") };
        assert_eq!(instance.phase, InstancePhase::CrashLoop);
        assert_eq!((instance.pid, instance.started_at_ms, instance.restarts), (1, 2, 3));
        let exit = Exit { code: 4, signal: 5, at_ms: 6, out_of_memory: true };
        assert_eq!(instance.last_exit, Some(exit));
        assert_eq!((instance.message.as_str(), instance.code.as_str()), ("m", "C"));
        assert_eq!(instance.spec_version, 8);
        assert_eq!(read.conditions, [Condition { code: "X".into(), message: "y".into() }]);
    }

    #[test]
    fn facts_keep_every_field() {
        let inventory = wire::Inventory {
            hostname: "h".into(),
            os: "o".into(),
            kernel: "k".into(),
            arch: "a".into(),
            product_uuid: "p".into(),
            boot_id: "b".into(),
            cpu_model: "c".into(),
            sockets: 1,
            cores: 2,
            threads: 3,
            memory_bytes: 4,
            disks: vec![wire::Disk { name: "d".into(), size_bytes: 5, rotational: true }],
            interfaces: vec![wire::Interface {
                name: "i".into(),
                mac: "m".into(),
                addresses: vec!["x".into()],
            }],
            drivers: vec!["process".into()],
            port_first: 6,
            port_last: 70_000,
            address: "1.2.3.4".into(),
            isolation: [("cpu".to_owned(), "enforced".to_owned())].into_iter().collect(),
            offered_cpu_milli: 7,
            offered_memory_bytes: 8,
            labels: [("disk".to_owned(), "ssd".to_owned())].into_iter().collect(),
        };
        let facts = facts_from_wire(inventory);
        use serde_json::json;
        let text = serde_json::to_value(&facts).unwrap();
        for (name, value) in text.as_object().unwrap() {
            let empty = [json!(""), json!(0), json!({}), json!([])].contains(value);
            assert!(!empty || name == "portLast", "{name} was lost");
        }
        assert_eq!(facts.port_last, 0, "a port that is none is not cut down to one");
    }

    #[test]
    fn a_spec_record_keeps_generation_hash_and_fence() {
        let record = NodeSpecRecord {
            generation: 4,
            hash: "00ff".into(),
            fence: Fence { epoch: 0, term: 1, index: 2 },
            ..NodeSpecRecord::default()
        };
        let sent = spec_to_wire(&record);
        assert_eq!((sent.generation, sent.hash.as_slice()), (4, &[0, 255][..]));
        assert_eq!(fence_from_wire(sent.fence.as_ref()), record.fence);
    }
}
