//! `palisade-chaos sim`.

use std::time::Duration;

use palisade_state::planted::Defect;

use super::{
    Options, Ran, agents,
    campaign::{Campaign, summary, told_speed},
    faults::Fault,
    planted, run,
    shrink::shrink,
};
use crate::clock::Clock;

/// Grows with each change of what a seed decides. The product's own changes change runs too.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-6");

/// Whole clusters in simulated time
#[derive(Debug, clap::Args)]
pub(crate) struct Sim {
    /// What decides everything in a run, `N` or `VERSION:N`; with --seeds the first one
    #[arg(long, default_value = "1", value_parser = seed_of)]
    seed: u64,
    /// How many seeds, one after the other [default: 1; with --hours as many as there is time for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Simulated minutes with faults; a quiet minute follows
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=600))]
    minutes: u64,
    /// Runs seeds for so long, in hours of real time; what has begun then is finished
    #[arg(long, value_parser = hours_of)]
    hours: Option<Duration>,
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
    /// Instead of what clients do: so many writes a second, to measure the simulator's speed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    writes: Option<u64>,
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
    /// Puts an error into what clients recorded once a replica has ended, for tests of what is told of a failure
    #[arg(long, hide = true)]
    spoil: bool,
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

    /// What a seed decides, and what was asked for besides.
    fn options(&self, seed: u64, allowed: &[Fault], plant: Option<Defect>) -> Options {
        // It can show nowhere else.
        let needs = plant.map_or(0, |plant| planted::aim(plant).agents);
        let agents = self.agents.unwrap_or(needs);
        let length = Duration::from_secs(self.minutes * 60);
        let mut options = Options::with(seed, length, allowed, agents);
        options.plant = plant;
        options.is_spoiled = self.spoil;
        options.writes = self.writes;
        options.clients = self.clients.unwrap_or(options.clients);
        options.length = self.until.map_or(options.length, Duration::from_millis);
        options
    }

    /// Runs; the exit code.
    pub(crate) fn run(self) -> Result<u8, String> {
        let allowed = self.faults()?;
        let plant = self.defect()?;
        let only_machines = allowed.iter().all(|fault| agents::faults::ALL.contains(fault));
        if let (Some(fault), true, None, None) =
            (allowed.first(), only_machines, self.agents, &self.plant)
        {
            let name = fault.name();
            return Err(format!("{name} happens only where there are machines: give --agents N"));
        }
        // A task that panics is a breach, and told as one.
        std::panic::set_hook(Box::new(|_| {}));
        let begun = Clock::start();
        if self.plant.as_deref() == Some("all") {
            return Ok(self.plants(&allowed));
        }
        if self.seeds.unwrap_or(1) == 1 && self.hours.is_none() {
            return Ok(self.one(&allowed, plant, &begun));
        }
        Ok(self.many(&allowed, plant, &begun))
    }

    fn one(&self, allowed: &[Fault], plant: Option<Defect>, begun: &Clock) -> u8 {
        let mut options = self.options(self.seed, allowed, plant);
        options.is_told = self.trace;
        if let Some(keep) = &self.keep {
            options.plan = keep.iter().filter_map(|at| options.plan.get(*at).cloned()).collect();
        }
        let ran = run(&options);
        print!("{}", self.shown(self.seed, &ran, true));
        told_speed(1, ran.time, begun.elapsed().as_secs_f64());
        if ran.breaches.is_empty() {
            return 0;
        }
        if !self.no_shrink && self.keep.is_none() && !self.trace {
            self.shrunk(&options, ran);
        }
        1
    }

    /// The command that runs a seed again, as far as it is the same for each.
    fn command(&self, seed: u64) -> String {
        let mut text =
            format!("palisade-chaos sim --seed {VERSION}:{seed} --minutes {}", self.minutes);
        if let Some(faults) = &self.faults {
            text.push_str(&format!(" --faults {}", faults.join(",")));
        }
        if let Some(writes) = self.writes {
            text.push_str(&format!(" --writes {writes}"));
        }
        if let Some(plant) = &self.plant {
            text.push_str(&format!(" --plant {plant}"));
        }
        if self.spoil {
            text.push_str(" --spoil");
        }
        text
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
        println!(
            "replay: {} --keep {} --until {} --clients {} --agents {} --trace",
            self.command(self.seed),
            if kept.is_empty() { "9999".to_owned() } else { kept.join(",") },
            small.options.length.as_millis(),
            small.options.clients,
            small.options.agents,
        );
    }

    fn campaign<'a>(&'a self, options: &'a (dyn Fn(u64) -> Options + Sync)) -> Campaign<'a> {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Campaign {
            first: self.seed,
            seeds: self.seeds.unwrap_or(if self.hours.is_some() { u64::MAX } else { 1 }),
            limit: self.hours,
            stops: self.stop,
            jobs: self.jobs.unwrap_or(processors).max(1),
            wanted: &[],
            options,
        }
    }

    fn many(&self, allowed: &[Fault], plant: Option<Defect>, begun: &Clock) -> u8 {
        let options = |seed| self.options(seed, allowed, plant);
        let told = |seed, ran: &Ran| print!("{}", self.shown(seed, ran, false));
        let sum = self.campaign(&options).run(begun, Some(&told));
        print!("{}", summary(&sum.ran));
        told_speed(sum.runs, sum.ran.time, begun.elapsed().as_secs_f64());
        println!("{} of {} seeds failed", sum.failed, sum.runs);
        u8::from(sum.failed > 0)
    }

    /// Puts each defect in and says what caught it.
    fn plants(&self, allowed: &[Fault]) -> u8 {
        let mut missed = 0;
        for defect in Defect::ALL {
            let begun = Clock::start();
            let options = |seed| self.options(seed, allowed, Some(defect));
            let wanted = planted::aim(defect).checks;
            let sum = Campaign { wanted, ..self.campaign(&options) }.run(&begun, None);
            let (name, seconds) = (defect.name(), begun.elapsed().as_secs_f64());
            match sum.caught {
                Some((seed, checks)) => {
                    let nth = seed - self.seed + 1;
                    let checks: Vec<&str> = checks.into_iter().collect();
                    println!(
                        "{name}: caught by {} with seed {nth} of {} ({seconds:.1} s)",
                        checks.join(", "),
                        sum.runs
                    );
                }
                None => {
                    missed += 1;
                    let wanted = wanted.join(" or ");
                    println!(
                        "{name}: NOT caught by {wanted} in {} seeds ({seconds:.1} s)",
                        sum.runs
                    );
                }
            }
        }
        u8::from(missed > 0)
    }

    fn shown(&self, seed: u64, ran: &Ran, is_whole: bool) -> String {
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
        if !ran.breaches.is_empty() && !is_whole {
            let until = self.until.map_or(String::new(), |until| format!(" --until {until}"));
            let agents = self.agents.map_or(String::new(), |agents| format!(" --agents {agents}"));
            text.push_str(&format!("  replay: {}{until}{agents}\n", self.command(seed)));
        }
        if is_whole {
            text.push_str(&summary(ran));
            for stop in &ran.stops {
                text.push_str(&format!("  stopped: {stop}\n"));
            }
        }
        text
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

/// Hours, also parts of one.
fn hours_of(text: &str) -> Result<Duration, String> {
    let hours: f64 = text.parse().map_err(|_| "hours are a number".to_owned())?;
    if hours > 0.0 && hours <= 1_000.0 {
        Ok(Duration::from_secs_f64(hours * 3600.0))
    } else {
        Err("hours are more than 0 and at most 1000".to_owned())
    }
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

    #[test]
    fn hours_may_be_parts_of_one() {
        assert_eq!(hours_of("0.5"), Ok(Duration::from_secs(1800)));
        for wrong in ["0", "-1", "x", "NaN", "1e9"] {
            assert!(hours_of(wrong).is_err(), "{wrong}");
        }
    }
}
