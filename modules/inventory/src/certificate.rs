//! Keys of nodes: whose a certificate is, its renewal, and the discovery of cloned disks.

use palisade_contract::{
    Code, Context, Error, NodeId, Result,
    node::{Node, NodePhase},
};
use palisade_state::{Tx, View};
use serde_json::json;

use crate::{
    records::{CloneMark, NODES, live_node, store},
    token::is_sha256_hex,
};

/// What a renewal came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// The new key is the node's.
    Bound,
    /// It was asked for with the key before the current one, for a key that is not the current one:
    /// somebody else has renewed already. Nothing was written.
    Cloned,
}

fn unauthenticated(node: &NodeId) -> Error {
    Error::new(
        Code::Unauthenticated,
        format!("the certificate of node {node} is not accepted: the node was removed, or has newer keys"),
    )
    .hint("let the machine join again with a new token from `palisade token create`")
}

/// See [`palisade_contract::ports::Nodes::authenticate`].
pub(crate) fn authenticate(view: &View, id: &NodeId, key: &str) -> Result<Node> {
    NODES
        .get(view, &id.key())?
        .map(|found| found.value.node)
        .filter(|node| node.phase != NodePhase::Retired)
        .filter(|node| node.keys.iter().any(|known| known == key))
        .ok_or_else(|| unauthenticated(id))
}

/// Binds a new key, or says why not. A renewal that is repeated after a lost answer is the same
/// renewal as long as it is for the same key.
pub(crate) fn renew(tx: &mut Tx, id: &NodeId, old_key: &str, new_key: &str) -> Result<Renewal> {
    if !is_sha256_hex(new_key) {
        return Err(Error::new(
            Code::InvalidInput,
            "the new key must be a SHA-256 in lower-case hexadecimal",
        ));
    }
    let row = live_node(tx, id)?.ok_or_else(|| unauthenticated(id))?;
    let keys = row.node.keys.as_slice();
    let (current, previous) = (keys.first(), keys.get(1));
    if current.is_some_and(|current| current == new_key)
        && keys.iter().any(|known| known == old_key)
    {
        return Ok(Renewal::Bound);
    }
    if previous.is_some_and(|previous| previous == old_key) {
        return Ok(Renewal::Cloned);
    }
    if current.is_none_or(|current| current != old_key) {
        return Err(unauthenticated(id));
    }
    if let Some((taken, _)) = tx.by_index(&NODES, "key", new_key)?.into_iter().next() {
        return Err(Error::new(Code::Conflict, format!("the new key is bound to node {taken}"))
            .hint("renew with a key that was never used"));
    }
    let mut renewed = row.clone();
    renewed.node.keys = vec![new_key.to_owned(), old_key.to_owned()];
    store(tx, &row, &renewed)?;
    Ok(Renewal::Bound)
}

/// What the holder of the older key is told.
pub(crate) fn cloned(id: &NodeId) -> Error {
    Error::new(
        Code::InvalidState,
        format!("node {id} has renewed with a newer key than this one: two machines hold its identity"),
    )
    .hint("give the copy an identity of its own: empty its agent directory and let it join with a new token")
}

/// Notes the discovery once per key.
pub(crate) fn note_clone(tx: &mut Tx, id: &NodeId, old_key: &str) -> Result<()> {
    let Some(row) = live_node(tx, id)? else { return Ok(()) };
    let still_so = row.node.keys.get(1).is_some_and(|previous| previous == old_key);
    let known = row.clone.as_ref().is_some_and(|mark| mark.key == old_key);
    if !still_so || known {
        return Ok(());
    }
    let mut marked = row.clone();
    marked.clone = Some(CloneMark { key: old_key.to_owned(), at_ms: tx.view().clock().wall_ms });
    store(tx, &row, &marked)?;
    let node = &row.node;
    let data = json!({
        "node": id, "name": node.name, "currentKey": node.keys.first(), "presentedKey": old_key,
    });
    tx.publish("node.cloned", &node.tenant, format!("node/{id}"), &data);
    Ok(())
}

/// Notes it in a transaction of its own: the refused renewal commits nothing.
pub(crate) fn note_clone_later(cx: &Context, id: &NodeId, old_key: &str) {
    let (context, id, old_key) = (cx.clone(), id.clone(), old_key.to_owned());
    let task = async move {
        if let Err(error) = context.commit(|tx| note_clone(tx, &id, &old_key)).await {
            tracing::error!(node = %id, %error, "could not note that a node was cloned");
        }
    };
    cx.rt.spawn("note-clone", Box::pin(task));
}
