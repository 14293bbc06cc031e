//! The command line of `soak`.

use std::path::PathBuf;

use anyhow::Context as _;

use super::{Options, run, stated};
use crate::{
    cli::{USAGE, block_on, can_drive, can_report},
    enclosure, seed,
};

/// Flags of `soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Soak {
    /// How long; the first third is warm-up
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// What decides what clients do [default: another each time]
    #[arg(long, value_name = "[VERSION:]N", value_parser = seed::parse)]
    seed: Option<u64>,
    /// How many replicas
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    replicas: u8,
    /// How many agents
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=20))]
    agents: u8,
    /// How many clients
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Where to write all samples as soak.json; it is tried before anything starts
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// The binary to drive [default: palisade beside this program]
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// Keep the cluster's directory at the end: data and log of every process. It is kept anyway unless the soak
    /// passed; after Ctrl-C it never is
    #[arg(long)]
    keep: bool,
}

impl Soak {
    pub(crate) fn run(self) -> u8 {
        if !can_report(self.report.as_deref()) || !can_drive(self.bin.as_deref()) {
            return USAGE;
        }
        // For the networks: without them each connection is looked up in the system's tables.
        if let Some(status) = enclosure::enter() {
            return status;
        }
        let options = Options {
            minutes: self.minutes,
            seed: self.seed.unwrap_or_else(seed::another),
            replicas: self.replicas.into(),
            agents: self.agents.into(),
            clients: self.clients,
            bin: self.bin,
            keep: self.keep,
        };
        let seed = seed::written(options.seed);
        eprintln!("seed {seed}: {} min; {}", options.minutes, stated().trim_end());
        block_on(async {
            let soaked = run(&options).await?;
            print!("{}", soaked.summary());
            if let Some(dir) = &self.report {
                let text = serde_json::to_vec_pretty(&soaked).context("cannot encode")?;
                std::fs::write(dir.join("soak.json"), text).context("cannot write soak.json")?;
            }
            Ok(soaked.exit())
        })
    }
}
