//! Carries the bytes of one connection, each way by itself.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
};

use futures::future::{Either, join, select};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
};

use super::{Connection, LOOK_MS, Net, Rule};
use crate::{clock, random::Random};

const PIECE: usize = 16 << 10;
const PIECES: usize = 256;
/// So long a connection that was cut off is still read.
const DRAIN: std::time::Duration = std::time::Duration::from_millis(30);

/// Bytes, and when they may arrive, in microseconds of the connection's clock.
type Piece = (u64, Vec<u8>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From the side that connected.
    There,
    Back,
}

struct Carrier<'a> {
    net: &'a Net,
    connection: &'a Connection,
    way: Way,
    clock: clock::Clock,
    number: u64,
}

/// Carries both ways until the connection ends.
pub(super) async fn both(
    net: &Arc<Net>,
    connection: &Arc<Connection>,
    client: TcpStream,
    server: TcpStream,
    number: u64,
) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let clock = clock::Clock::start();
    let carrier = |way| Carrier { net, connection, way, clock, number };
    let (there, back) = (carrier(Way::There), carrier(Way::Back));
    let carried = join(there.run(from_client, to_server), back.run(from_server, to_client));
    let over = async {
        loop {
            let changed = connection.changed.notified();
            if connection.over.load(Ordering::SeqCst) {
                return;
            }
            changed.await;
        }
    };
    select(pin!(carried), pin!(over)).await;
}

impl Carrier<'_> {
    fn rule(&self) -> Rule {
        match (self.connection.pair, self.way) {
            (Some(pair), Way::There) => self.net.rule(pair),
            (Some((from, to)), Way::Back) => self.net.rule((to, from)),
            (None, _) => Rule::default(),
        }
    }

    fn is_cut_off(&self) -> bool {
        self.connection.cut_off.load(Ordering::SeqCst)
    }

    fn is_held(&self) -> bool {
        let held = self.way == Way::There && self.connection.held.load(Ordering::SeqCst);
        held || self.rule().cut
    }

    async fn until_open(&self) {
        while self.is_held() {
            clock::sleep_ms(LOOK_MS).await;
        }
    }

    async fn run(&self, from: OwnedReadHalf, to: OwnedWriteHalf) {
        let (send, receive) = mpsc::channel(PIECES);
        join(self.read(from, send), self.write(to, receive)).await;
    }

    async fn read(&self, mut from: OwnedReadHalf, send: mpsc::Sender<Piece>) {
        let mut random = Random::part(self.number, if self.way == Way::There { "t" } else { "b" });
        let mut latest = 0;
        loop {
            let mut bytes = vec![0; PIECE];
            let changed = self.connection.changed.notified();
            let read = if self.way == Way::There && self.is_cut_off() {
                // What has come by now is on its way.
                clock::within(DRAIN, from.read(&mut bytes)).await.unwrap_or(Ok(0))
            } else {
                match select(pin!(from.read(&mut bytes)), pin!(changed)).await {
                    Either::Left((read, _)) => read,
                    Either::Right(_) => continue,
                }
            };
            match read {
                Ok(0) | Err(_) => return,
                Ok(length) => bytes.truncate(length),
            }
            let Rule { delay, jitter, .. } = self.rule();
            latest = (self.clock.micros() + delay + random.below(jitter + 1)).max(latest);
            if send.send((latest, bytes)).await.is_err() {
                return;
            }
        }
    }

    async fn write(&self, to: OwnedWriteHalf, mut receive: mpsc::Receiver<Piece>) {
        let mut to = Some(to);
        loop {
            let changed = self.connection.changed.notified();
            if self.way == Way::Back && self.is_cut_off() {
                to = None;
            }
            let piece = match select(pin!(receive.recv()), pin!(changed)).await {
                Either::Left((piece, _)) => piece,
                Either::Right(_) => continue,
            };
            let Some((due, bytes)) = piece else { break };
            let wait = due.saturating_sub(self.clock.micros());
            if wait > 0 {
                clock::sleep(std::time::Duration::from_micros(wait)).await;
            }
            self.until_open().await;
            if let Some(to) = &mut to
                && to.write_all(&bytes).await.is_err()
            {
                return;
            }
        }
        // That it ends is news that travels as well.
        self.until_open().await;
        if let Some(to) = &mut to {
            let _ = to.shutdown().await;
        }
    }
}
