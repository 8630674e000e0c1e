//! How the tests ask the kernel for a decision: a packet goes in with a [`Trial`], and comes out with an [`Answer`].
//!
//! `BPF_PROG_TEST_RUN` does not know the connect hooks (error 524), so a classifier that is never attached calls
//! the same decision on the same maps. Who is asking, and the draws, come out of the packet.

use bytemuck::{Pod, Zeroable};

use crate::{
    address::Address,
    decide::{Verdict, hides},
    layout,
};

/// The name of the program.
pub const PROGRAM: &str = "decide";

/// [`Trial::pin`] with this kind: the socket has no pin.
pub const NO_PIN: u32 = 0;

/// One connect.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct Trial {
    /// The cgroup of the caller.
    pub cgroup: u64,
    /// Where to.
    pub to: Address,
    /// 4 or 6: the socket's family.
    pub family: u32,
    /// The socket's pin; kind [`NO_PIN`]: none.
    pub pin: layout::Pin,
    /// The draw for the revision.
    pub draw_revision: u32,
    /// The draw for the endpoint.
    pub draw_endpoint: u32,
    /// 1: the agent's lease has run out.
    pub lapsed: u32,
    /// Always 0.
    pub zero: u32,
}

/// [`Answer::verdict`]: goes on unchanged.
pub const PASS: u32 = 1;
/// [`Answer::verdict`]: goes on, would have been fenced.
pub const AUDIT: u32 = 2;
/// [`Answer::verdict`]: steered.
pub const STEER: u32 = 3;
/// [`Answer::verdict`]: denied.
pub const DENY: u32 = 4;

/// A [`Verdict`], flat.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
pub struct Answer {
    /// [`PASS`], [`AUDIT`], [`STEER`] or [`DENY`].
    pub verdict: u32,
    /// The counter of a steer or deny.
    pub counter: u32,
    /// Where to.
    pub endpoint: Address,
    /// 1: `getpeername` answers the VIP.
    pub hidden: u32,
    /// Of which revision.
    pub tenant: layout::Tenant,
}

impl From<Verdict> for Answer {
    #[inline(always)]
    fn from(verdict: Verdict) -> Self {
        let flat = Self::default();
        match verdict {
            Verdict::Pass => Self { verdict: PASS, ..flat },
            Verdict::Audit => Self { verdict: AUDIT, ..flat },
            Verdict::Deny(counter) => Self { verdict: DENY, counter: counter as u32, ..flat },
            Verdict::Steer(steer) => Self {
                verdict: STEER,
                counter: steer.how as u32,
                endpoint: steer.endpoint,
                tenant: steer.tenant,
                hidden: u32::from(hides(steer.how as u32)),
            },
        }
    }
}
