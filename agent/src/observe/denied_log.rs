//! One log line per denied connection (O4, K11), with the Pods and revisions of both ends, and not one too many.
//!
//! The kernel programs know numbers: cgroups, addresses, slots. The published snapshot has the names. What repeats
//! itself is said once per window, and no window has more than so many lines; each line says how many were left out.

use std::{
    collections::HashSet,
    fmt,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use revgate_common::{
    counter::Counter,
    layout::{self, CALLER_AGENT, CALLER_PINNED, Event, Tenant},
};
use tracing::warn;

use crate::{
    cluster::PodKey,
    snapshot::{RevisionView, SetView, Snapshot},
};

/// How long a caller, an address and an outcome are not named again.
const WINDOW: Duration = Duration::from_secs(10);
/// Most lines in that time.
const MAX_LINES: usize = 20;

/// Which events get a line.
#[derive(Debug, Default)]
pub struct Limit {
    since: Option<Instant>,
    told: HashSet<(u64, u32, IpAddr, u32)>,
    untold: u64,
}

impl Limit {
    /// Whether an event gets a line now; then, how many got none since the last line.
    pub fn admit(&mut self, event: &Event, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            self.since = Some(now);
            self.told.clear();
        }
        let key = (event.cgroup, event.tenant.epoch, SocketAddr::from(event.to).ip(), event.outcome);
        if self.told.contains(&key) || self.told.len() >= MAX_LINES {
            self.untold += 1;
            return None;
        }
        self.told.insert(key);
        Some(std::mem::take(&mut self.untold))
    }
}

/// An event with names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denied {
    /// What was counted.
    pub outcome: Counter,
    /// What was dialled.
    pub to: SocketAddr,
    /// Who dialled.
    pub caller: String,
    /// Whose address it is.
    pub target: String,
}

impl Denied {
    /// Names both ends. `None`: nothing to tell, as of the agent's own probe.
    #[must_use]
    pub fn of(event: &Event, snapshot: &Snapshot) -> Option<Self> {
        let outcome = Counter::ALL.into_iter().find(|counter| *counter as u32 == event.outcome)?;
        let to = SocketAddr::from(event.to);
        if outcome == Counter::Probed {
            return None;
        }
        let target = anchor(event, snapshot).or_else(|| vip(to, snapshot)).or_else(|| member(to, snapshot));
        Some(Self {
            outcome,
            to,
            caller: caller(event, snapshot),
            target: target.unwrap_or_else(|| "an address that is no member's any more".to_owned()),
        })
    }

    /// Writes the line. `left_out`: so many had none since the line before.
    pub fn log(&self, left_out: u64) {
        warn!(target: "revgate::denied", outcome = self.outcome.name(), to = %self.to, left_out, "{self}");
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caller, target, .. } = self;
        let (verb, why) = match self.outcome {
            Counter::AuditedFence => ("would be refused", "another revision"),
            Counter::DeniedFence => ("refused", "another revision"),
            Counter::DeniedStalePin => ("refused", "the revision of the pin has left"),
            Counter::DeniedNoEndpoint => ("denied", "its revision has no endpoint there"),
            Counter::DeniedNoRevision => ("denied", "no revision to steer to"),
            Counter::DeniedUnpinnedAgent => ("denied", "the agent dials a VIP without a pin"),
            Counter::DeniedForeign => ("denied", "only members of its set may dial it"),
            Counter::DeniedLease => ("denied", "the agent was gone for longer than its lease"),
            _ => ("denied", "the kernel tables are broken"),
        };
        write!(f, "{verb}: {caller} to {target}: {why}")
    }
}

fn caller(event: &Event, snapshot: &Snapshot) -> String {
    let revision = |set: usize, slot, epoch| {
        let set = snapshot.sets.get(set);
        let tenant = set.and_then(|set| Some((set, tenant(set, slot, epoch)?)));
        tenant.map_or_else(
            || "a revision that has left".to_owned(),
            |(set, revision)| format!("revision {} of {}", revision.name, set.name),
        )
    };
    match event.caller {
        CALLER_PINNED => {
            let Tenant { set, slot, epoch } = event.tenant;
            let revision = revision(set.into(), slot, epoch);
            return format!("a socket of this agent pinned to {revision}");
        }
        CALLER_AGENT => return "a socket of this agent".to_owned(),
        _ => {}
    }
    let known = |cgroup| event.ancestors.contains(&cgroup);
    let Some(source) = snapshot.sources.iter().find(|source| known(source.cgroup.id)) else {
        return format!("a process of no known Pod (cgroup id {})", event.cgroup);
    };
    format!("{} ({})", name(&source.pod), revision(source.set, source.slot, source.epoch))
}

fn tenant(set: &SetView, slot: u16, epoch: u32) -> Option<&RevisionView> {
    set.revisions.iter().find(|revision| (revision.slot, revision.epoch) == (slot, epoch))
}

fn anchor(event: &Event, snapshot: &Snapshot) -> Option<String> {
    let mut roles = (0_u8..).zip(&snapshot.sets).flat_map(|(index, set)| {
        (0_u8..).zip(set.roles.iter()).map(move |(role, name)| (layout::anchor(index, role), set, name))
    });
    let (_, set, role) = roles.find(|(address, ..)| *address == event.to)?;
    Some(format!("{role} of {}", set.name))
}

fn vip(to: SocketAddr, snapshot: &Snapshot) -> Option<String> {
    let vip = snapshot.vips.iter().find(|vip| vip.address == to)?;
    let set = snapshot.sets.get(vip.set)?;
    Some(format!("the VIP of {}'s {}", set.name, set.roles.get(vip.role)?))
}

