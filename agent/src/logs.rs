//! Serving logs: each request is a task that reads on as fast as the session takes it.

use std::{collections::BTreeMap, time::Duration};

use palisade_proto::agent::{LogChunk, LogRequest, Up, up};
use tokio::sync::{mpsc, oneshot};

use crate::{
    driver::{Problem, log},
    edge::blocking,
    engine::Drivers,
    port::Rt,
};

/// How often a log is looked at for something new.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// So many at a time; more are refused.
const REQUESTS_MAX: usize = 64;

/// The log requests of one session; dropping it ends them.
pub(crate) struct LogServer {
    rt: Rt,
    drivers: Drivers,
    bulk: mpsc::Sender<Up>,
    open: BTreeMap<u64, oneshot::Sender<()>>,
}

impl LogServer {
    pub(crate) fn new(rt: Rt, drivers: Drivers, bulk: mpsc::Sender<Up>) -> Self {
        Self { rt, drivers, bulk, open: BTreeMap::new() }
    }

    /// Begins to answer a request.
    pub(crate) fn request(&mut self, request: LogRequest) {
        self.open.retain(|_, cancel| !cancel.is_closed());
        let id = request.request_id;
        if self.open.len() >= REQUESTS_MAX {
            let why = format!("this node already serves {REQUESTS_MAX} log requests");
            // Full means that the session has enough to do; the asker has its own time limit.
            let _ = self.bulk.try_send(chunk(id, Vec::new(), false, Some(why)));
            return;
        }
        let (cancel, cancelled) = oneshot::channel();
        self.open.insert(id, cancel);
        let serve = Serve { rt: self.rt.clone(), bulk: self.bulk.clone(), id };
        let drivers = self.drivers.clone();
        let task = async move {
            let work = async {
                let result = serve.run(&drivers, &request).await;
                serve.send(Vec::new(), false, Some(result.err().unwrap_or_default())).await;
            };
            // Ends when it is done, or when it is cancelled or the session is over.
            futures::future::select(std::pin::pin!(work), cancelled).await;
        };
        self.rt.spawn("serve a log", Box::pin(task));
    }

    /// Ends a request.
    pub(crate) fn cancel(&mut self, request_id: u64) {
        self.open.remove(&request_id);
    }
}

fn chunk(request_id: u64, data: Vec<u8>, stderr: bool, end: Option<String>) -> Up {
    let eof = end.is_some();
    let error = end.unwrap_or_default();
    Up { msg: Some(up::Msg::LogChunk(LogChunk { request_id, data, stderr, eof, error })) }
}

struct Serve {
    rt: Rt,
    bulk: mpsc::Sender<Up>,
    id: u64,
}

impl Serve {
    /// Waits while the session is busy: that is the flow control. `false` when it is over.
    async fn send(&self, data: Vec<u8>, stderr: bool, end: Option<String>) -> bool {
        self.bulk.send(chunk(self.id, data, stderr, end)).await.is_ok()
    }

    async fn run(&self, drivers: &Drivers, request: &LogRequest) -> Result<(), String> {
        let mut reader = open(drivers, request).await.map_err(|problem| problem.message)?;
        loop {
            let (back, next) = blocking(move || {
                let next = reader.next_chunk();
                (reader, next)
            })
            .await
            .map_err(|error| error.to_string())?;
            reader = back;
            match next.map_err(|error| format!("cannot read the log: {error}"))? {
                log::Next::Chunk(found) => {
                    if !self.send(found.data, found.stderr, None).await {
                        return Ok(());
                    }
                }
                log::Next::UpToDate if request.follow => self.rt.sleep(LOOK_EVERY).await,
                log::Next::UpToDate | log::Next::Gone => return Ok(()),
            }
        }
    }
}

async fn open(drivers: &Drivers, request: &LogRequest) -> Result<log::Reader, Problem> {
    let mut last = Problem::new("INSTANCE_UNKNOWN", "this node has no driver");
    for driver in drivers.values() {
        let driver = driver.clone();
        let (id, tail) = (request.instance_id.clone(), request.tail_lines);
        let opened = blocking(move || driver.logs(&id, tail))
            .await
            .map_err(|error| Problem::new("IO_ERROR", error.to_string()))?;
        match opened {
            Ok(reader) => return Ok(reader),
            Err(problem) => last = problem,
        }
    }
    Err(last)
}
