//! Health checks: the count of results, which is pure, and the probes themselves.

use std::time::Duration;

use futures::future::BoxFuture;
use palisade_proto::agent::{HealthCheck, InstanceSpec, health_check::Kind};

mod probe;

pub use probe::NetProber;

const INTERVAL_MS: u64 = 5_000;
const TIMEOUT_MS: u64 = 2_000;
const HEALTHY_THRESHOLD: u32 = 1;
const UNHEALTHY_THRESHOLD: u32 = 3;
/// The first probes after a start come quickly, so that health is noticed quickly.
const QUICK_INITIAL: Duration = Duration::from_millis(50);

/// What is known about an instance that has a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not known yet.
    Unknown {
        /// What the last probe said; empty before the first.
        last_error: String,
    },
    /// It passes.
    Healthy,
    /// It fails.
    Unhealthy {
        /// What the last probe said.
        last_error: String,
    },
}

/// What to probe.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The instance.
    pub id: String,
    /// The driver that runs it.
    pub driver: String,
    /// How.
    pub kind: Kind,
}

/// Probes; the caller limits the time.
pub trait Prober: Send + Sync + 'static {
    /// One probe; the error is a sentence for people.
    fn probe(&self, probe: Probe) -> BoxFuture<'static, Result<(), String>>;
}

/// Counts the results of one run's probes.
#[derive(Clone, Debug)]
pub struct Monitor {
    run: u32,
    kind: Kind,
    interval: Duration,
    timeout: Duration,
    start_period_end: Duration,
    healthy_threshold: u32,
    unhealthy_threshold: u32,
    health: Health,
    passed: u32,
    failed: u32,
    quick: Duration,
    next_at: Duration,
    probing: bool,
}

impl Monitor {
    /// For a run that began at `now`; `None` when the spec has no check.
    #[must_use]
    pub fn new(spec: &InstanceSpec, run: u32, now: Duration) -> Option<Self> {
        let check: &HealthCheck = spec.health.as_ref()?;
        let mut kind = check.kind.clone()?;
        let first_port = spec.ports.first().map_or(0, |port| port.port);
        match &mut kind {
            Kind::Http(http) if http.port == 0 => http.port = first_port,
            Kind::Tcp(tcp) if tcp.port == 0 => tcp.port = first_port,
            _ => {}
        }
        let or = |value: u64, default: u64| if value == 0 { default } else { value };
        let interval = Duration::from_millis(or(check.interval_ms, INTERVAL_MS));
        let unhealthy_threshold = match check.unhealthy_threshold {
            0 => UNHEALTHY_THRESHOLD,
            threshold => threshold,
        };
        // Without a start period, a program still gets the time of its regular probes: the quick
        // ones at the beginning must not condemn it.
        let start_period = match check.start_period_ms {
            0 => interval.saturating_mul(unhealthy_threshold),
            ms => Duration::from_millis(ms),
        };
        Some(Self {
            run,
            kind,
            interval,
            timeout: Duration::from_millis(or(check.timeout_ms, TIMEOUT_MS)),
            start_period_end: now + start_period,
            healthy_threshold: match check.healthy_threshold {
                0 => HEALTHY_THRESHOLD,
                threshold => threshold,
            },
            unhealthy_threshold,
            health: Health::Unknown { last_error: String::new() },
            passed: 0,
            failed: 0,
            quick: QUICK_INITIAL.min(interval),
            next_at: now,
            probing: false,
        })
    }

    /// Which run it is about.
    #[must_use]
    pub fn run(&self) -> u32 {
        self.run
    }

    /// What is known.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// How long a probe may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// When the next probe is due; `None` while one is under way.
    #[must_use]
    pub fn next_at(&self) -> Option<Duration> {
        (!self.probing).then_some(self.next_at)
    }

    /// The probe to make now, if one is due.
    pub fn begin(&mut self, now: Duration) -> Option<Kind> {
        if self.probing || now < self.next_at {
            return None;
        }
        self.probing = true;
        Some(self.kind.clone())
    }

    /// Takes the result of the probe under way.
    pub fn finish(&mut self, result: Result<(), String>, now: Duration) {
        self.probing = false;
        match result {
            Ok(()) => {
                self.failed = 0;
                self.passed = self.passed.saturating_add(1);
                if self.passed >= self.healthy_threshold {
                    self.health = Health::Healthy;
                }
            }
            Err(last_error) => {
                self.passed = 0;
                let starting =
                    matches!(self.health, Health::Unknown { .. }) && now < self.start_period_end;
                if !starting {
                    self.failed = self.failed.saturating_add(1);
                }
                self.health = match self.health {
                    Health::Healthy if self.failed < self.unhealthy_threshold => Health::Healthy,
                    Health::Unknown { .. } if self.failed < self.unhealthy_threshold => {
                        Health::Unknown { last_error }
                    }
                    _ => Health::Unhealthy { last_error },
                };
            }
        }
        let settled = !matches!(self.health, Health::Unknown { .. });
        let delay = if settled || now >= self.start_period_end {
            self.interval
        } else {
            let quick = self.quick;
            self.quick = (quick * 3 / 2).min(self.interval);
            quick
        };
        self.next_at = now + delay;
    }
}

#[cfg(test)]
mod tests {
    use palisade_proto::agent::TcpCheck;

    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn monitor(start_period_ms: u64) -> Monitor {
        let check = HealthCheck {
            kind: Some(Kind::Tcp(TcpCheck { port: 1 })),
            interval_ms: 1000,
            start_period_ms,
            healthy_threshold: 1,
            unhealthy_threshold: 2,
            ..HealthCheck::default()
        };
        let spec = InstanceSpec { health: Some(check), ..InstanceSpec::default() };
        Monitor::new(&spec, 1, at(0)).unwrap()
    }

    #[test]
    fn failures_in_the_start_period_do_not_count_and_probes_come_quickly() {
        let mut monitor = monitor(10_000);
        let mut now = at(0);
        for _ in 0..5 {
            assert!(monitor.begin(now).is_some());
            monitor.finish(Err("refused".into()), now);
            assert!(matches!(monitor.health(), Health::Unknown { .. }));
            now = monitor.next_at().unwrap();
        }
        assert!(now < at(1000), "{now:?}");
        monitor.begin(now);
        monitor.finish(Ok(()), now);
        assert_eq!(monitor.health(), &Health::Healthy);
        assert_eq!(monitor.next_at(), Some(now + at(1000)));
    }

    #[test]
    fn so_many_failures_in_a_row_make_it_unhealthy_and_one_success_healthy_again() {
        let mut monitor = monitor(1);
        monitor.finish(Ok(()), at(10));
        monitor.finish(Err("x".into()), at(20));
        assert_eq!(monitor.health(), &Health::Healthy);
        monitor.finish(Err("x".into()), at(30));
        assert!(matches!(monitor.health(), Health::Unhealthy { .. }));
        monitor.finish(Ok(()), at(40));
        assert_eq!(monitor.health(), &Health::Healthy);
    }

    #[test]
    fn after_the_start_period_failures_count() {
        let mut monitor = monitor(100);
        monitor.finish(Err("x".into()), at(200));
        monitor.finish(Err("x".into()), at(1200));
        assert!(matches!(monitor.health(), Health::Unhealthy { .. }));
    }

    #[test]
    fn a_probe_under_way_is_not_begun_twice() {
        let mut monitor = monitor(100);
        assert!(monitor.begin(at(0)).is_some());
        assert!(monitor.begin(at(5000)).is_none());
    }
}
