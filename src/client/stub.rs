//! A server in the process that answers what a test tells it, over plain HTTP.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::Value;

use super::{Address, Client};
use crate::edge;

/// What came in.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

type Reply = (u16, String);
type Replies = Arc<dyn Fn(&str) -> Reply + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Stub {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Stub {
    /// Answers these in turn, the last one for ever.
    pub fn new(replies: Vec<(u16, Value)>) -> Self {
        let queue: Mutex<VecDeque<Reply>> = Mutex::new(
            replies.into_iter().map(|(status, body)| (status, body.to_string())).collect(),
        );
        Self::answering(Arc::new(move |_| {
            let mut queue = queue.lock().unwrap();
            if queue.len() > 1 { queue.pop_front().unwrap() } else { queue[0].clone() }
        }))
    }

    /// Answers by the request's first line.
    pub fn by_line(reply: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> Self {
        Self::answering(Arc::new(move |line| {
            let (status, body) = reply(line);
            (status, body.to_string())
        }))
    }

    fn answering(replies: Replies) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(vec![]));
        let log = seen.clone();
        edge::thread(move || {
            for stream in listener.incoming().flatten() {
                let (log, replies) = (log.clone(), replies.clone());
                edge::thread(move || serve(stream, &log, &replies));
            }
        });
        Self { port, seen }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn address(&self) -> Address {
        Address::plain(self.port)
    }
}

fn serve(stream: std::net::TcpStream, log: &Mutex<Vec<Seen>>, replies: &Replies) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut headers = vec![];
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            let Some((name, value)) = header.trim().split_once(':') else { break };
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let mut seen = Seen { line: line.trim().to_owned(), headers, body: String::new() };
        let length = seen.header("content-length").map_or(0, |text| text.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        seen.body = String::from_utf8(body).unwrap();
        let line = seen.line.clone();
        log.lock().unwrap().push(seen);
        let (status, text) = replies(&line);
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nPalisade-Revision: 9\r\nX-Request-Id: req_stub\r\nContent-Length: {}\r\n\r\n",
            text.len()
        );
        if stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(text.as_bytes()))
            .is_err()
        {
            return;
        }
    }
}

/// A port of this machine on which nothing listens.
pub(crate) fn dead_address() -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Address::plain(listener.local_addr().unwrap().port())
}

/// A client of these.
pub(crate) fn client(addresses: Vec<Address>, budget: Duration) -> Client {
    Client {
        http: reqwest::Client::builder()
            .tls_backend_preconfigured(super::tls::test_config())
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .unwrap(),
        addresses,
        token: Some("pal_x_y".into()),
        budget,
        preferred: 0.into(),
    }
}
