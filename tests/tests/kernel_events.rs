//! What the agent hears of denied connects (K11), and that nothing else changes when it does not listen.
#![cfg(test)]

use std::{net::SocketAddr, os::fd::AsFd, thread};

use revgate::{config::FenceMode, kernel::Incoming, observe::denied_log::Denied};
use revgate_common::{
    address::Address,
    counter::Counter,
    layout::{CALLER_AGENT, CALLER_PINNED, CALLER_PROCESS, EVENTS_PER_WINDOW, Event, PIN_AGENT, Pin, Tenant},
};
use revgate_tests::{
    dial::{ECONNREFUSED, at, count, dial, dial_with, errno, pinned, tcp_socket},
    echo,
    node::{self, Node},
    world::{Revision, World},
};
use socket2::Domain;

/// A member of each of two revisions, a Pod of a, and a VIP of b's role for members only.
struct Stage {
    a: SocketAddr,
    b: SocketAddr,
    vip: SocketAddr,
}

impl Stage {
    fn on(net: u8) -> Self {
        let tcp = |host: &str| echo::tcp(&format!("127.{net}.{host}"));
        Self { a: tcp("1.1"), b: tcp("2.1"), vip: at(&format!("127.{net}.0.1:80")) }
    }

    fn world(&self) -> World {
        World::of(vec![
            Revision::new("a", 0, 1, &[&[], &[self.a]]),
            Revision::new("b", 1, 2, &[&[], &[self.b]]),
        ])
        .vip(self.vip, 1, true)
    }
}

#[test]
fn an_event_says_who_dialled_whom_and_what_became_of_it() {
    let Some(mut node) = Node::enter("events", FenceMode::Enforce) else { return };
    let stage = Stage::on(160);
    let (in_a, pod) = node.pod_cgroup("a");
    let snapshot = stage.world().source(pod, "a").snapshot(1);
    node.publish(&snapshot);
    let mut events = node.kernel().events().unwrap();
    let own = revgate::kernel::cgroup::id(node.cgroup()).unwrap();
    // Pods are looked for at one level here; at level 0 is the root of all.
    let expected = |pod, to: SocketAddr, outcome: Counter, caller, (set, slot, epoch)| Event {
        cgroup: if pod == 0 { own } else { pod },
        ancestors: [pod, 1, 1, 1],
        to: to.into(),
        outcome: outcome as u32,
        caller,
        protocol: 6,
        tenant: Tenant { set, slot, epoch },
    };

    assert!(node::inside(&in_a, node.cgroup(), || dial(stage.b)).is_err());
    let event = events.take().unwrap();
    assert_eq!(event, expected(pod.id, stage.b, Counter::DeniedFence, CALLER_PROCESS, (0, 0, 0)));
    let line = Denied::of(&event, &snapshot).unwrap().to_string();
    assert!(line.contains("(revision a of chat) to Pod test/pod-127.160.2.1 (revision b of chat)"), "{line}");

    assert!(dial_with(&pinned(&node, 1, 9, None, Domain::IPV4), stage.vip).is_err());
    let refused = expected(0, stage.vip, Counter::DeniedStalePin, CALLER_PINNED, (0, 1, 9));
    assert_eq!(events.take(), Some(refused));

    assert!(dial(stage.vip).is_err());
    let foreign = expected(0, stage.vip, Counter::DeniedForeign, CALLER_PROCESS, (0, 0, 0));
    assert_eq!(events.take(), Some(foreign));

    let socket = tcp_socket(Domain::IPV4);
    let pin = Pin { endpoint: Address::default(), kind: PIN_AGENT, tenant: Tenant::default() };
    node.pinner().pin(socket.as_fd(), &pin).unwrap();
    assert!(dial_with(&socket, stage.vip).is_err());
    let unpinned = expected(0, stage.vip, Counter::DeniedUnpinnedAgent, CALLER_AGENT, (0, 0, 0));
    assert_eq!(events.take(), Some(unpinned));

    // What is let through is nobody's business.
    dial(stage.a).unwrap();
    assert_eq!(events.take(), None);
    let account = node.reader().events().unwrap();
    assert_eq!((account.sent, account.skipped, account.lost), (4, 0, 0));
}

#[test]
fn audit_tells_what_it_lets_through_and_whoever_waits_is_woken() {
    let Some(mut node) = Node::enter("eventsaudit", FenceMode::Audit) else { return };
    let stage = Stage::on(161);
    let (in_a, pod) = node.pod_cgroup("a");
    node.publish(&stage.world().source(pod, "a").snapshot(1));
    let events = node.kernel().events().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let home = node.cgroup().to_path_buf();
    let _inside = runtime.enter();
    let mut incoming = Incoming::new(events).unwrap();
    for _ in 0..3 {
        let dialled = thread::scope(|scope| {
            let dialling = scope.spawn(|| node::inside(&in_a, &home, || dial(stage.b)));
            let event = runtime
                .block_on(async { tokio::time::timeout(echo::PATIENCE, incoming.next()).await })
                .expect("woken")
                .unwrap();
            assert_eq!((event.outcome, event.cgroup), (Counter::AuditedFence as u32, pod.id));
            dialling.join().unwrap()
        });
        assert_eq!(dialled.unwrap(), stage.b);
    }
}

#[test]
fn when_nobody_listens_events_are_lost_and_nothing_else() {
    let Some(mut node) = Node::enter("eventslost", FenceMode::Enforce) else { return };
    let stage = Stage::on(162);
    node.publish(&stage.world().snapshot(1));
    let mut denied = 0;
    loop {
        for _ in 0..64 {
            let socket = pinned(&node, 0, 1, None, Domain::IPV4);
            assert_eq!(errno(&dial_with(&socket, stage.b)), ECONNREFUSED);
        }
        denied += 64;
        let account = node.reader().events().unwrap();
        assert_eq!(account.sent + account.skipped + account.lost, denied, "each is accounted for");
        if account.lost > 0 {
            assert!(account.skipped > 0, "a storm is sampled: {account:?}");
            break;
        }
    }
    assert_eq!(count(&node, Counter::DeniedFence), denied, "the counters miss none");
    assert!(denied > EVENTS_PER_WINDOW);
    assert_eq!(dial_with(&pinned(&node, 0, 1, None, Domain::IPV4), stage.a).unwrap(), stage.a);

    // The next agent starts with what happens from then on.
    node.stop();
    node.restart();
    let mut events = node.kernel().events().unwrap();
    assert_eq!(events.take(), None);
    assert!(dial_with(&pinned(&node, 0, 1, None, Domain::IPV4), stage.b).is_err());
    while events.take().is_none_or(|event| event.to != stage.b.into()) {
        // This window may be full.
        assert!(dial_with(&pinned(&node, 0, 1, None, Domain::IPV4), stage.b).is_err());
    }
}
