//! What may stand where a machine is named: a host's name, an IPv4 address, or an IPv6 address in brackets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// Whether `text` names a host: a name of RFC 1123 (underscores too, which resolvers take), an IPv4 address of four numbers, or an IPv6
/// address in brackets (RFC 3986, 3.2.2). What looks like a number and is no such address is none: resolvers take `0` and
/// `127.1` for addresses.
#[must_use]
pub fn is_host(text: &str) -> bool {
    if let Some(inside) = text.strip_prefix('[') {
        return inside.strip_suffix(']').is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok());
    }
    text.parse::<Ipv4Addr>().is_ok() || is_name(text)
}

fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=LABEL_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= NAME_MAX
        && text.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a host is where to listen on every interface, and so nowhere to be reached.
#[must_use]
pub fn is_unspecified(host: &str) -> bool {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    ip.is_ok_and(|ip| ip.to_canonical().is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_as_it_is_written_in_a_url() {
        let long = "a".repeat(64);
        for good in
            ["a", "replica-1.example", "my_host", "1.example", "10.0.0.1", "[::1]", "[fe80::1]"]
        {
            assert!(is_host(good), "{good}");
        }
        for bad in [
            "",
            "0",
            "127.1",
            "1.2.3.4.5",
            "0.0.0.0.",
            "a.",
            ".a",
            "-h",
            "h-",
            "::1",
            "[127.0.0.1]",
            "[::1",
            "a b",
            "ä",
            &long,
        ] {
            assert!(!is_host(bad), "{bad}");
        }
    }

    #[test]
    fn nobody_is_reached_at_the_unspecified_address_however_it_is_written() {
        for host in ["0.0.0.0", "[::]", "::", "[::ffff:0.0.0.0]", "[0:0:0:0:0:0:0:0]"] {
            assert!(is_unspecified(host), "{host}");
        }
        assert!(!is_unspecified("0.example") && !is_unspecified("10.0.0.1"));
    }
}
