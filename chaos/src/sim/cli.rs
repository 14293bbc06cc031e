//! `palisade-chaos sim`.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use palisade_state::planted::Defect;

use super::{Options, Ran, agents::DEFECTS, faults::Fault, nodes::lock, run, shrink::shrink};
use crate::clock::Clock;

/// Grows with each change of what a seed decides. The product's own changes change runs too.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");

/// Whole clusters in simulated time
#[derive(Debug, clap::Args)]
pub(crate) struct Sim {
    /// What decides everything in a run, `N` or `VERSION:N`; with --seeds the first one
    #[arg(long, default_value = "1", value_parser = seed_of)]
    seed: u64,
    /// How many seeds, one after the other
    #[arg(long, default_value_t = 1, value_name = "N")]
    seeds: u64,
    /// Simulated minutes with faults; a quiet minute follows
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=600))]
    minutes: u64,
    /// Runs seeds for so long, in hours of real time
    #[arg(long, conflicts_with = "seeds")]
    hours: Option<u64>,
    /// Print what happens
    #[arg(long)]
    trace: bool,
    /// Of the plan only these faults, by their numbers, with commas between them
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    keep: Option<Vec<usize>>,
    /// Ends the plan after so many milliseconds
    #[arg(long, value_name = "MS")]
    until: Option<u64>,
    /// How many clients [default: as the seed says]
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=16))]
    clients: Option<u64>,
    /// How many machines with agents, beside the replicas [default: none]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=20))]
    agents: Option<u64>,
    /// Do not look for less that fails as well
    #[arg(long)]
    no_shrink: bool,
    /// Which faults, with commas between them; `none` for none [default: all]
    #[arg(long, value_delimiter = ',', value_name = "FAULT,…")]
    faults: Option<Vec<String>>,
    /// Stop at the first seed that fails
    #[arg(long)]
    stop: bool,
    /// A defect to put into the product, in a build with the feature `planted`; `all` for one after the other
    #[arg(long, value_name = "DEFECT", hide = !cfg!(feature = "planted"))]
    plant: Option<String>,
    /// Threads [default: one for each processor]
    #[arg(long)]
    jobs: Option<u64>,
}

impl Sim {
    /// Which faults are allowed.
    pub(crate) fn faults(&self) -> Result<Vec<Fault>, String> {
        let Some(names) = &self.faults else { return Ok(Fault::ALL.to_vec()) };
        let known = || Fault::ALL.into_iter().map(Fault::name);
        let given = names.iter().filter(|name| !name.is_empty() && *name != "none");
        given
            .map(|name| {
                Fault::parse(name).ok_or_else(|| crate::cli::unknown("fault", name, known()))
            })
            .collect()
    }

    fn options(
        &self,
        seed: u64,
        length: Duration,
        allowed: &[Fault],
        plant: Option<Defect>,
    ) -> Options {
        // It can show nowhere else.
        let needs = plant.is_some_and(|plant| DEFECTS.iter().any(|(of, _)| *of == plant));
        let agents = self.agents.unwrap_or(if needs { 4 } else { 0 });
        Options { plant, ..Options::with(seed, length, allowed, agents) }
    }

    fn defect(&self) -> Result<Option<Defect>, String> {
        let name = match &self.plant {
            None => return Ok(None),
            Some(name) => name,
        };
        if !cfg!(feature = "planted") {
            return Err("this build can have no planted defect: build it with --features planted"
                .to_owned());
        }
        if name == "all" {
            return Ok(None);
        }
        let found = Defect::ALL.into_iter().find(|defect| defect.name() == name);
        let known = || Defect::ALL.into_iter().map(Defect::name);
        found.map(Some).ok_or_else(|| crate::cli::unknown("defect", name, known()))
    }

    /// Runs; the exit code.
    pub(crate) fn run(self) -> Result<u8, String> {
        let allowed = self.faults()?;
        let plant = self.defect()?;
        let length = Duration::from_secs(self.minutes * 60);
        // A task that panics is a breach, and told as one.
        std::panic::set_hook(Box::new(|_| {}));
        let begun = Clock::start();
        if self.plant.as_deref() == Some("all") {
            return Ok(self.plants(&allowed, length));
        }
        if self.seeds == 1 && self.hours.is_none() {
            return Ok(self.one(&allowed, length, plant, &begun));
        }
        Ok(self.many(&allowed, length, plant, &begun))
    }

