//! Making the data of a replica that begins with a state.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use palisade_state::{View, snapshot::encode};

use super::OfflineError;
use crate::{
    Identity, Member,
    disk::{Files, StdFiles},
    options::nodes,
    snapshot_file::{Head, SnapshotWriter},
    snapshots::{SnapshotsError, counts},
    types::{LogId, StoredMembership},
    wal::{Options, Position, Record, Vote, Wal},
};

/// Makes the data directory `data` of `identity`'s replica, one of `members`, so that it starts from `view`. Every
/// member is given the same view. `term` is the highest term that is known of the old life. It blocks.
///
/// # Errors
/// There is a log already, or something cannot be written.
pub fn seed(
    data: &Path,
    identity: &Identity,
    view: &View,
    term: u64,
    members: &[Member],
) -> Result<(), OfflineError> {
    let in_dir = |source| OfflineError::Dir { dir: data.to_owned(), source };
    let files: Arc<dyn Files> = Arc::new(StdFiles);
    files.create_dir_all(data).map_err(in_dir)?;
    identity.claim(data)?;
    let at = Position { term: view.applied().term, index: view.applied().index };
    write_log(&files, data, identity, at, term.max(at.term))?;
    write_snapshot(&files, data, identity, view, at, members)?;
    files.sync_dir(data).map_err(in_dir)
}

/// The log: nothing but marks.
fn write_log(
    files: &Arc<dyn Files>,
    data: &Path,
    identity: &Identity,
    at: Position,
    term: u64,
) -> Result<(), OfflineError> {
    let dir = data.join("log");
    let (mut wal, found) = Wal::open(files.clone(), &dir, identity.for_wal(), Options::default())?;
    if found.state.last.is_some() || found.state.vote.is_some() {
        return Err(OfflineError::Taken { dir: data.to_owned() });
    }
    let vote = Vote { term, node: identity.replica.0, committed: false };
    wal.append(&[Record::Purge(at), Record::Vote(vote), Record::Committed(at)])?;
    wal.settle()?;
    Ok(())
}

fn write_snapshot(
    files: &Arc<dyn Files>,
    data: &Path,
    identity: &Identity,
    view: &View,
    at: Position,
    members: &[Member],
) -> Result<(), OfflineError> {
    let voters: BTreeSet<u64> = members.iter().map(|member| member.id.0).collect();
    let membership = openraft::Membership::new(vec![voters], nodes(members))
        .map_err(|error| OfflineError::Membership(error.to_string()))?;
    let last: LogId = at.into();
    let stored = StoredMembership::new(Some(last), membership);
    let head = Head {
        cluster: identity.for_wal().cluster,
        position: at,
        membership: serde_json::to_vec(&stored)?.into(),
        counts: counts(view)?,
    };
    let mut writer = SnapshotWriter::create(files.clone(), &data.join("snapshots"), head)?;
    encode::<SnapshotsError>(view, |chunk| Ok(writer.chunk(chunk)?))?;
    writer.finish()?;
    Ok(())
}
