//! Many watches over one stream: a connection carries their messages together, and not a frame of its own for each.

use std::{
    collections::BTreeMap,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{
    FutureExt, Stream, StreamExt,
    stream::{self, AbortHandle, BoxStream, SelectAll},
};

use super::Service;
use crate::{peer::wire, refusal::Refusal};

/// What the watch under an id has to say: a message as it is on the wire, or why there is no watch.
pub(crate) struct Told {
    pub(crate) id: u64,
    pub(crate) what: Result<Bytes, Refusal>,
}

/// See the module.
pub(crate) struct ManyWatches {
    store: Service,
    /// `None` once there will be no more.
    requests: Option<BoxStream<'static, wire::WatchManyRequest>>,
    open: BTreeMap<u64, AbortHandle>,
    /// `None` for a watch that ended because the replica stops.
    messages: SelectAll<BoxStream<'static, Option<Told>>>,
}

impl ManyWatches {
    pub(crate) fn new(
        store: Service,
        requests: BoxStream<'static, wire::WatchManyRequest>,
    ) -> Self {
        let (open, messages) = (BTreeMap::new(), SelectAll::new());
        Self { store, requests: Some(requests), open, messages }
    }

    fn take(&mut self, request: wire::WatchManyRequest) -> Result<(), Refusal> {
        let id = request.id;
        let Some(watch) = request.watch else {
            if let Some(handle) = self.open.remove(&id) {
                handle.abort();
            }
            return Ok(());
        };
        if self.open.contains_key(&id) {
            return Err(Refusal::Invalid(format!("a watch is open under the id {id}")));
        }
        let watcher = self.store.watch(watch)?;
        let told = watcher.map(move |message| Some(Told { id, what: Ok(message) }));
        let ended = stream::once(std::future::ready(None));
        let (told, handle) = stream::abortable(told.chain(ended));
        self.open.insert(id, handle);
        self.messages.push(told.boxed());
        Ok(())
    }

    /// Takes the next request; false when none waits.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Option<Told>> {
        while let Some(requests) = &mut self.requests {
            match requests.next().poll_unpin(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => self.requests = None,
                Poll::Ready(Some(request)) => {
                    let id = request.id;
                    if let Err(refusal) = self.take(request) {
                        return Poll::Ready(Some(Told { id, what: Err(refusal) }));
                    }
                }
            }
        }
        Poll::Ready(None)
    }
}

impl Stream for ManyWatches {
    type Item = Told;

    /// Ends when the caller asks for no more and has ended all of them, or when the replica stops.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Told>> {
        let is_over = match self.poll_request(cx) {
            Poll::Ready(Some(refused)) => return Poll::Ready(Some(refused)),
            Poll::Ready(None) => true,
            Poll::Pending => false,
        };
        match self.messages.poll_next_unpin(cx) {
            Poll::Ready(Some(told)) => Poll::Ready(told),
            Poll::Ready(None) if is_over => Poll::Ready(None),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
