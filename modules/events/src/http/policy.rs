//! Which addresses are connected to.
//!
//! # Invariants
//! - `EVT-4` Nothing is sent to an address that is not public, unless the settings name its range; what is looked at is the address
//!   that is connected to, and never a name.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// A range of addresses, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    base: IpAddr,
    bits: u8,
}

impl Range {
    /// Whether an address is in it.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        match (self.base, plain(address)) {
            (IpAddr::V4(base), IpAddr::V4(address)) => same(
                u128::from(base.to_bits()) << 96,
                u128::from(address.to_bits()) << 96,
                self.bits,
            ),
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                same(base.to_bits(), address.to_bits(), self.bits)
            }
            _ => false,
        }
    }
}

fn same(one: u128, other: u128, bits: u8) -> bool {
    let differs = (one ^ other).leading_zeros();
    differs >= u32::from(bits)
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no range of addresses, such as 10.0.0.0/8 or fd00::/8");
        let (base, bits) = text.split_once('/').ok_or_else(wrong)?;
        let base: IpAddr = base.parse().map_err(|_| wrong())?;
        let bits: u8 = bits.parse().map_err(|_| wrong())?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        if bits > most { Err(wrong()) } else { Ok(Self { base, bits }) }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

/// An IPv4 address that is written as an IPv6 one is that IPv4 address.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Ranges of IPv4 that are nobody's public addresses (IANA, Special-Purpose Address Registry; RFC 6890), multicast among them.
const NOT_PUBLIC: [(Ipv4Addr, u8); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // Link-local: the metadata services of clouds are in it.
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 31, 196, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

fn is_public_v4(address: Ipv4Addr) -> bool {
    let within = |(base, bits): &(Ipv4Addr, u8)| {
        Range { base: IpAddr::V4(*base), bits: *bits }.has(IpAddr::V4(address))
    };
    !NOT_PUBLIC.iter().any(within)
}

/// The IPv4 address that an IPv6 one leads to: NAT64 (RFC 6052) and 6to4 (RFC 3056).
fn leads_to(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match (a, b) {
        (0x64, 0xff9b) if [c, d, e, f] == [0; 4] => Some(v4(g, h)),
        (0x2002, high) => Some(v4(high, c)),
        _ => None,
    }
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(v4) = leads_to(address) {
        return is_public_v4(v4);
    }
    let [a, b, ..] = address.segments();
    let is_global_unicast = a & 0xe000 == 0x2000;
    // 2001::/23 is for protocols, Teredo among them; the others are for documentation.
    let is_special = (a == 0x2001 && (b < 0x200 || b == 0xdb8)) || (a & 0xfff0 == 0x3ff0);
    is_global_unicast && !is_special
}

/// `EVT-4` Whether an address may be connected to.
#[must_use]
pub fn may_reach(address: IpAddr, allowed: &[Range]) -> bool {
    let address = plain(address);
    let is_public = match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    };
    is_public || allowed.iter().any(|range| range.has(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(address: &str, allowed: &[&str]) -> bool {
        let allowed: Vec<Range> = allowed.iter().map(|range| range.parse().unwrap()).collect();
        may_reach(address.parse().unwrap(), &allowed)
    }

    #[test]
    fn addresses_that_are_not_public_are_refused() {
        for refused in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "::",
            "::1",
            "fe80::1",
            "fd00:ec2::254",
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::169.254.169.254",
            "2002:7f00:1::",
            "2002:a00:101::",
            "2001:db8::1",
            "2001::1",
            "2001:1ff::1",
            "3fff::1",
            "fec0::1",
        ] {
            assert!(!may(refused, &[]), "EVT-4: {refused}");
        }
        for public in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "64:ff9b::1.1.1.1",
            "2001:4860::1",
        ] {
            assert!(may(public, &[]), "{public}");
        }
    }

    /// Each range, from its first address to its last and no further.
    #[test]
    fn each_range_that_is_not_public_is_refused_from_end_to_end() {
        for (first, last) in [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.31.196.0", "192.31.196.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "255.255.255.255"),
        ] {
            let [first, last]: [Ipv4Addr; 2] = [first, last].map(|end| end.parse().unwrap());
            let may = |bits: u32| may_reach(Ipv4Addr::from_bits(bits).into(), &[]);
            assert!(!may(first.to_bits()) && !may(last.to_bits()), "EVT-4: {first} to {last}");
            if first.to_bits() > 0 {
                assert!(may(first.to_bits() - 1), "before {first}");
            }
            if last.to_bits() < u32::MAX {
                assert!(may(last.to_bits() + 1), "behind {last}");
            }
        }
    }

    #[test]
    fn a_range_that_the_settings_name_is_let_through_and_no_more() {
        assert!(may("10.1.2.3", &["10.1.0.0/16"]) && may("::ffff:10.1.2.3", &["10.1.0.0/16"]));
        assert!(!may("10.2.2.3", &["10.1.0.0/16"]) && !may("127.0.0.1", &["10.1.0.0/16", "::/0"]));
        assert!(may("fd00::1", &["fd00::/8"]) && !may("fe80::1", &["fd00::/8"]));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "a/8", "::/129", ""] {
            assert!(wrong.parse::<Range>().is_err(), "{wrong}");
        }
    }
}
