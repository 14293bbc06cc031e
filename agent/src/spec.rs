//! The NodeSpec that the agent converges to: which one it takes, and how it keeps it.
//!
//! # Invariants
//! - `I4` A spec under a fence below the highest one accepted is never taken.
//! - `SPEC-1` What is on disk is whole: its checksum is compared before anything is done with it.

use std::{collections::BTreeSet, io, path::PathBuf};

use futures::future::BoxFuture;
use palisade_proto::agent::{InstanceSpec, NodeSpec};
use palisade_state::planted::{self, Defect};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::{
    driver::{Problem, id_is_sound},
    durable,
    edge::blocking,
    fence::Fence,
};

const MAGIC: &[u8; 8] = b"PALSPEC1";
const HEADER_BYTES: usize = 8 + 32;

/// What is to be done with a spec that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Store it, then act on it.
    New,
    /// It is the one that the agent has.
    Same,
}

/// Decides about a spec; the error is a refusal with its code.
///
/// # Errors
/// `FENCED` for one from the past, `INVALID_SPEC` for one that cannot be.
pub fn judge(held: Option<&NodeSpec>, new: &NodeSpec) -> Result<Verdict, Problem> {
    if let Some(held) = held
        && !planted::is(Defect::AgentFenceUnchecked)
    {
        let (have, got) = (Fence::of(held.fence.as_ref()), Fence::of(new.fence.as_ref()));
        if got < have {
            return Err(Problem::new(
                "FENCED",
                format!("its fence {got} is below {have}, under which this node has acted"),
            ));
        }
        if got == have && new.generation < held.generation {
            return Err(Problem::new(
                "FENCED",
                format!(
                    "its generation {} is below {}, which this node has under the same fence {have}",
                    new.generation, held.generation
                ),
            ));
        }
        if got == have && new.generation == held.generation {
            if held == new {
                return Ok(Verdict::Same);
            }
            return Err(Problem::new(
                "INVALID_SPEC",
                format!(
                    "generation {} under fence {have} was accepted before with other content",
                    new.generation
                ),
            ));
        }
    }
    sound(new)?;
    Ok(Verdict::New)
}

fn sound(spec: &NodeSpec) -> Result<(), Problem> {
    let mut ids = BTreeSet::new();
    for instance in &spec.instances {
        if !id_is_sound(&instance.id) {
            return Err(Problem::new(
                "INVALID_SPEC",
                format!("`{}` cannot be an instance id", instance.id.escape_default()),
            ));
        }
        if !ids.insert(&instance.id) {
            return Err(Problem::new(
                "INVALID_SPEC",
                format!("the instance `{}` is there twice", instance.id),
            ));
        }
    }
    Ok(())
}

/// The spec of one instance.
#[must_use]
pub fn instance<'a>(spec: &'a NodeSpec, id: &str) -> Option<&'a InstanceSpec> {
    spec.instances.iter().find(|instance| instance.id == id)
}

/// Why the stored spec could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The disk refused.
    #[error("cannot use {}: check the disk", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is not what was written.
    #[error(
        "{} is damaged ({reason}), and with it the highest fence that this node has acted under; instances go on running, but the agent does not act on a guess: if no other copy of this node's work can exist, move the file away and start the agent again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// In which way.
        reason: String,
    },
}

/// Where the last accepted spec is kept. When `save` has answered, it is durable.
pub trait SpecStore: Send + Sync + 'static {
    /// The last one saved.
    fn load(&self) -> BoxFuture<'static, Result<Option<NodeSpec>, SpecError>>;
    /// Keeps it durably.
    fn save(&self, spec: &NodeSpec) -> BoxFuture<'static, Result<(), SpecError>>;
}

/// A file with a checksum.
#[derive(Clone, Debug)]
pub struct FileSpecStore {
    path: PathBuf,
}

