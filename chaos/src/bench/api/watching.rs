//! Deliveries over REST, as server-sent events, beside those of the store's own watches.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use futures::future::try_join_all;
use serde_json::json;

use super::Bench;
use crate::{
    bench::{
        Better,
        etcd::{
            load::{Loaded, Plan},
            report::{Goal, Line, Round},
            watch::{self, Seen, Watchers},
        },
    },
    clock,
    http::{BASE, Http, Request},
};

const LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let plan = bench.plan(bench.options.watchers);
    let http = Http::new(bench.cluster.access()?)?;
    let body = json!({"name": "watched", "actions": ["compute:nodes:read"]});
    http.ask(&Request::post(format!("{BASE}/roles"), "watched", body), LIMIT).await?;
    let mut rounds = vec![];
    for round in 0..bench.options.rounds {
        let over_rest = async |leader| deliver(&http, leader, plan, round).await;
        let ours = bench.sample("REST: deliveries of events", plan, over_rest).await?;
        let of_store = async |leader| watch::run(&bench.cluster, leader, plan).await;
        let kernel = bench.sample("kernel: deliveries of changes", plan, of_store).await?;
        let foreign = ours.foreign.max(kernel.foreign);
        rounds.push(Round { ours: ours.rate, peer: Some(kernel.rate), foreign });
    }
    let what = format!("deliveries, {} watchers of one writer", plan.clients);
    Ok(vec![Line::new(what, "1/s", &rounds, Goal::None, Better::Higher)])
}

async fn deliver(http: &Http, leader: usize, plan: Plan, round: usize) -> Result<Loaded> {
    let seen = Arc::new(Seen::default());
    let opened = (0..plan.clients).map(|_| watch_one(http, leader, seen.clone()));
    let watchers = Watchers(try_join_all(opened).await?);
    let loaded = watch::deliver(&seen, &watchers, plan, async |number| {
        let body = json!({"description": format!("{round}/{number}")});
        let key = format!("watched-{round}-{number}");
        let request = Request::patch(format!("{BASE}/roles/watched"), key, body);
        http.ask(&request, LIMIT).await.map(|_| ())
    });
    loaded.await
}

/// Opens a watch, reads what there is, and counts from then on.
async fn watch_one(
    http: &Http,
    leader: usize,
    seen: Arc<Seen>,
) -> Result<tokio::task::JoinHandle<Result<()>>> {
    let path = format!("{BASE}/roles?watch=true&filter=name%20%3D%20watched");
    let mut stream = http.watch(leader, &path).await.context("a watch was refused")?;
    let mut text = Text::default();
    while text.marks == 0 {
        let chunk = stream.chunk().await.context("a watch broke")?;
        text.add(&chunk.context("a watch ended")?)?;
    }
    Ok(clock::spawn(async move {
        let mut told = text.puts;
        while let Some(chunk) = stream.chunk().await.context("a watch broke")? {
            text.add(&chunk)?;
            seen.add(text.puts - told);
            told = text.puts;
        }
        bail!("a watch ended")
    }))
}

/// What a stream has said so far.
#[derive(Default)]
struct Text {
    line: Vec<u8>,
    puts: u64,
    marks: u64,
}

impl Text {
    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            match self.line.as_slice() {
                b"event: put" => self.puts += 1,
                b"event: mark" => self.marks += 1,
                b"event: reset" | b"event: end" => bail!("a watch was reset or ended"),
                _ => {}
            }
            self.line.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_wherever_the_stream_is_cut() {
        let said = b"retry: 1000\n\nevent: put\ndata: {\"x\":\"event: put\"}\n\nid: 1@c\nevent: mark\ndata: {}\n\n";
        for cut in 0..said.len() {
            let mut text = Text::default();
            text.add(&said[..cut]).unwrap();
            text.add(&said[cut..]).unwrap();
            assert_eq!((text.puts, text.marks), (1, 1), "{cut}");
        }
        assert!(Text::default().add(b"event: reset\n").is_err());
    }
}
