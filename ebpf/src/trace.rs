//! A line for every decision, for diagnosis only: in the object that is built with the feature `trace`, and nothing at all
//! in the other.
//!
//! The lines go to the agent through a ring buffer of their own, which belongs to the loaded programs and is pinned
//! nowhere.

#[cfg(feature = "trace")]
use aya_ebpf::helpers::bpf_get_current_cgroup_id;
use revgate_common::address::Address;

/// Writes what became of a connect to `to`.
///
/// A function of its own for the verifier, see [`fate`](crate::fate).
#[cfg(feature = "trace")]
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn decided(to: *const Address, outcome: u32) -> u32 {
    // SAFETY: the caller hands over its own address, and the verifier asks for the check; a helper without arguments.
    let (to, cgroup) = unsafe { (to.as_ref(), bpf_get_current_cgroup_id()) };
    let Some(to) = to else { return outcome };
    let ip: [u8; 16] = bytemuck::cast(to.ip);
    let port = u16::from_be(to.port);
    aya_log_ebpf::info!((), "cgroup {} to [{:i}]:{}: {}", cgroup, ip, port, outcome);
    outcome
}

/// As nothing is traced: nothing.
#[cfg(not(feature = "trace"))]
#[inline(always)]
pub(crate) fn decided(_to: *const Address, outcome: u32) -> u32 {
    outcome
}
