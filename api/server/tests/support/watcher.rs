//! A reader of server-sent events.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use palisade_state::Runtime;
use serde_json::Value;

use super::{World, client};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: String,
    pub name: String,
    pub data: Value,
}

impl Event {
    /// Its name, and of which record it tells.
    pub fn short(&self) -> String {
        let of = self.data.get("id").or(self.data.get("name")).and_then(Value::as_str);
        of.map_or_else(|| self.name.clone(), |of| format!("{} {of}", self.name))
    }
}

/// A watch.
pub struct Watcher {
    response: Response<Incoming>,
    read: Vec<u8>,
}

impl Watcher {
    /// Watches `path`, which has its query, behind an event.
    pub async fn start(world: &World, token: &str, path: &str, last: Option<&str>) -> Self {
        let mut request = Request::builder()
            .uri(format!("/api/compute{path}"))
            .header("host", "palisade")
            .header("authorization", format!("Bearer {token}"));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let stream = client::connect(world, client::tls(&world.authority, None)).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        world.rt.spawn("client", Box::pin(async move { drop(connection.await) }));
        let response =
            sender.send_request(request.body(Full::new(Bytes::new())).unwrap()).await.unwrap();
        Self { response, read: vec![] }
    }

    /// The next event; none at the end.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            while let Some(end) = self.read.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = self.read.drain(..end + 2).collect();
                let text = String::from_utf8(block).unwrap();
                let field = |name: &str| {
                    let found = text.lines().find_map(|line| line.strip_prefix(name));
                    found.map(|value| value.trim_start_matches(':').trim().to_owned())
                };
                if let (Some(name), Some(data)) = (field("event:"), field("data:")) {
                    let data = serde_json::from_str(&data).unwrap();
                    return Some(Event { id: field("id:").unwrap_or_default(), name, data });
                }
            }
            let frame = self.response.frame().await?.unwrap();
            if let Ok(data) = frame.into_data() {
                self.read.extend_from_slice(&data);
            }
        }
    }

    /// What is told up to the next mark, in short, and the mark.
    pub async fn up_to_mark(&mut self) -> (Vec<String>, String) {
        let mut told = vec![];
        loop {
            let event = self.next().await.expect("it goes on");
            if event.name == "mark" {
                return (told, event.id);
            }
            told.push(event.short());
        }
    }

    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub fn media(&self) -> &str {
        self.response.headers()["content-type"].to_str().unwrap()
    }
}