    fn one(&self, allowed: &[Fault], length: Duration, plant: Option<Defect>, begun: &Clock) -> u8 {
        let mut options = self.options(self.seed, length, allowed, plant);
        options.is_told = self.trace;
        options.clients = self.clients.unwrap_or(options.clients);
        options.length = self.until.map_or(length, Duration::from_millis);
        if let Some(keep) = &self.keep {
            options.plan = keep.iter().filter_map(|at| options.plan.get(*at).cloned()).collect();
        }
        let ran = run(&options);
        print!("{}", shown(self.seed, &ran, true));
        told_speed(1, ran.time, begun.elapsed().as_secs_f64());
        if ran.breaches.is_empty() {
            return 0;
        }
        if !self.no_shrink && self.keep.is_none() && !self.trace {
            self.shrunk(&options, ran);
        }
        1
    }

    /// Says how little fails as well.
    fn shrunk(&self, options: &Options, ran: Ran) {
        let all = options.plan.len();
        let small = shrink(options, ran);
        println!("{} of {all} faults are enough ({} runs):", small.kept.len(), small.runs);
        for (at, planned) in small.kept.iter().zip(&small.options.plan) {
            let (fault, at_ms) = (planned.fault.name(), planned.at.as_millis());
            println!("  {at:>3} at {at_ms} ms: {fault}");
        }
        for breach in small.ran.breaches.iter().take(3) {
            println!("  {}: {}", breach.check, breach.message);
        }
        let kept: Vec<String> = small.kept.iter().map(usize::to_string).collect();
        let plant = self.plant.as_ref().map_or(String::new(), |name| format!(" --plant {name}"));
        let faults =
            self.faults.as_ref().map_or(String::new(), |f| format!(" --faults {}", f.join(",")));
        println!(
            "replay: palisade-chaos sim --seed {VERSION}:{} --minutes {}{faults}{plant} --keep {} --until {} --clients \
             {} --agents {} --trace",
            self.seed,
            self.minutes,
            if kept.is_empty() { "9999".to_owned() } else { kept.join(",") },
            small.options.length.as_millis(),
            small.options.clients,
            small.options.agents,
        );
    }

    fn many(
        &self,
        allowed: &[Fault],
        length: Duration,
        plant: Option<Defect>,
        begun: &Clock,
    ) -> u8 {
        let (sum, first) = self.campaign(allowed, length, plant, begun);
        print!("{}", summary(&sum.ran));
        told_speed(sum.runs, sum.ran.time, begun.elapsed().as_secs_f64());
        u8::from(first.is_some())
    }

    /// Runs seeds on all processors; also says the first that failed and what failed in it.
    fn campaign(
        &self,
        allowed: &[Fault],
        length: Duration,
        plant: Option<Defect>,
        begun: &Clock,
    ) -> (Sum, Option<(u64, String)>) {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let next = AtomicU64::new(0);
        let sum = Mutex::new(Sum::default());
        let bad: Mutex<Option<(u64, String)>> = Mutex::default();
        let limit = self.hours.map(|hours| Duration::from_secs(hours * 3600));
        let work = || {
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                let is_over = limit.map_or(nth >= self.seeds, |limit| begun.elapsed() >= limit);
                if is_over || (self.stop && lock(&bad).is_some()) {
                    return;
                }
                let seed = self.seed + nth;
                let ran = run(&self.options(seed, length, allowed, plant));
                if let Some(breach) = ran.breaches.first() {
                    let mut bad = lock(&bad);
                    if bad.as_ref().is_none_or(|(known, _)| seed < *known) {
                        *bad = Some((seed, breach.check.to_owned()));
                    }
                    if plant.is_none() {
                        print!("{}", shown(seed, &ran, false));
                    }
                }
                lock(&sum).add(ran);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.unwrap_or(processors).max(1) {
                scope.spawn(work);
            }
        });
        let bad = bad.into_inner().unwrap_or_default();
        (sum.into_inner().unwrap_or_default(), bad)
    }

    /// Puts each defect in and says what caught it.
    fn plants(&self, allowed: &[Fault], length: Duration) -> u8 {
        let mut missed = 0;
        for defect in Defect::ALL {
            let begun = Clock::start();
            let (sum, caught) = self.campaign(allowed, length, Some(defect), &begun);
            let (name, seconds) = (defect.name(), begun.elapsed().as_secs());
            match caught {
                Some((seed, check)) => {
                    let nth = seed - self.seed + 1;
                    println!(
                        "{name}: caught by {check} with seed {nth} of {} ({seconds} s)",
                        sum.runs
                    );
                }
                None => {
                    missed += 1;
                    println!("{name}: NOT caught in {} seeds ({seconds} s)", sum.runs);
                }
            }
        }
        u8::from(missed > 0)
    }
}

