//! Many rows, as fast as they can be written; and clients that write the same rows again and again.

use anyhow::{Context as _, Result, anyhow};
use futures::future::try_join_all;

use super::{
    client::{Client, Failure},
    cluster::Cluster,
    load::{self, Keys, Steps, sized_value},
};
use crate::clock;

const WRITERS: usize = 16;
const TRIES_MAX: u32 = 20;

/// Rows to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    pub(super) rows: u64,
    pub(super) value_bytes: usize,
    /// Rows of one transaction.
    pub(super) together: u64,
}

/// Writes them all, from 16 writers.
pub(super) async fn fill(cluster: &Cluster, prefix: &str, fill: Fill) -> Result<()> {
    let (leader, _) = cluster.until_settled().await?;
    let connections = load::connect(cluster, leader, WRITERS).await?;
    let tasks = connections.into_iter().enumerate().map(|(number, client)| {
        let keys = Keys::new(prefix, number);
        let share = share(fill.rows, number);
        clock::spawn(one(client, keys, share, fill))
    });
    let done = try_join_all(tasks).await.context("a writer broke")?;
    done.into_iter().collect()
}

/// How many of the rows one writer has.
fn share(rows: u64, writer: usize) -> u64 {
    let writers = WRITERS as u64;
    rows / writers + u64::from((writer as u64) < rows % writers)
}

async fn one(mut client: Client, keys: Keys, rows: u64, fill: Fill) -> Result<()> {
    let mut next = 0;
    let mut tries = 0;
    while next < rows {
        let end = rows.min(next + fill.together);
        let some = (next..end)
            .map(|number| (keys.key(number), sized_value(number, fill.value_bytes)))
            .collect();
        match client.put_all(some).await {
            Ok(_) => (next, tries) = (end, 0),
            Err(failure) if tries == TRIES_MAX => {
                return Err(anyhow!("{failure}")).context("cannot fill");
            }
            Err(_) => {
                tries += 1;
                clock::sleep_ms(100).await;
            }
        }
    }
    Ok(())
}

/// One write a call, to rows that are there already.
pub(super) struct Overwrites {
    pub(super) keys: Keys,
    pub(super) rows: u64,
    pub(super) value_bytes: usize,
    pub(super) next: u64,
}

impl Steps for Overwrites {
    async fn step(&mut self, client: &mut Client) -> Result<u64, Failure> {
        self.next += 1;
        let key = self.keys.key(self.next % self.rows);
        client.put((key, sized_value(self.next, self.value_bytes))).await?;
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writers_shares_are_all_rows() {
        for rows in [0, 1, 15, 16, 17, 1_000_000] {
            assert_eq!((0..WRITERS).map(|writer| share(rows, writer)).sum::<u64>(), rows);
        }
    }
}
