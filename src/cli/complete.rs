//! `palisade completion`.

use clap_complete::Shell;

use crate::output::{self, Outcome};

/// Flags of `completion`.
#[derive(Debug, clap::Args)]
pub struct Completion {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completion {
    pub(super) fn run(self) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::command(), "palisade", &mut script);
        output::data(&script)
    }
}