/// Many runs together.
#[derive(Default)]
struct Sum {
    runs: u64,
    ran: Ran,
}

impl Sum {
    fn add(&mut self, ran: Ran) {
        self.runs += 1;
        let sum = &mut self.ran;
        sum.time += ran.time;
        sum.operations += ran.operations;
        sum.acknowledged += ran.acknowledged;
        sum.unknown += ran.unknown;
        sum.terms += ran.terms;
        sum.applied += ran.applied;
        sum.compared += ran.compared;
        for (point, times) in ran.died_at {
            *sum.died_at.entry(point).or_default() += times;
        }
        sum.stops.extend(ran.stops);
    }
}

/// A seed means the same in this version only.
fn seed_of(text: &str) -> Result<u64, String> {
    let (version, number) = text.split_once(':').unwrap_or((VERSION, text));
    if version != VERSION {
        return Err(format!("the seed is of simulator version {version}, and this is {VERSION}"));
    }
    number.parse().map_err(|_| "a seed is a whole number below 2^64".to_owned())
}

fn told_speed(runs: u64, time: Duration, real: f64) {
    let rate = time.as_secs_f64() / real.max(0.001);
    println!(
        "{runs} runs, {:.0} simulated seconds in {real:.1} s: {rate:.0} a second",
        time.as_secs_f64()
    );
}

fn summary(ran: &Ran) -> String {
    let died: Vec<String> =
        ran.died_at.iter().map(|(point, times)| format!("{point} {times}")).collect();
    format!(
        "{} operations, {} acknowledged, {} unknown; {} terms, {} entries, {} states compared; {} stopped by \
         themselves\nended at: {}\n",
        ran.operations,
        ran.acknowledged,
        ran.unknown,
        ran.terms,
        ran.applied,
        ran.compared,
        ran.stops.len(),
        died.join(", ")
    )
}

fn shown(seed: u64, ran: &Ran, is_whole: bool) -> String {
    let mut text = format!(
        "seed {VERSION}:{seed}: hash {:016x} over {} events: {}\n",
        ran.hash,
        ran.events,
        if ran.breaches.is_empty() { "passed" } else { "FAILED" }
    );
    for breach in ran.breaches.iter().take(8) {
        text.push_str(&format!("  {}: {}\n", breach.check, breach.message));
    }
    if ran.breaches.len() > 8 {
        text.push_str(&format!("  and {} more\n", ran.breaches.len() - 8));
    }
    if !ran.breaches.is_empty() {
        text.push_str(&format!("  replay: palisade-chaos sim --seed {VERSION}:{seed}\n"));
    }
    if is_whole {
        text.push_str(&summary(ran));
        for stop in &ran.stops {
            text.push_str(&format!("  stopped: {stop}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_of_another_version_is_refused_with_both() {
        assert_eq!(seed_of("7"), Ok(7));
        assert_eq!(seed_of(&format!("{VERSION}:7")), Ok(7));
        let error = seed_of("0.0.9-3:7").unwrap_err();
        assert_eq!(
            error,
            format!("the seed is of simulator version 0.0.9-3, and this is {VERSION}")
        );
        assert!(seed_of("x").is_err());
    }
}
