//! `palisade serve`: a replica.

use std::path::PathBuf;

use crate::output::Outcome;

/// Flags of `serve`.
#[derive(Debug, clap::Args)]
pub struct Serve {
    /// The replica's directory, as `palisade init` made it
    #[arg(long, value_name = "DIR", default_value = "/var/lib/palisade")]
    dir: PathBuf,
    /// Where this replica is reached now, if the cluster is to note that
    #[arg(long, value_name = "HOST:PEERPORT,APIPORT", value_parser = crate::join::advertised)]
    advertise: Option<crate::init::NewReplica>,
    /// End when standard input does; for whoever runs it as a child
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

impl Serve {
    pub(super) fn run(self, builder: crate::builder::Builder) -> Outcome {
        crate::log::start();
        let runtime = super::large_runtime()?;
        let stop = crate::edge::stop(self.stop_with_stdin);
        let options =
            crate::serve::ServeOptions { dir: self.dir, builder, advertise: self.advertise };
        let result = runtime.block_on(crate::serve::run(options, stop));
        // What still blocks a thread must not hold the process.
        runtime.shutdown_background();
        result
    }
}
