//! One log line when a VIP comes, moves or goes with its Service (C8). The comparison is pure.

use std::net::SocketAddr;

use tracing::{info, warn};

use crate::snapshot::{Snapshot, Vip};

/// What happened to a VIP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// It is steered from now on.
    Came(SocketAddr, String),
    /// It is not any more.
    Went(SocketAddr, String),
    /// It is nowhere, for this reason.
    Missing(String, String),
}

/// The changes from one snapshot to the next: what went, what came, what is missing for a reason that is new.
#[must_use]
pub fn changes(old: &Snapshot, new: &Snapshot) -> Vec<Change> {
    let whose = |snapshot: &Snapshot, set: usize, role: usize| {
        let set = snapshot.sets.get(set);
        let role = set.and_then(|set| set.roles.get(role));
        format!("{}'s {}", set.map_or("", |set| &set.name), role.map_or("", |role| role))
    };
    let place = |vip: &Vip| (vip.address, vip.set, vip.role);
    let differs = |vip: &&Vip, there: &Snapshot| !there.vips.iter().any(|other| place(other) == place(vip));
    let went = old.vips.iter().filter(|vip| differs(vip, new));
    let came = new.vips.iter().filter(|vip| differs(vip, old));
    // Before the first list every Service is missing, and nobody knows.
    let missing = new.missing_vips.iter().filter(|vip| !old.synced || !old.missing_vips.contains(vip));
    went.map(|vip| Change::Went(vip.address, whose(old, vip.set, vip.role)))
        .chain(came.map(|vip| Change::Came(vip.address, whose(new, vip.set, vip.role))))
        .chain(missing.map(|vip| {
            let why = format!("no VIP at the Service {}: {}", vip.service, vip.why);
            Change::Missing(whose(new, vip.set, vip.role), why)
        }))
        .collect()
}

/// Writes the changes to the log, one line each.
pub fn log(changes: &[Change]) {
    for change in changes {
        match change {
            Change::Came(address, whose) => info!(%address, %whose, "a VIP is steered"),
            Change::Went(address, whose) => warn!(%address, %whose, "a VIP is steered no more"),
            Change::Missing(whose, why) => warn!(%whose, "{why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::ObjectName,
        observe::testing::{SetBuilder, snapshot},
        snapshot::MissingVip,
    };

    fn at(address: Option<&str>) -> Snapshot {
        let mut snapshot = snapshot(1, vec![SetBuilder::rollout().build()]);
        if let Some(address) = address {
            snapshot.vips[0].address = address.parse().unwrap();
        } else {
            snapshot.vips.clear();
            let service = ObjectName { namespace: "llm".into(), name: "decode".into() };
            let why = "there is no such Service".to_owned();
            snapshot.missing_vips = vec![MissingVip { service, set: 0, role: 1, why }];
        }
        snapshot
    }

    #[test]
    fn a_vip_that_moves_goes_and_comes_is_told_once() {
        let whose = || "chat's decode".to_owned();
        let (one, two) = ("10.0.0.1:80", "10.0.0.2:80");
        assert_eq!(changes(&at(Some(one)), &at(Some(one))), []);
        let moved =
            [Change::Went(one.parse().unwrap(), whose()), Change::Came(two.parse().unwrap(), whose())];
        assert_eq!(changes(&at(Some(one)), &at(Some(two))), moved);
        let missing = "no VIP at the Service llm/decode: there is no such Service".to_owned();
        let gone = [Change::Went(one.parse().unwrap(), whose()), Change::Missing(whose(), missing.clone())];
        assert_eq!(changes(&at(Some(one)), &at(None)), gone);
        assert_eq!(changes(&at(None), &at(None)), []);
        let before = Snapshot { synced: false, ..at(None) };
        assert_eq!(changes(&before, &at(None)), [Change::Missing(whose(), missing)]);
    }
}
