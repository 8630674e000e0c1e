//! Addresses that cannot live together, told before anything binds.

use std::net::{IpAddr, SocketAddr};

use super::reader::Value;

/// What an address is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// A role listener.
    Listener,
    /// A VIP.
    Vip,
    /// The admin server.
    Admin,
}

impl Use {
    fn noun(self) -> &'static str {
        match self {
            Self::Listener => "a listener",
            Self::Vip => "a VIP",
            Self::Admin => "the admin server",
        }
    }
}

/// An address, what it is for, and where the file says so.
pub(super) type Place<'a> = (Use, SocketAddr, Value<'a>);

/// Reports every VIP that cannot be one, and every pair that cannot live together. `admin` is the effective address
/// of the admin server, which the file may not mention.
pub(super) fn check(places: &[Place<'_>], admin: SocketAddr) {
    for (index, (usage, address, value)) in places.iter().enumerate() {
        if *usage == Use::Vip {
            check_vip(*address, value);
        }
        let earlier = places.iter().take(index).map(|(usage, address, _)| (*usage, *address));
        let unsaid = places.iter().all(|(usage, ..)| *usage != Use::Admin).then_some((Use::Admin, admin));
        if let Some((other, taken)) =
            earlier.chain(unsaid).find(|(other, taken)| clash((*usage, *address), (*other, *taken)))
        {
            value.wrong(format!("`{address}` is taken by {} on `{taken}`", other.noun()));
        }
    }
}

fn check_vip(address: SocketAddr, value: &Value<'_>) {
    let ip = address.ip();
    if address.port() == 0 {
        value.not_allowed(format!("`{address}` has no port"), "a port from 1 to 65535");
    } else if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(std::net::Ipv4Addr::BROADCAST) {
        value.not_allowed(
            format!("`{address}` is no address of one service"),
            "a unicast address, usually a ClusterIP",
        );
    } else if matches!(ip, IpAddr::V4(ip) if matches!(ip.octets(), [127, 127, ..])) {
        value.wrong(format!("`{address}` is in 127.127.0.0/16, which revgate uses itself"));
    }
}

/// Two sockets clash on one port when one address covers the other. A VIP is no socket: only the same address clashes.
fn clash((usage, a): (Use, SocketAddr), (other, b): (Use, SocketAddr)) -> bool {
    let (x, y) = (a.ip(), b.ip());
    // `::` takes IPv4 too, `0.0.0.0` does not take IPv6.
    let covers = |x: IpAddr, y: IpAddr| x.is_unspecified() && (x.is_ipv6() || y.is_ipv4());
    let wild = usage != Use::Vip && other != Use::Vip && (covers(x, y) || covers(y, x));
    // Port 0 is a free port, never the same twice.
    a.port() == b.port() && a.port() != 0 && (x == y || wild)
}
