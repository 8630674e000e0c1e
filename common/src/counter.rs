//! The outcomes that the kernel programs count, one per-CPU counter each.

/// An outcome of a connect, an index into the `COUNTERS` map.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counter {
    /// A connect to a VIP was steered by the socket's pin.
    SteeredPin = 0,
    /// A connect to a VIP was steered to the dialling Pod's own revision.
    SteeredOwn = 1,
    /// A connect to a VIP was steered by the weights.
    SteeredWeight = 2,
    /// A pinned endpoint was gone and another of the same revision and role was taken.
    Repicked = 3,
    /// Denied: the pin's slot or epoch is not that of a live revision of the VIP's set.
    DeniedStalePin = 4,
    /// Denied: the revision has no endpoint of that role (or of a family that the socket can reach).
    DeniedNoEndpoint = 5,
    /// Denied: no revision of the set is eligible, or its table is not written yet.
    DeniedNoRevision = 6,
    /// Denied: an agent socket without a pin dialled a VIP.
    DeniedUnpinnedAgent = 7,
    /// Denied by the fence: another revision of the same set.
    DeniedFence = 8,
    /// Audit mode: would have been denied by the fence.
    AuditedFence = 9,
    /// A table that must exist was missing or malformed: denied, and worth an alert.
    DeniedBroken = 10,
    /// Denied: the VIP serves only members of its set, or is an anchor of the agent, and the caller is neither.
    DeniedForeign = 11,
    /// Denied: the agent is gone for longer than its lease, and the VIP is set to deny then.
    DeniedLease = 12,
    /// The agent's own probe, denied as it is to be: by this the agent knows that the programs act.
    Probed = 13,
}

impl Counter {
    /// Every counter, in index order.
    pub const ALL: [Self; 14] = [
        Self::SteeredPin,
        Self::SteeredOwn,
        Self::SteeredWeight,
        Self::Repicked,
        Self::DeniedStalePin,
        Self::DeniedNoEndpoint,
        Self::DeniedNoRevision,
        Self::DeniedUnpinnedAgent,
        Self::DeniedFence,
        Self::AuditedFence,
        Self::DeniedBroken,
        Self::DeniedForeign,
        Self::DeniedLease,
        Self::Probed,
    ];

    /// The word that stands for this outcome in metrics, logs and status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SteeredPin => "steered_pin",
            Self::SteeredOwn => "steered_own",
            Self::SteeredWeight => "steered_weight",
            Self::Repicked => "repicked",
            Self::DeniedStalePin => "denied_stale_pin",
            Self::DeniedNoEndpoint => "denied_no_endpoint",
            Self::DeniedNoRevision => "denied_no_revision",
            Self::DeniedUnpinnedAgent => "denied_unpinned_agent",
            Self::DeniedFence => "denied_fence",
            Self::AuditedFence => "audited_fence",
            Self::DeniedBroken => "denied_broken",
            Self::DeniedForeign => "denied_foreign",
            Self::DeniedLease => "denied_lease",
            Self::Probed => "probed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Counter;

    #[test]
    fn the_list_is_in_index_order_and_whole() {
        for (index, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, index);
        }
    }
}
