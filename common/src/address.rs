//! Addresses as the kernel tables hold them, and every change of byte order, in one place.
//!
//! The socket-address hooks speak three dialects: `user_ip4`/`user_ip6` words and `user_port` are in network
//! order (the port in the low half of a `u32`), `sock_ops.remote_port` is in network order in the *high* half,
//! and `sock_ops.local_port` is in host order (`include/uapi/linux/bpf.h`).

use bytemuck::{Pod, Zeroable};

/// The first three words of an IPv4-mapped IPv6 address, `::ffff:0:0/96`, in network order.
const MAPPED: [u32; 3] = [0, 0, 0xffff_u32.to_be()];

/// An IP address and port, as a map key and value: IPv4 in its IPv4-mapped IPv6 form, all in network order.
///
/// A connect to `a.b.c.d` from an IPv4 socket and one to `::ffff:a.b.c.d` from an IPv6 socket meet the same key.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
pub struct Address {
    /// The address, four words in network order.
    pub ip: [u32; 4],
    /// The port in network order; 0 stands for every port where a table says so.
    pub port: u16,
    /// Keeps the size a multiple of the alignment; always 0, or hash keys would differ.
    pub zero: u16,
}

impl Address {
    /// From an IPv4 address word and a port, both in network order.
    #[inline(always)]
    #[must_use]
    pub const fn v4(ip: u32, port: u16) -> Self {
        Self { ip: [MAPPED[0], MAPPED[1], MAPPED[2], ip], port, zero: 0 }
    }

    /// From IPv6 address words and a port, all in network order. A mapped address stays mapped.
    #[inline(always)]
    #[must_use]
    pub const fn v6(ip: [u32; 4], port: u16) -> Self {
        Self { ip, port, zero: 0 }
    }

    /// Whether this is an IPv4 address (in its mapped form).
    #[inline(always)]
    #[must_use]
    pub const fn is_v4(&self) -> bool {
        self.ip[0] == MAPPED[0] && self.ip[1] == MAPPED[1] && self.ip[2] == MAPPED[2]
    }

    /// The same address with port 0: the key of a whole-address entry.
    #[inline(always)]
    #[must_use]
    pub const fn any_port(&self) -> Self {
        Self { ip: self.ip, port: 0, zero: 0 }
    }
}

impl From<core::net::SocketAddr> for Address {
    fn from(at: core::net::SocketAddr) -> Self {
        let octets = match at.ip() {
            core::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            core::net::IpAddr::V6(ip) => ip.octets(),
        };
        Self { ip: bytemuck::cast(octets), port: at.port().to_be(), zero: 0 }
    }
}

impl From<Address> for core::net::SocketAddr {
    /// IPv4-mapped addresses come back as IPv4.
    fn from(at: Address) -> Self {
        let octets: [u8; 16] = bytemuck::cast(at.ip);
        let ip = core::net::Ipv6Addr::from(octets).to_canonical();
        Self::new(ip, u16::from_be(at.port))
    }
}

/// The port of `bpf_sock_addr.user_port`: network order, in the low half.
#[inline(always)]
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the kernel fills the low half only")]
pub const fn port_from_user_port(user_port: u32) -> u16 {
    user_port as u16
}

/// What to write into `bpf_sock_addr.user_port` for a port in network order.
#[inline(always)]
#[must_use]
pub const fn user_port_from_port(port: u16) -> u32 {
    port as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;

    #[test]
    fn a_port_keeps_its_value_through_every_dialect() {
        let at: Address = "127.0.0.1:4660".parse::<SocketAddr>().unwrap().into();
        assert_eq!(u16::from_be(at.port), 0x1234);
        assert_eq!(bytemuck::bytes_of(&at)[16..18], [0x12, 0x34]);
        assert_eq!(port_from_user_port(user_port_from_port(at.port)), at.port);
    }

    #[test]
    fn ipv4_and_mapped_ipv6_are_one_key() {
        let v4: Address = "10.1.2.3:80".parse::<SocketAddr>().unwrap().into();
        let mapped: Address = "[::ffff:10.1.2.3]:80".parse::<SocketAddr>().unwrap().into();
        assert_eq!(v4, mapped);
        assert!(v4.is_v4());
        assert_eq!(v4, Address::v4(u32::from_ne_bytes([10, 1, 2, 3]), 80_u16.to_be()));
        assert_eq!(SocketAddr::from(mapped), "10.1.2.3:80".parse().unwrap());
    }

    #[test]
    fn ipv6_round_trips() {
        let at: SocketAddr = "[2001:db8::7]:8000".parse().unwrap();
        assert!(!Address::from(at).is_v4());
        assert_eq!(SocketAddr::from(Address::from(at)), at);
    }
}
