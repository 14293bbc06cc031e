//! Many seeds, on several threads.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{Options, Ran, nodes::lock, run};
use crate::clock::Clock;

/// How often it is told how far it is, at most and at least.
const TOLD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// See the module.
pub(crate) struct Campaign<'a> {
    pub(crate) first: u64,
    pub(crate) seeds: u64,
    /// No seed is begun after so much real time.
    pub(crate) limit: Option<Duration>,
    /// At the first seed that fails.
    pub(crate) stops: bool,
    pub(crate) jobs: u64,
    /// Checks of which one must fail for a seed to have failed; empty: any.
    pub(crate) wanted: &'a [&'static str],
    /// What a seed decides.
    pub(crate) options: &'a (dyn Fn(u64) -> Options + Sync),
}

/// Many runs together.
#[derive(Default)]
pub(crate) struct Sum {
    pub(crate) runs: u64,
    pub(crate) failed: u64,
    pub(crate) ran: Ran,
    /// The first seed that failed, and what failed in it.
    pub(crate) caught: Option<(u64, BTreeSet<&'static str>)>,
    /// When it was told last how far it is.
    told: Duration,
}

/// Who is given each run that fails, with its seed.
type Told<'a> = &'a (dyn Fn(u64, &Ran) + Sync);

impl Campaign<'_> {
    fn is_over(&self, nth: u64, begun: &Clock) -> bool {
        nth >= self.seeds || self.limit.is_some_and(|limit| begun.elapsed() >= limit)
    }

    /// Runs them; `told` is given each run that fails, and there are lines of progress then.
    pub(crate) fn run(&self, begun: &Clock, told: Option<Told<'_>>) -> Sum {
        let next = AtomicU64::new(0);
        let sum = Mutex::new(Sum::default());
        let work = || {
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                let is_over = nth > 0 && self.is_over(nth, begun);
                if is_over || (self.stops && lock(&sum).failed > 0) {
                    return;
                }
                let seed = self.first.saturating_add(nth);
                let ran = run(&(self.options)(seed));
                let mut sum = lock(&sum);
                if let Some(told) = told
                    && !ran.breaches.is_empty()
                {
                    told(seed, &ran);
                }
                sum.add(seed, ran, self.wanted);
                if told.is_some() {
                    self.progress(&mut sum, begun);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(work);
            }
        });
        sum.into_inner().unwrap_or_default()
    }

    fn progress(&self, sum: &mut Sum, begun: &Clock) {
        let every = self.limit.map_or(TOLD.1, |limit| (limit / 5).clamp(TOLD.0, TOLD.1));
        let now = begun.elapsed();
        if now < sum.told + every {
            return;
        }
        sum.told = now;
        print!("so far {} failed; ", sum.failed);
        told_speed(sum.runs, sum.ran.time, now.as_secs_f64());
    }
}

impl Sum {
    fn add(&mut self, seed: u64, ran: Ran, wanted: &[&str]) {
        self.runs += 1;
        if ran.breaches.iter().any(|breach| wanted.is_empty() || wanted.contains(&breach.check)) {
            self.failed += 1;
            if self.caught.as_ref().is_none_or(|(known, _)| seed < *known) {
                let checks = ran.breaches.iter().map(|breach| breach.check).collect();
                self.caught = Some((seed, checks));
            }
        }
        let sum = &mut self.ran;
        sum.time += ran.time;
        sum.operations += ran.operations;
        sum.acknowledged += ran.acknowledged;
        sum.unknown += ran.unknown;
        sum.terms += ran.terms;
        sum.applied += ran.applied;
        sum.compared += ran.compared;
        sum.recalled.right += ran.recalled.right;
        sum.recalled.unknown += ran.recalled.unknown;
        for (point, times) in ran.died_at {
            *sum.died_at.entry(point).or_default() += times;
        }
        sum.stops.extend(ran.stops);
    }
}

/// Says how fast it went.
pub(crate) fn told_speed(runs: u64, time: Duration, real: f64) {
    let rate = time.as_secs_f64() / real.max(0.001);
    println!(
        "{runs} runs, {:.0} simulated seconds in {real:.1} s: {rate:.0} a second",
        time.as_secs_f64()
    );
}

/// What happened, in numbers.
pub(crate) fn summary(ran: &Ran) -> String {
    let died: Vec<String> =
        ran.died_at.iter().map(|(point, times)| format!("{point} {times}")).collect();
    format!(
        "{} operations, {} acknowledged, {} unknown; {} terms, {} entries, {} states compared, {} recalled and {} \
         not known any more; {} stopped by themselves\nended at: {}\n",
        ran.operations,
        ran.acknowledged,
        ran.unknown,
        ran.terms,
        ran.applied,
        ran.compared,
        ran.recalled.right,
        ran.recalled.unknown,
        ran.stops.len(),
        died.join(", ")
    )
}
