//! What the agent as a process says of connects: denied ones in its log (K11, O4), traced ones with `kernel.trace`, open
//! ones, the lease and a takeover in its status (O1).
#![cfg(test)]

use std::net::{IpAddr, SocketAddr, TcpStream};

use revgate::{config::FenceMode, kernel};
use revgate_common::counter::Counter;
use revgate_tests::{
    agent::{Agent, Pod},
    dial::{ECONNREFUSED, count, dial, errno},
    echo,
    load::decoy,
    node::{self, Node},
    wait::until,
};
use serde_json::Value;

const AGENT: &str = env!("CARGO_BIN_EXE_revgate-under-test");

/// Most lines of denied connections in 10 s, as documented.
const MOST_LINES: usize = 20;

/// A node without an agent.
fn empty(test: &str) -> Option<Node> {
    let mut node = Node::enter(test, FenceMode::Enforce)?;
    node.stop();
    kernel::detach(node.config()).unwrap();
    Some(node)
}

/// A revision with a decode Pod, first, and a prefill Pod: the endpoint and the Pods.
fn revision(net: u8, of: u8, name: &'static str) -> (SocketAddr, [Pod<'static>; 2]) {
    let ip = |role: u8| IpAddr::from([127, net, of, role]);
    let endpoint = echo::tcp_at(SocketAddr::new(ip(2), 8000));
    (endpoint, [(name, "decode", ip(2)), (name, "prefill", ip(1))])
}

fn vip_line(vip: SocketAddr) -> String {
    format!("- {{address: '{vip}', role: decode}}")
}

/// The lines of the log that have all of these parts.
fn lines(agent: &Agent, parts: &[&str]) -> Vec<String> {
    let log = agent.log();
    let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let all = |line: &&str| parts.iter().all(|part| line.contains(part));
    whole.lines().filter(all).map(str::to_owned).collect()
}

#[test]
fn a_refused_connect_is_one_line_with_both_pods_and_a_flood_of_them_is_few() {
    let Some(mut node) = empty("denied") else { return };
    let (in_a, _) = node.pod_cgroup("a");
    let ((_, a), (b_endpoint, b)) = (revision(150, 1, "a"), revision(150, 2, "b"));
    // Members of b that are only there to be dialled.
    let others: Vec<Pod<'_>> = (1..=60).map(|n| ("b", "decode", IpAddr::from([127, 150, 3, n]))).collect();
    let mut agent = Agent::prepare(AGENT, &node, "30s", &vip_line(decoy("127.150.0.1")));
    agent.pods_in(&[a.as_slice(), &b, &others].concat(), Some(&in_a));
    agent.start();
    let from_a = |to: SocketAddr| node::inside(&in_a, node.cgroup(), || dial(to));

    let denied = ["revgate::denied"];
    for port in [8000, 8000, 9000, 8000] {
        assert_eq!(errno(&from_a(SocketAddr::new(b_endpoint.ip(), port))), ECONNREFUSED);
    }
    let said = until("a line", || lines(&agent, &denied), |said| !said.is_empty());
    let pods = "refused: Pod default/p-127.150.1.2 (revision a of chat) to Pod default/p-127.150.2.2 (revision b of \
                chat): another revision";
    assert!(said[0].contains(pods), "{said:?}");

    node::inside(&in_a, node.cgroup(), || {
        for at in 0..2_400 {
            let (_, _, ip) = others[at % others.len()];
            assert_eq!(errno(&dial(SocketAddr::new(ip, 8000))), ECONNREFUSED);
        }
    });
    // One window is full: its lines are of so many callers and addresses, each told once.
    let said = until("all lines", || lines(&agent, &denied), |said| said.len() >= MOST_LINES);
    // However slow the machine is, the flood does not last ten times as long.
    assert!(said.len() <= 10 * MOST_LINES, "{} lines of 2,404 connects", said.len());
    assert_eq!(lines(&agent, &[pods]).len(), 1, "what repeats itself is said once");
    agent.kill();
    node.restart();
    assert_eq!(count(&node, Counter::DeniedFence), 2_404, "and all are counted");
}

#[test]
fn with_tracing_every_decision_is_a_line_and_without_it_the_programs_know_nothing_of_it() {
    let Some(node) = empty("trace") else { return };
    let vip = decoy("127.151.0.1");
    let (endpoint, a) = revision(151, 1, "a");
    let mut agent = Agent::prepare(AGENT, &node, "30s", &vip_line(vip));
    agent.pods(&a);
    // On, off, on: each start puts its programs into the live links.
    for on in [true, false, true] {
        agent.trace(on);
        agent.start();
        for _ in 0..3 {
            assert_eq!(dial(vip).unwrap(), endpoint);
        }
        let line = format!("to [::ffff:127.151.0.1]:{}: steered_weight", vip.port());
        if on {
            until("three lines", || lines(&agent, &["revgate::trace", &line]), |said| said.len() == 3);
        } else {
            assert_eq!(lines(&agent, &["revgate::trace"]), [""; 0]);
        }
        for hook in ["connect4", "connect6", "count"] {
            assert_eq!(node.attached(hook).len(), 1, "{hook}");
        }
        agent.kill();
        assert_eq!(dial(vip).unwrap(), endpoint, "with nobody to read the lines");
    }
    let object = kernel::object().unwrap();
    assert!(!object.windows(8).any(|bytes| bytes == b"AYA_LOGS"), "the object that runs by default");
}

#[test]
fn status_shows_what_is_still_open_on_a_draining_revision_and_the_lease() {
    let Some(node) = empty("status") else { return };
    let vip = decoy("127.152.0.1");
    let ((_, a), (b_endpoint, b)) = (revision(152, 1, "a"), revision(152, 2, "b"));
    let mut agent = Agent::prepare(AGENT, &node, "30s", &vip_line(vip));
    agent.pods(&a);
    agent.start();
    let open: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(vip).unwrap()).collect();

    // a loses its prefill Pod: it drains.
    agent.pods(&[&a[..1], &b].concat());
    let look = || (0..20).all(|_| dial(vip).unwrap() == b_endpoint);
    until("b alone gets new connections", look, |there| *there);
    let revisions = || {
        let status: Value = serde_json::from_str(&agent.status("json")).unwrap();
        let revisions = status["sets"][0]["revisions"].as_array().unwrap();
        let of = |r: &Value| {
            let name = r["name"].as_str().unwrap().to_owned();
            (name, r["eligible"].as_bool().unwrap(), r["connections"].as_u64().unwrap())
        };
        revisions.iter().map(of).collect::<Vec<_>>()
    };
    until("b has none left", revisions, |seen| *seen == [("a".into(), false, 3), ("b".into(), true, 0)]);
    drop(open);
    until("a has none left", revisions, |seen| seen[0] == ("a".into(), false, 0));

    let status: Value = serde_json::from_str(&agent.status("json")).unwrap();
    let kernel = &status["kernel"];
    assert_eq!(kernel["leaseSeconds"].as_f64(), Some(30.0));
    let left = kernel["leaseLeftSeconds"].as_f64().unwrap();
    assert!(left > 0.0 && left <= 30.0, "{left}");
    assert_eq!(kernel["takeoverPending"].as_bool(), Some(false));
    assert_eq!(status["vips"][0]["whenAgentGone"].as_str(), Some("keep"));
    assert!(agent.status("table").contains("fence enforce, lease "));
    agent.kill();
}
