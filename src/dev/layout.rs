//! What is where in a directory of `dev`.
//!
//! ```text
//! dev.json        that it is one, and its ports; written once, last
//! dev.lock        held by the supervisor
//! context.toml    the way in (0600)
//! replica-1 …     replicas' directories
//! agent-1 …       agents' directories
//! logs/           what the children say
//! run/            who runs now, and how far the start is
//! ```

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{AGENTS, REPLICAS, ports::Block};
use crate::output::{Exit, Failure, Outcome, human};

const FORMAT: u32 = 1;
/// Where `dev` keeps everything when no flag says so.
pub const DEFAULT_DIR: &str = ".palisade-dev";

/// `dev.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub format: u32,
    pub ports: Block,
}

impl Record {
    pub fn new(ports: Block) -> Self {
        Self { format: FORMAT, ports }
    }
}

/// A directory of `dev`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The directory at `root`, made absolute.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: std::path::absolute(root).unwrap_or_else(|_| root.to_owned()) }
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A command of `dev` for this directory, ready to be pasted.
    #[must_use]
    pub fn command(&self, verb: &str) -> String {
        let usual = std::path::absolute(DEFAULT_DIR).is_ok_and(|usual| usual == self.root);
        let place =
            if usual { String::new() } else { format!(" --dir {}", human::shell(&self.root)) };
        let verb = if verb.is_empty() { String::new() } else { format!(" {verb}") };
        format!("palisade dev{verb}{place}")
    }

    /// `replica-<id>`.
    #[must_use]
    pub fn replica(&self, id: u64) -> PathBuf {
        self.root.join(format!("replica-{id}"))
    }

    /// `agent-<id>`.
    #[must_use]
    pub fn agent(&self, id: u64) -> PathBuf {
        self.root.join(format!("agent-{id}"))
    }

    /// The context that leads to its cluster.
    #[must_use]
    pub fn context(&self) -> PathBuf {
        self.root.join("context.toml")
    }

    /// What a child says.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.log"))
    }

    pub(super) fn pid_file(&self, name: &str) -> PathBuf {
        self.root.join("run").join(format!("{name}.json"))
    }

    pub(super) fn state(&self) -> PathBuf {
        self.root.join("run/state.json")
    }

    pub(super) fn keep_instances(&self) -> PathBuf {
        self.root.join("run/keep-instances")
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.root.join("dev.lock")
    }

    pub(super) fn staging(&self) -> PathBuf {
        self.root.join("new")
    }

    fn marker(&self) -> PathBuf {
        self.root.join("dev.json")
    }

    /// Makes the directory if needed; refuses one that holds something else (`DEV-3`).
    pub(super) fn claim(&self) -> Outcome {
        let failed = |error: io::Error| {
            Failure::caused(format!("cannot use {}", self.root.display()), &error)
        };
        let foreign = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(failed(error)),
            Ok(entries) => {
                let mut names = Vec::new();
                for entry in entries {
                    names.push(entry.map_err(failed)?.file_name());
                }
                let ours = |name: &str| names.iter().any(|other| other == name);
                // What `claim` itself makes is no sign of anybody else: the process that detaches
                // claims first, and the supervisor once more.
                let others = names.iter().any(|name| name != "logs" && name != "run");
                others && !ours("dev.json") && !ours("dev.lock")
            }
        };
        if foreign {
            return Err(Failure::new(
                Exit::Conflict,
                format!("{} holds something that is not of `palisade dev`", self.root.display()),
            )
            .hint("give another --dir; nothing was changed"));
        }
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        // Passable, not readable: an instance may run as another user, whose way to its own directory
        // leads through here.
        builder.mode(0o711).create(&self.root).map_err(failed)?;
        builder.mode(0o700);
        for name in ["logs", "run"] {
            builder.create(self.root.join(name)).map_err(failed)?;
        }
        Ok(())
    }

    /// Whether it is recognisably a directory of `dev`.
    pub(super) fn is_ours(&self) -> bool {
        self.marker().exists() || self.lock().exists()
    }

    /// What was written at the first start, if that came to its end.
    pub(super) fn record(&self) -> Outcome<Option<Record>> {
        let path = self.marker();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Failure::caused(format!("cannot read {}", path.display()), &error));
            }
        };
        let record: Record = serde_json::from_str(&text).map_err(|error| {
            Failure::caused(format!("{} is damaged", path.display()), &error)
                .hint(format!("`{}` starts over", self.command("--fresh")))
        })?;
        if record.format > FORMAT {
            return Err(Failure::usage(format!(
                "{} was written by a newer release",
                path.display()
            )));
        }
        Ok(Some(record))
    }

    pub(super) fn write_record(&self, record: &Record) -> Outcome {
        let path = self.marker();
        let text = serde_json::to_string_pretty(record)
            .map_err(|error| Failure::caused("cannot encode dev.json", &error))?;
        replace(&path, text.as_bytes())
            .map_err(|error| Failure::caused(format!("cannot write {}", path.display()), &error))
    }

    /// Removes the cluster. The lock stays, and so does what is not ours.
    pub(super) fn wipe(&self) -> Outcome {
        let mut paths = vec![self.marker(), self.context(), self.staging()];
        paths.extend((1..=REPLICAS).map(|id| self.replica(id)));
        paths.extend((1..=AGENTS).map(|id| self.agent(id)));
        for path in paths {
            let removed =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::caused(
                        format!("cannot remove {}", path.display()),
                        &error,
                    ));
                }
                _ => {}
            }
        }
        for dir in ["logs", "run"] {
            for entry in fs::read_dir(self.root.join(dir)).into_iter().flatten().flatten() {
                // The supervisor's own log is open: it says what happens now.
                if entry.path() != self.log("supervisor") {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        Ok(())
    }
}

/// Writes a file whole or not at all.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let temporary = PathBuf::from(name);
    fs::write(&temporary, bytes)?;
    fs::rename(temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_directory_can_be_claimed_twice() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        layout.claim().unwrap();
        layout.claim().unwrap();
        assert!(!layout.is_ours(), "a claim alone leaves no mark");
    }

    #[test]
    fn a_command_can_be_pasted() {
        let layout = Layout::new(Path::new("/a b/dev"));
        assert_eq!(layout.command("stop"), "palisade dev stop --dir '/a b/dev'");
        assert_eq!(Layout::new(Path::new(DEFAULT_DIR)).command(""), "palisade dev");
    }

    #[test]
    fn somebody_elses_directory_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        let error = Layout::new(dir.path()).claim().unwrap_err();
        assert_eq!(error.exit, Exit::Conflict);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn wiping_takes_only_what_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(&dir.path().join("dev"));
        layout.claim().unwrap();
        layout.write_record(&Record::new(Block::at(0))).unwrap();
        fs::create_dir(layout.replica(1)).unwrap();
        fs::write(layout.root().join("notes"), "mine").unwrap();
        layout.claim().unwrap();
        assert!(layout.is_ours() && layout.record().unwrap().is_some());
        layout.wipe().unwrap();
        assert!(!layout.replica(1).exists() && layout.root().join("notes").exists());
        assert_eq!(layout.record().unwrap(), None);
    }
}
