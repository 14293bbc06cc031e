//! A snapshot on its way to a peer.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream, stream::BoxStream};

use crate::{
    fault::chain,
    peer::{PeerError, wire},
    snapshot_file::SnapshotReader,
    snapshots::SnapshotStore,
};

const SNAPSHOT_CHUNK_BYTES: usize = 1024 * 1024;

/// A snapshot file from `from` on in chunks, read off the runtime.
pub(super) fn chunks(
    store: Arc<SnapshotStore>,
    reader: SnapshotReader,
    head: wire::SnapshotHead,
    from: u64,
) -> BoxStream<'static, Result<wire::SnapshotChunk, PeerError>> {
    let start = (store, Arc::new(reader), from, Some(head));
    stream::unfold(Some(start), |state| {
        async move {
            let (store, reader, offset, head) = state?;
            let from = reader.clone();
            let work = move || from.raw(offset, SNAPSHOT_CHUNK_BYTES);
            let read = store.disk.run("snapshot-send", work).await;
            let data: Bytes = match read {
                Ok(Ok(data)) => data,
                Ok(Err(error)) => return Some((Err(PeerError::Failed(chain(&error))), None)),
                Err(error) => return Some((Err(PeerError::Failed(chain(&error))), None)),
            };
            // The first one goes out even when the peer has everything.
            if data.is_empty() && head.is_none() {
                return None;
            }
            let next = offset + data.len() as u64;
            let crc = crc32fast::hash(&data);
            let chunk = wire::SnapshotChunk { head, offset, data, crc };
            Some((Ok(chunk), Some((store, reader, next, None))))
        }
        .boxed()
    })
    .boxed()
}
