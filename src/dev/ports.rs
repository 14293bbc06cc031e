//! Which ports a directory of `dev` has: chosen once, kept for ever.
//!
//! Ports come in numbered blocks below the ephemeral range, so that no outgoing connection takes
//! one while its owner is down. The first port of a block is held (over UDP, so that nobody can
//! connect) by the supervisor as long as it lives: two of them never choose the same block, and
//! instances' ports follow from the block without being asked for.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use serde::{Deserialize, Serialize};

use super::{AGENTS, REPLICAS};
use crate::output::{Exit, Failure, Outcome};

const FIRST: u16 = 7400;
const STEP: u16 = 20;
const BLOCKS: u16 = 16;
const INSTANCES_FIRST: u16 = 20_000;
const INSTANCES_PER_AGENT: u16 = 300;

/// A block of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Block {
    block: u16,
}

impl Block {
    pub fn at(block: u16) -> Self {
        Self { block }
    }

    fn base(self) -> u16 {
        FIRST + self.block * STEP
    }

    /// The port of a replica for clients and agents.
    pub fn api(self, replica: u64) -> u16 {
        self.base() + offset(replica)
    }

    /// The port of a replica for its peers.
    pub fn peer(self, replica: u64) -> u16 {
        self.base() + STEP / 2 + offset(replica)
    }

    /// The ports that an agent gives to its instances.
    pub fn instances(self, agent: u64) -> (u16, u16) {
        let agents = offset(AGENTS);
        let first = INSTANCES_FIRST
            + (self.block * agents + offset(agent).saturating_sub(1)) * INSTANCES_PER_AGENT;
        (first, first + INSTANCES_PER_AGENT - 1)
    }

    fn all(self) -> impl Iterator<Item = u16> {
        (1..=REPLICAS).flat_map(move |id| [self.api(id), self.peer(id)])
    }

    /// Holds the block.
    pub fn reserve(self) -> Outcome<Reservation> {
        match UdpSocket::bind((Ipv4Addr::LOCALHOST, self.base())) {
            Ok(socket) => Ok(Reservation { _socket: socket }),
            Err(error) => Err(Failure::new(
                Exit::Conflict,
                format!(
                    "the ports from {} on, which this directory was given, are taken by another `palisade dev`: {error}",
                    self.base()
                ),
            )
            .hint("stop that one, or start over with other ports: `palisade dev --fresh`")),
        }
    }

    /// Whether nothing listens where its agents' instances would. Asked when a block is chosen only:
    /// later they may be its own.
    fn instances_are_free(self) -> bool {
        (1..=AGENTS).all(|agent| {
            let (first, last) = self.instances(agent);
            (first..=last).all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        })
    }

    /// The first port of the block on which something listens already.
    pub fn taken(self) -> Option<u16> {
        self.all().find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_err())
    }
}

fn offset(id: u64) -> u16 {
    u16::try_from(id).unwrap_or(STEP / 2 - 1).min(STEP / 2 - 1)
}

/// Holds a block until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    _socket: UdpSocket,
}

/// Chooses a block that nobody has.
pub(super) fn choose() -> Outcome<(Block, Reservation)> {
    for block in (0..BLOCKS).map(Block::at) {
        if let Ok(reservation) = block.reserve()
            && block.taken().is_none()
            && block.instances_are_free()
        {
            return Ok((block, reservation));
        }
    }
    Err(Failure::new(
        Exit::NoRoom,
        format!("no block of free ports is left between {FIRST} and {}", FIRST + BLOCKS * STEP - 1),
    )
    .hint("stop another `palisade dev`, or what else listens there"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_port_is_in_two_places() {
        let mut seen = BTreeSet::new();
        for block in (0..BLOCKS).map(Block::at) {
            for port in block.all().chain([block.base()]) {
                assert!(seen.insert(port), "{port}");
            }
            for agent in 1..=AGENTS {
                let (first, last) = block.instances(agent);
                assert!((first..=last).all(|port| seen.insert(port)), "{first}");
            }
        }
        assert!(seen.last().is_some_and(|last| *last < 32_768), "below the ephemeral ports");
    }

    #[test]
    fn a_block_whose_instance_ports_are_taken_is_not_chosen() {
        let (block, held) = choose().unwrap();
        let (first, _) = block.instances(2);
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        drop(held);
        assert_ne!(choose().unwrap().0, block);
    }

    #[test]
    fn two_that_choose_get_two_blocks() {
        let (one, held) = choose().unwrap();
        let (other, _other_held) = choose().unwrap();
        assert_ne!(one, other);
        drop(held);
    }
}
