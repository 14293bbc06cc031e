//! The addresses of network interfaces, asked of the kernel over netlink.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketType, bind, netlink, recv, sendto, socket,
};

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLMSG_DONE: u16 = 3;
const NLMSG_ERROR: u16 = 2;
/// REQUEST and DUMP.
const FLAGS: u16 = 0x0001 | 0x0300;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Addresses by the index of their interface.
pub(crate) fn interface_addresses() -> io::Result<BTreeMap<u32, Vec<IpAddr>>> {
    // Protocol 0 is the routing one.
    let fd = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    bind(&fd, &netlink::SocketAddrNetlink::new(0, 0))?;
    // nlmsghdr (length, type, flags, sequence, port), then an empty ifaddrmsg.
    let mut request = Vec::with_capacity(24);
    request.extend_from_slice(&24u32.to_ne_bytes());
    request.extend_from_slice(&RTM_GETADDR.to_ne_bytes());
    request.extend_from_slice(&FLAGS.to_ne_bytes());
    request.extend_from_slice(&[0; 16]);
    sendto(&fd, &request, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut found = BTreeMap::new();
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        let (read, _) = recv(&fd, buffer.as_mut_slice(), RecvFlags::empty())?;
        if read == 0 || !take(buffer.get(..read).unwrap_or_default(), &mut found) {
            return Ok(found);
        }
    }
}

/// Reads one datagram; `false` at the end of the answer.
fn take(mut bytes: &[u8], found: &mut BTreeMap<u32, Vec<IpAddr>>) -> bool {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = usize::try_from(length).unwrap_or(0);
        if kind == NLMSG_DONE || kind == NLMSG_ERROR || length < 16 {
            return false;
        }
        if kind == RTM_NEWADDR
            && let Some(body) = bytes.get(16..length)
            && let Some((index, address)) = address(body)
        {
            found.entry(index).or_default().push(address);
        }
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
    }
    true
}

/// An ifaddrmsg (family, prefix, flags, scope, index) and its attributes.
fn address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let index = u32_at(body, 4)?;
    let mut rest = body.get(8..)?;
    let (mut local, mut peer) = (None, None);
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        let value = rest.get(4..length)?;
        match kind {
            IFA_LOCAL => local = ip(value),
            IFA_ADDRESS => peer = ip(value),
            _ => {}
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Some((index, local.or(peer)?))
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(four).into());
    }
    <[u8; 16]>::try_from(value).ok().map(|six| Ipv6Addr::from(six).into())
}

fn aligned(length: usize) -> usize {
    length.div_ceil(4) * 4
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_found() {
        let all = interface_addresses().unwrap();
        assert!(all.values().flatten().any(IpAddr::is_loopback), "{all:?}");
    }
}
