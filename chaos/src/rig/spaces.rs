//! A network for each replica and agent, with one cable to the rig's.
//!
//! Everything is made in the rig's own network namespace and goes with it (`ENC-1`). Nobody reaches
//! anybody but the rig, whose proxies stand in front of the replicas.

use std::{
    ffi::OsString,
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr},
};

use anyhow::{Context, Result};

use super::{tool, words};
use crate::net::{Host, Pair};

const NETWORK: [u8; 3] = [10, 77, 0];
const FIRST_REPLICA: u8 = 11;
const FIRST_AGENT: u8 = 101;
const TABLE: &str = "chaos";

/// Where the proxies are.
pub(crate) const HUB: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));

fn number(host: Host) -> u8 {
    let (first, place) = match host {
        Host::Replica(place) => (FIRST_REPLICA, place),
        Host::Agent(place) => (FIRST_AGENT, place),
    };
    first.saturating_add(u8::try_from(place).unwrap_or(u8::MAX))
}

/// The address of a host.
pub(crate) fn address(host: Host) -> IpAddr {
    let [a, b, c] = NETWORK;
    IpAddr::V4(Ipv4Addr::new(a, b, c, number(host)))
}

/// The host with an address.
pub(crate) fn host(address: IpAddr) -> Option<Host> {
    let IpAddr::V4(address) = address else { return None };
    let [a, b, c, number] = address.octets();
    let number = (NETWORK == [a, b, c]).then_some(number)?;
    match (number.checked_sub(FIRST_AGENT), number.checked_sub(FIRST_REPLICA)) {
        (Some(place), _) => Some(Host::Agent(place.into())),
        (None, Some(place)) => Some(Host::Replica(place.into())),
        _ => None,
    }
}

/// The command that runs another one in a host's network.
pub(crate) fn within(host: Host) -> Vec<OsString> {
    let net = format!("--net=/run/netns/h{}", number(host));
    words(&[&"nsenter", &net, &"--"])
}

/// Makes the network of the rig and of these hosts.
pub(crate) async fn make(hosts: &[Host]) -> Result<()> {
    // Names of namespaces are files there; ours are seen by nobody else.
    tool::run("mount", &[&"-t", &"tmpfs", &"tmpfs", &"/run"]).await?;
    let mut text = format!(
        "link set lo up\nlink add hub type bridge\naddr add {HUB}/24 dev hub\nlink set hub up\n"
    );
    for host in hosts {
        let (n, address) = (number(*host), address(*host));
        tool::run("ip", &[&"netns", &"add", &format!("h{n}")]).await?;
        // Isolated: each reaches the hub and nobody else.
        let _ = write!(
            text,
            "link add v{n} type veth peer name eth0 netns h{n}\nlink set v{n} master hub\n\
             link set v{n} type bridge_slave isolated on\nlink set v{n} up\n"
        );
        let inner = format!("link set lo up\naddr add {address}/24 dev eth0\nlink set eth0 up\n");
        tool::fed("ip", &[&"-batch", &"-"], &text).await.context("cannot make a network")?;
        text.clear();
        tool::fed("ip", &[&"-n", &format!("h{n}"), &"-batch", &"-"], &inner).await?;
    }
    Ok(())
}

/// Brings up the loopback interface alone, where there are no networks for each.
pub(crate) async fn loopback() -> Result<()> {
    tool::run("ip", &[&"link", &"set", &"lo", &"up"]).await.map(drop)
}

/// Drops packets between these pairs in the networks of both; `ports` answers where the proxies of a
/// replica listen. Answers whose networks have rules now.
pub(crate) async fn drop_packets(
    pairs: &std::collections::BTreeSet<Pair>,
    ports: impl Fn(Host) -> Vec<u16>,
) -> Result<Vec<Host>> {
    let mut hosts: Vec<Host> = pairs.iter().flat_map(|(from, to)| [*from, *to]).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut done = Vec::new();
    for host in hosts {
        let rules = rules(host, pairs, &ports);
        done.push(host);
        if let Err(error) = nft(host, &rules).await {
            deliver_packets(&done).await;
            return Err(error);
        }
    }
    Ok(done)
}

/// Takes the rules out again.
pub(crate) async fn deliver_packets(hosts: &[Host]) {
    for host in hosts {
        if let Err(error) = nft(*host, &format!("delete table inet {TABLE}\n")).await {
            tracing::warn!(error = format!("{error:#}"), "rules cannot be taken out");
        }
    }
}

async fn nft(host: Host, rules: &str) -> Result<()> {
    let net = format!("--net=/run/netns/h{}", number(host));
    tool::fed("nsenter", &[&net, &"--", &"nft", &"-f", &"-"], rules).await.map(drop)
}

/// What goes from one to another goes through the proxies of one of them, on a connection that
/// either made.
fn rules(
    host: Host,
    pairs: &std::collections::BTreeSet<Pair>,
    ports: &impl Fn(Host) -> Vec<u16>,
) -> String {
    let list = |host: Host| {
        let ports: Vec<String> = ports(host).iter().map(u16::to_string).collect();
        (!ports.is_empty()).then(|| ports.join(", "))
    };
    let (mut out, mut into) = (String::new(), String::new());
    for (from, to) in pairs {
        let other = if *from == host { *to } else { *from };
        // The connections that this host made to the other's proxies.
        let Some(ports) = list(other) else { continue };
        if *from == host {
            let _ = writeln!(out, "    tcp dport {{ {ports} }} drop");
        } else if *to == host {
            let _ = writeln!(into, "    tcp sport {{ {ports} }} drop");
        }
    }
    format!(
        "table inet {TABLE} {{\n  chain out {{\n    type filter hook output priority 0;\n{out}  }}\n  \
         chain into {{\n    type filter hook input priority 0;\n{into}  }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_one_host() {
        for host_here in [Host::Replica(0), Host::Replica(6), Host::Agent(0), Host::Agent(19)] {
            assert_eq!(host(address(host_here)), Some(host_here));
        }
        assert_eq!(host(HUB), None);
        assert_eq!(host(IpAddr::V4(Ipv4Addr::LOCALHOST)), None);
    }

    #[test]
    fn a_cut_one_way_drops_on_both_ends_and_only_that_way() {
        let (a, b) = (Host::Replica(0), Host::Replica(1));
        let ports = |host| if host == a { vec![1, 2] } else { vec![3, 4] };
        let pairs = [(a, b)].into();
        let at_a = rules(a, &pairs, &ports);
        assert!(at_a.contains("dport { 3, 4 } drop") && !at_a.contains("sport"), "{at_a}");
        let at_b = rules(b, &pairs, &ports);
        assert!(at_b.contains("sport { 1, 2 } drop") && !at_b.contains("dport"), "{at_b}");
    }
}
