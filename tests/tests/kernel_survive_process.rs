//! The agent as a process that is killed, with connects running (K8): what its end changes, the lease, and a second
//! agent.
#![cfg(test)]

use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use revgate::{
    config::FenceMode,
    kernel::{self, SetTenants},
};
use revgate_common::counter::Counter;
use revgate_tests::{
    agent::Agent,
    dial::{EHOSTUNREACH, count, dial, errno},
    echo,
    load::{Load, decoy},
    node::Node,
    wait::until,
};

const AGENT: &str = env!("CARGO_BIN_EXE_revgate-under-test");

/// A node without an agent.
fn empty(test: &str) -> Option<Node> {
    let mut node = Node::enter(test, FenceMode::Enforce)?;
    node.stop();
    kernel::detach(node.config()).unwrap();
    Some(node)
}

/// A revision with one Pod of each role: its decode endpoint and its Pods.
fn revision(net: u8, of: u8, name: &'static str) -> (SocketAddr, [(&'static str, &'static str, IpAddr); 2]) {
    let ip = |role: u8| IpAddr::from([127, net, of, role]);
    let endpoint = echo::tcp_at(SocketAddr::new(ip(2), 8000));
    (endpoint, [(name, "prefill", ip(1)), (name, "decode", ip(2))])
}

/// What a dead agent left in the tables.
fn left(node: &mut Node) -> Vec<SetTenants> {
    node.restart();
    let tenants = node.reader().tenants().unwrap();
    node.stop();
    tenants
}

#[test]
fn a_killed_agent_changes_nothing_and_the_next_one_keeps_slots_and_epochs() {
    let Some(mut node) = empty("kill") else { return };
    let vip = decoy("127.97.0.1");
    let ((_, a), (b_endpoint, b)) = (revision(97, 1, "a"), revision(97, 2, "b"));
    let mut agent = Agent::prepare(AGENT, &node, "30s", &format!("- {{address: '{vip}', role: decode}}"));
    agent.pods(&[a, b].concat());
    agent.start();
    let load = Load::start(&node, vip);
    // Only the later revision stays: what is kept is then not what a new agent would choose.
    agent.pods(&b);
    let look = || (0..20).all(|_| dial(vip).unwrap() == b_endpoint);
    until("the new list of Pods is in force", look, |there| *there);
    agent.kill();
    load.goes_on();
    let before = left(&mut node);
    assert_eq!(before[0].tenants.len(), 1);
    assert_ne!((before[0].tenants[0].slot, before[0].tenants[0].epoch), (0, 1));
    for _ in 0..3 {
        agent.start();
        load.goes_on();
        agent.kill();
        load.goes_on();
    }
    let after = left(&mut node);
    assert_eq!(after[0].tenants, before[0].tenants);
    assert!(after[0].generation > before[0].generation);
    load.end();
}

#[test]
fn a_second_agent_is_refused_and_says_why() {
    let Some(node) = empty("second") else { return };
    let vip = decoy("127.98.0.1");
    let (endpoint, pods) = revision(98, 1, "a");
    let mut agent = Agent::prepare(AGENT, &node, "30s", &format!("- {{address: '{vip}', role: decode}}"));
    agent.pods(&pods);
    agent.start();
    let (status, said) = agent.second();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("another agent holds") && said.contains("stop it first"), "{said}");
    assert_eq!(dial(vip).unwrap(), endpoint, "the first one goes on");
}

#[test]
fn when_the_lease_of_a_dead_agent_ends_each_vip_does_as_it_is_set_until_the_next_agent() {
    let Some(mut node) = empty("lease") else { return };
    let (keep, deny) = (decoy("127.99.0.1"), decoy("127.99.0.2"));
    let (endpoint, pods) = revision(99, 1, "a");
    let vips = format!(
        "- {{address: '{keep}', role: decode}}\n- {{address: '{deny}', role: decode, whenAgentGone: deny}}"
    );
    let mut agent = Agent::prepare(AGENT, &node, "8s", &vips);
    agent.pods(&pods);
    agent.start();
    let load = Load::start(&node, keep);
    // Longer than one lease: it is renewed.
    for _ in 0..500 {
        assert_eq!(dial(deny).unwrap(), endpoint, "an agent lives");
        thread::sleep(Duration::from_millis(20));
    }
    agent.kill();
    assert_eq!(dial(deny).unwrap(), endpoint, "the lease of the dead agent still runs");
    let denied = until("the lease ends", || dial(deny), Result::is_err);
    assert_eq!(errno(&denied), EHOSTUNREACH);
    load.goes_on();
    agent.start();
    assert_eq!(dial(deny).unwrap(), endpoint, "the next agent steers again");
    agent.kill();
    load.end();
    node.restart();
    assert_eq!(count(&node, Counter::DeniedLease), 1);
}