/// By endpoint first: Pods on their node's network share an address.
fn member(to: SocketAddr, snapshot: &Snapshot) -> Option<String> {
    let revisions = || snapshot.sets.iter().flat_map(|set| set.revisions.iter().map(move |r| (set, r)));
    let endpoint = revisions().find_map(|(set, revision)| {
        let endpoint = revision.endpoints.iter().flatten().find(|endpoint| endpoint.address == to)?;
        Some((set, revision, &endpoint.pod))
    });
    let (set, revision, pod) = endpoint.or_else(|| {
        revisions().find_map(|(set, revision)| {
            let pod = revision.members.iter().find(|pod| pod.ips.contains(&to.ip()))?;
            Some((set, revision, pod))
        })
    })?;
    Some(format!("{} (revision {} of {})", name(&pod.key), revision.name, set.name))
}

fn name(pod: &PodKey) -> String {
    format!("Pod {}/{}", pod.namespace, pod.name)
}

#[cfg(test)]
mod tests {
    use revgate_common::layout::CALLER_PROCESS;

    use super::*;
    use crate::{
        cluster::Cgroup,
        observe::testing::{SetBuilder, snapshot},
        snapshot::SourceView,
    };

    fn event(to: &str, outcome: Counter, caller: u32) -> Event {
        Event {
            cgroup: 78,
            ancestors: [0, 77, 0, 0],
            to: to.parse::<SocketAddr>().unwrap().into(),
            outcome: outcome as u32,
            caller,
            protocol: 6,
            tenant: Tenant { set: 0, slot: 0, epoch: 1 },
        }
    }

    /// Revisions a (slot 0) and b; the first decode Pod of a has cgroup 77.
    fn rollout() -> Snapshot {
        let mut snapshot =
            snapshot(1, vec![SetBuilder::new("chat").revision("a", [1, 1]).revision("b", [1, 1]).build()]);
        let pod = snapshot.sets[0].revisions[0].members[1].key.clone();
        let cgroup = Cgroup { id: 77, level: 2 };
        snapshot.sources.push(SourceView { cgroup, pod, set: 0, slot: 0, epoch: 1 });
        snapshot
    }

    fn line(event: &Event) -> String {
        Denied::of(event, &rollout()).unwrap().to_string()
    }

    #[test]
    fn a_line_names_both_pods_and_revisions_on_every_port() {
        let a = "Pod default/a-1-0 (revision a of chat)";
        for port in [8000, 5557] {
            let to = format!("127.2.0.1:{port}");
            assert_eq!(
                line(&event(&to, Counter::DeniedFence, CALLER_PROCESS)),
                format!("refused: {a} to Pod default/b-0-0 (revision b of chat): another revision")
            );
        }
        assert!(
            line(&event("127.2.0.1:8000", Counter::AuditedFence, CALLER_PROCESS))
                .starts_with("would be refused: ")
        );
    }

    #[test]
    fn vips_anchors_strangers_and_those_who_have_left_are_told_as_such() {
        let mut stranger = event("127.0.90.1:80", Counter::DeniedForeign, CALLER_PROCESS);
        stranger.ancestors = [0; 4];
        assert_eq!(
            line(&stranger),
            "denied: a process of no known Pod (cgroup id 78) to the VIP of chat's decode: only members of its set \
             may dial it"
        );
        let mut stale = event("127.127.0.0:9", Counter::DeniedStalePin, CALLER_PINNED);
        stale.tenant.epoch = 9;
        assert_eq!(
            line(&stale),
            "refused: a socket of this agent pinned to a revision that has left to prefill of chat: the revision of \
             the pin has left"
        );
        let mut left = rollout();
        left.sources[0].epoch = 9;
        stale.caller = CALLER_PROCESS;
        stale.ancestors = [0, 0, 0, 77];
        let told = Denied::of(&stale, &left).unwrap();
        assert_eq!(told.caller, "Pod default/a-1-0 (a revision that has left)");
        assert!(
            line(&event("127.9.9.9:1", Counter::DeniedFence, CALLER_AGENT)).contains("no member's any more")
        );
    }

    #[test]
    fn the_probe_of_the_agent_is_no_news_and_nonsense_is_ignored() {
        assert_eq!(Denied::of(&event("127.127.255.255:9", Counter::Probed, 0), &rollout()), None);
        let mut event = event("127.2.0.1:8000", Counter::DeniedFence, 99);
        event.outcome = u32::MAX;
        assert_eq!(Denied::of(&event, &rollout()), None);
        // Sets, slots and roles that do not exist.
        event.outcome = Counter::DeniedFence as u32;
        event.tenant = Tenant { set: u16::MAX, slot: u16::MAX, ..event.tenant };
        for caller in 0..5 {
            event.caller = caller;
            assert!(Denied::of(&event, &rollout()).is_some());
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    fn repetition_and_storms_are_counted_and_not_told() {
        let start = Instant::now();
        let mut limit = Limit::default();
        let first = event("127.2.0.1:8000", Counter::DeniedFence, CALLER_PROCESS);
        assert_eq!(limit.admit(&first, start), Some(0));
        // The same Pod at another port of the same member, again and again.
        for port in 1..=5 {
            assert_eq!(
                limit.admit(&event(&format!("127.2.0.1:{port}"), Counter::DeniedFence, 3), start),
                None
            );
        }
        assert_eq!(limit.admit(&event("127.2.0.2:8000", Counter::DeniedFence, 3), start), Some(5));
        let told = (0..=255).filter(|n| {
            limit.admit(&event(&format!("127.3.0.{n}:1"), Counter::DeniedFence, 3), start).is_some()
        });
        assert_eq!(told.count(), MAX_LINES - 2);
        assert_eq!(limit.admit(&first, start + WINDOW), Some(256 - (MAX_LINES as u64 - 2)));
    }
}
