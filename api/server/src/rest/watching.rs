//! `?watch=true` on a list.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method as HttpMethod, Response};
use http_body::Body as HttpBody;
use palisade_contract::{Error, Problem, ports::Credential};
use serde_json::Value;

use super::{Body, Incoming, Refusal, Rest, full, request, sse};
use crate::{
    envelope::{Authenticated, Route},
    watch::{self, Watching},
};

/// Who asks for which list.
pub(super) struct Asked {
    pub(super) route: Arc<Route>,
    pub(super) parameters: Vec<(String, String)>,
    pub(super) credential: Credential,
    pub(super) who: Authenticated,
    pub(super) last_event_id: Option<String>,
}

fn refused(field: &str, message: &str) -> Refusal {
    let problem = Problem { pointer: format!("/{field}"), message: message.to_owned() };
    Error::invalid(vec![problem]).into()
}

impl Rest {
    pub(super) async fn watch<B>(
        &self,
        incoming: &Incoming<'_>,
        asked: Asked,
        query: request::Query,
        body: B,
    ) -> Result<Response<Body>, Refusal>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin,
        B::Error: std::fmt::Display,
    {
        let Asked { route, parameters, credential, who, last_event_id } = asked;
        let has = |field: &str| route.fields.contains_key(field);
        let parts = [
            ("limit", query.page.limit.is_some()),
            ("cursor", query.page.cursor.is_some()),
            ("sort", query.page.sort.is_some()),
        ];
        if let Some((field, _)) =
            parts.into_iter().find(|(field, is_given)| *is_given && !has(field))
        {
            return Err(refused(field, "a watch tells the whole list: leave it out"));
        }
        if query.dry_run {
            return Err(refused("dryRun", "a watch changes nothing: leave it out"));
        }
        if query.at.is_some() {
            return Err(refused("at", "a watch goes on from the present: leave it out"));
        }
        let consistency = query.consistency;
        let filter = query.page.filter.clone();
        let input = self.input(incoming, &route, parameters, query, body).await?;
        let Value::Object(input) = input else { return Err(Error::internal("no object").into()) };
        let watching = Watching {
            route,
            input,
            filter,
            credential,
            who,
            consistency,
            request_id: incoming.request_id.to_owned(),
            since: last_event_id,
            stopping: self.stopping.clone(),
        };
        let batches = watch::start(&self.envelope, &self.feeds, watching).await?;
        let path = incoming.parts.uri.path().to_owned();
        if incoming.parts.method == HttpMethod::HEAD {
            return Ok(Response::new(full(Bytes::new())));
        }
        let bytes = sse::bytes(batches, path, incoming.request_id.to_owned());
        self.streamed(bytes, sse::MEDIA)
    }
}
