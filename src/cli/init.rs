//! `palisade init`.

use std::path::PathBuf;

use serde_json::json;

use super::Global;
use crate::{
    context_file::Contexts,
    init::{HEARTBEAT_MS, InitOptions, NODE_LOST_MS, NewReplica, init},
    output::{self, Exit, Failure, Format, Outcome},
};

/// Flags of `init`.
#[derive(Debug, clap::Args)]
pub struct Init {
    /// Where the replicas' directories are made; must be empty
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A replica; give one, three or five
    #[arg(long = "replica", required = true, value_name = "ID=HOST:PEERPORT,APIPORT", value_parser = NewReplica::parse)]
    replicas: Vec<NewReplica>,
    /// The name of the context to make
    #[arg(long = "as", value_name = "NAME", default_value = "default")]
    name: String,
    /// Replace a context of that name
    #[arg(long)]
    replace_context: bool,
}

impl Init {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let path = global.overrides().path()?;
        // Looked at first: without a place for its token the cluster would have no way in.
        let mut contexts = Contexts::load(&path)?;
        if contexts.get(&self.name).is_some() && !self.replace_context {
            return Err(Failure::new(
                Exit::Conflict,
                format!("there is a context {:?} in {} already", self.name, path.display()),
            )
            .hint("give another --as NAME, or --replace-context"));
        }
        let options = InitOptions {
            dir: self.dir,
            replicas: self.replicas,
            context: self.name.clone(),
            heartbeat_ms: HEARTBEAT_MS,
            node_lost_ms: NODE_LOST_MS,
        };
        let made = init(&options)?;
        let other = contexts.put_new(made.context);
        if let Err(error) = contexts.save(&path) {
            // Their only token would be lost. Best effort: what stays is named by the next try.
            for dir in &made.replicas {
                let _ = std::fs::remove_dir_all(dir);
            }
            return Err(error.into());
        }
        let dirs: Vec<String> = made.replicas.iter().map(|dir| dir.display().to_string()).collect();
        if matches!(global.output, Format::Json | Format::Yaml) {
            let value = json!({
                "cluster": made.cluster, "lineage": made.lineage, "pin": made.pin,
                "context": self.name, "replicas": dirs,
            });
            return output::data(output::render_value(global.output, &value)?.as_bytes());
        }
        output::say(format!("cluster {} with pin {}", made.cluster, made.pin));
        output::say(format!(
            "its first admin is the context {:?} in {}",
            self.name,
            path.display()
        ));
        other.into_iter().for_each(output::say);
        output::say(
            "each replica's pki/backup.key opens this cluster's backups and nothing else does: keep a copy of it safe, \
             apart from them",
        );
        output::say("copy each directory to its machine (keep the modes) and run there:");
        let lines: String =
            dirs.iter().map(|dir| format!("palisade serve --dir {dir}\n")).collect();
        output::data(lines.as_bytes())
    }
}
