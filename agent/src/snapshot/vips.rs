//! Where the VIPs are: at their addresses, or at the cluster IPs of their Services (C8). Pure.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use crate::{
    cluster::{ObjectName, Service},
    config::{AgentGone, VipAddress, VipConfig},
};

/// A VIP at one address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vip {
    /// Where.
    pub address: SocketAddr,
    /// Index of its set.
    pub set: usize,
    /// Index of its role in the set's `roles`.
    pub role: usize,
    /// Deny clients that are not members of the set.
    pub members_only: bool,
    /// What it does while no agent runs.
    pub agent_gone: AgentGone,
}

/// A VIP that is nowhere: nobody steers what goes to its Service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissingVip {
    /// Its Service.
    pub service: ObjectName,
    /// Index of its set.
    pub set: usize,
    /// Index of its role in the set's `roles`.
    pub role: usize,
    /// Why, as in "there is no such Service".
    pub why: String,
}

/// Finds every VIP. One whose address is another's already is missing: the first one in the file has it.
pub(super) fn find(
    configured: &[VipConfig],
    services: &HashMap<ObjectName, Service>,
) -> (Vec<Vip>, Vec<MissingVip>) {
    let mut taken = HashSet::new();
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    // Fixed addresses first: the file promises them.
    let (fixed, named): (Vec<_>, Vec<_>) =
        configured.iter().partition(|vip| matches!(vip.at, VipAddress::Fixed(_)));
    for vip in fixed.into_iter().chain(named) {
        let VipConfig { set, role, members_only, agent_gone, .. } = *vip;
        let mut push = |address| {
            let new = taken.insert(address);
            if new {
                found.push(Vip { address, set, role, members_only, agent_gone });
            }
            new
        };
        let (service, port) = match &vip.at {
            VipAddress::Fixed(address) => {
                push(*address);
                continue;
            }
            VipAddress::Service { service, port } => (service, port.as_ref()),
        };
        let mut miss = |why: String| missing.push(MissingVip { service: service.clone(), set, role, why });
        match services.get(service).map(|service| service.at(port)) {
            None => miss("there is no such Service".to_owned()),
            Some(Err(why)) => miss(why),
            Some(Ok(addresses)) => {
                for address in addresses {
                    if !push(address) {
                        miss(format!("{address} is another VIP already"));
                    }
                }
            }
        }
    }
    (found, missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::ServicePort, config::PortRef};

    fn name() -> ObjectName {
        ObjectName { namespace: "llm".into(), name: "decode".into() }
    }

    fn vip(at: VipAddress) -> VipConfig {
        VipConfig { at, set: 0, role: 1, members_only: false, agent_gone: AgentGone::Keep }
    }

    fn by_port(port: Option<PortRef>) -> VipConfig {
        vip(VipAddress::Service { service: name(), port })
    }

    fn service(addresses: &[&str], ports: &[(&str, u16)]) -> HashMap<ObjectName, Service> {
        let port = |(name, number): &(&str, u16)| ServicePort { name: Some((*name).into()), number: *number };
        let service = Service {
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            ports: ports.iter().map(port).collect(),
        };
        HashMap::from([(name(), service)])
    }

    fn found(vips: &[VipConfig], services: &HashMap<ObjectName, Service>) -> (Vec<String>, Vec<String>) {
        let (found, missing) = find(vips, services);
        (
            found.iter().map(|vip| vip.address.to_string()).collect(),
            missing.into_iter().map(|missing| missing.why).collect(),
        )
    }

    #[test]
    fn a_dual_stack_service_gives_a_vip_of_each_family() {
        let services = service(&["10.0.0.1", "fd00::1"], &[("http", 80), ("grpc", 90)]);
        for port in [PortRef::Name("grpc".into()), PortRef::Number(90)] {
            let (at, missing) = found(&[by_port(Some(port))], &services);
            assert_eq!((at, missing.len()), (vec!["10.0.0.1:90".to_owned(), "[fd00::1]:90".to_owned()], 0));
        }
    }

    #[test]
    fn the_port_may_be_left_out_where_there_is_one() {
        assert_eq!(found(&[by_port(None)], &service(&["10.0.0.1"], &[("http", 80)])).0, ["10.0.0.1:80"]);
        let (at, missing) = found(&[by_port(None)], &service(&["10.0.0.1"], &[("http", 80), ("grpc", 90)]));
        assert_eq!((at.len(), missing), (0, vec!["it has 2 TCP ports; name one with `port`".to_owned()]));
    }

    #[test]
    fn what_is_nowhere_says_why() {
        let why = |services| found(&[by_port(Some(PortRef::Number(8)))], &services).1;
        assert_eq!(why(HashMap::new()), ["there is no such Service"]);
        assert_eq!(why(service(&[], &[("a", 8)])), ["it has no cluster IP (a headless Service has none)"]);
        assert_eq!(why(service(&["10.0.0.1"], &[("a", 9)])), ["it has no such TCP port; it has a (9)"]);
    }

    #[test]
    fn a_fixed_address_is_not_taken_by_a_service() {
        let fixed = vip(VipAddress::Fixed("10.0.0.1:80".parse().unwrap()));
        let (at, missing) = found(&[by_port(None), fixed], &service(&["10.0.0.1"], &[("http", 80)]));
        assert_eq!(at, ["10.0.0.1:80"]);
        assert_eq!(missing, ["10.0.0.1:80 is another VIP already"]);
    }
}