impl FileSpecStore {
    /// Kept at `path`.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Reads it now.
    ///
    /// # Errors
    /// See [`SpecError`].
    pub fn read(&self) -> Result<Option<NodeSpec>, SpecError> {
        let bytes = durable::read(&self.path)
            .map_err(|source| SpecError::Io { path: self.path.clone(), source })?;
        let Some(bytes) = bytes else { return Ok(None) };
        let damaged = |reason: String| SpecError::Damaged { path: self.path.clone(), reason };
        let (Some(magic), Some(sum), Some(body)) =
            (bytes.get(..8), bytes.get(8..HEADER_BYTES), bytes.get(HEADER_BYTES..))
        else {
            return Err(damaged(format!("only {} bytes are left of it", bytes.len())));
        };
        if magic != MAGIC {
            return Err(damaged("it does not begin as one".to_owned()));
        }
        if Sha256::digest(body).as_slice() != sum {
            return Err(damaged("its checksum is wrong".to_owned()));
        }
        NodeSpec::decode(body).map(Some).map_err(|error| damaged(error.to_string()))
    }
}

impl SpecStore for FileSpecStore {
    fn load(&self) -> BoxFuture<'static, Result<Option<NodeSpec>, SpecError>> {
        let this = self.clone();
        Box::pin(async move {
            let path = this.path.clone();
            blocking(move || this.read()).await.map_err(|source| SpecError::Io { path, source })?
        })
    }

    fn save(&self, spec: &NodeSpec) -> BoxFuture<'static, Result<(), SpecError>> {
        let body = spec.encode_to_vec();
        let path = self.path.clone();
        Box::pin(async move {
            let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
            bytes.extend_from_slice(MAGIC);
            bytes.extend_from_slice(&Sha256::digest(&body));
            bytes.extend_from_slice(&body);
            let file = path.clone();
            // The environment of workloads is in it.
            blocking(move || durable::write(&file, &bytes, 0o600))
                .await
                .and_then(|result| result)
                .map_err(|source| SpecError::Io { path, source })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(fence: (u64, u64, u64), generation: u64) -> NodeSpec {
        let fence = Fence { epoch: fence.0, term: fence.1, index: fence.2 };
        NodeSpec { generation, fence: Some(fence.to_wire()), ..NodeSpec::default() }
    }

    #[test]
    fn a_lower_fence_is_refused_whatever_its_generation() {
        let held = spec((1, 5, 10), 3);
        for past in [(1, 5, 9), (1, 4, 99), (0, 99, 99)] {
            assert_eq!(judge(Some(&held), &spec(past, 100)).unwrap_err().code, "FENCED");
        }
    }

    #[test]
    fn a_lower_generation_under_the_same_fence_is_refused() {
        let held = spec((1, 5, 10), 3);
        assert_eq!(judge(Some(&held), &spec((1, 5, 10), 2)).unwrap_err().code, "FENCED");
        assert_eq!(judge(Some(&held), &spec((1, 5, 10), 4)).unwrap(), Verdict::New);
    }

    #[test]
    fn a_higher_fence_wins_with_any_generation() {
        assert_eq!(judge(Some(&spec((1, 5, 10), 9)), &spec((2, 1, 1), 1)).unwrap(), Verdict::New);
    }

    #[test]
    fn the_same_spec_again_changes_nothing_and_other_content_is_refused() {
        let held = spec((1, 5, 10), 3);
        assert_eq!(judge(Some(&held), &held).unwrap(), Verdict::Same);
        let other = NodeSpec { hash: vec![1], ..held.clone() };
        assert_eq!(judge(Some(&held), &other).unwrap_err().code, "INVALID_SPEC");
    }

    #[test]
    fn ids_that_leave_the_directory_are_refused() {
        for id in ["", "..", "../x", "a/b", ".hidden", "-x", "a\n"] {
            let instance = InstanceSpec { id: id.to_owned(), ..InstanceSpec::default() };
            let bad = NodeSpec { instances: vec![instance], ..spec((0, 1, 1), 1) };
            assert_eq!(judge(None, &bad).unwrap_err().code, "INVALID_SPEC", "{id:?}");
        }
    }

    #[tokio::test]
    async fn a_flipped_bit_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spec");
        let store = FileSpecStore::new(path.clone());
        assert!(store.load().await.unwrap().is_none());
        store.save(&spec((1, 2, 3), 4)).await.unwrap();
        assert_eq!(store.load().await.unwrap(), Some(spec((1, 2, 3), 4)));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(store.load().await, Err(SpecError::Damaged { .. })));
        std::fs::write(&path, &bytes[..5]).unwrap();
        assert!(matches!(store.load().await, Err(SpecError::Damaged { .. })));
    }
}
