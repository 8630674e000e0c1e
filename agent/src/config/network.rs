//! Networks of clients, and which of them a listener believes (H3).

use std::{fmt, net::IpAddr, str::FromStr};

/// Whose routing headers are believed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Nobody's.
    Never,
    /// Everybody's.
    Always,
    /// Those of clients in these networks.
    Networks(Vec<Network>),
}

impl Trust {
    /// Whether a client at this address is believed.
    #[must_use]
    pub fn includes(&self, client: IpAddr) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::Networks(networks) => {
                let client = client.to_canonical();
                networks.iter().any(|network| network.contains(client))
            }
        }
    }
}

/// Addresses with a common beginning. IPv4-mapped IPv6 counts as IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Whether an address is one of them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        bits(self.address, self.prefix) == bits(address, self.prefix)
            && self.address.is_ipv4() == address.is_ipv4()
    }
}

/// The first bits of an address, the rest zero.
fn bits(address: IpAddr, prefix: u8) -> u128 {
    let (bits, width) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let rest = u32::from(width - prefix.min(width));
    bits.checked_shr(rest).and_then(|bits| bits.checked_shl(rest)).unwrap_or(0)
}

impl FromStr for Network {
    type Err = ();

    /// An address and a prefix length, nothing behind which is set; or an address alone.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address = address.parse::<IpAddr>().map_err(|_| ())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) if prefix.bytes().all(|b| b.is_ascii_digit()) => prefix.parse().map_err(|_| ())?,
            Some(_) => return Err(()),
            None => width,
        };
        let network = Self { address, prefix };
        let whole = bits(address, width) == bits(address, prefix);
        let mapped = address.to_canonical() != address;
        (prefix <= width && whole && !mapped).then_some(network).ok_or(())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_an_address_and_a_prefix_with_nothing_behind_it() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::/8", "10.1.2.3/32", "fd00::1/128"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
        assert_eq!("10.1.2.3".parse::<Network>().unwrap().to_string(), "10.1.2.3/32");
        for text in
            ["", "10.0.0.0/33", "10.0.0.1/8", "10.0.0.0/", "10.0.0.0/+8", "host/8", "::ffff:10.0.0.0/104"]
        {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn h3_a_client_is_believed_by_its_network() {
        let networks = |list: &[&str]| Trust::Networks(list.iter().map(|n| n.parse().unwrap()).collect());
        let trust = networks(&["10.0.0.0/8", "fd00::/8"]);
        for (client, believed) in [
            ("10.255.0.1", true),
            ("::ffff:10.0.0.1", true),
            ("11.0.0.1", false),
            ("fd12::1", true),
            ("fe80::1", false),
            ("0a00::1", false),
        ] {
            assert_eq!(trust.includes(client.parse().unwrap()), believed, "{client}");
        }
        assert!(networks(&["0.0.0.0/0"]).includes("1.2.3.4".parse().unwrap()));
        assert!(!networks(&["0.0.0.0/0"]).includes("::1".parse().unwrap()));
        assert!(!Trust::Never.includes("10.0.0.1".parse().unwrap()));
        assert!(Trust::Always.includes("10.0.0.1".parse().unwrap()));
    }
}
