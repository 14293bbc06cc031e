//! Ports that nobody uses at this moment.
//!
//! They lie below those that the system hands out by itself: while a replica is down, an outgoing
//! connection must not take its port.

use std::net::TcpListener;

use anyhow::{Result, bail};

const SERVERS: (u16, u16) = (10_000, 19_999);
const INSTANCES: (u16, u16) = (20_000, 31_999);

/// That many ports for replicas, all different.
pub(crate) fn free(count: usize) -> Result<Vec<u16>> {
    let found = ranges_in(SERVERS, count, 1)?;
    Ok(found.into_iter().map(|(port, _)| port).collect())
}

/// Ranges of `length` ports in a row for the instances of each agent.
pub(crate) fn ranges(count: usize, length: u16) -> Result<Vec<(u16, u16)>> {
    ranges_in(INSTANCES, count, length)
}

fn ranges_in((lowest, highest): (u16, u16), count: usize, length: u16) -> Result<Vec<(u16, u16)>> {
    let places = (highest - lowest + 1) / length;
    // Another rig beside this one begins elsewhere.
    let begin = u16::try_from(u64::from(std::process::id()) * 61 % u64::from(places)).unwrap_or(0);
    let mut found = Vec::new();
    for place in (begin..places).chain(0..begin) {
        if found.len() == count {
            break;
        }
        let first = lowest + place * length;
        let last = first + (length - 1);
        if (first..=last).all(is_free) {
            found.push((first, last));
        }
    }
    if found.len() < count {
        bail!("there are no {count} times {length} free ports between {lowest} and {highest}");
    }
    Ok(found)
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_all_different() {
        let mut ports = free(8).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
    }

    #[test]
    fn ranges_do_not_overlap() {
        let ranges = ranges(3, 20).unwrap();
        assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0 || pair[1].1 < pair[0].0));
    }
}
