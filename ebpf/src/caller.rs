//! Who connects: a process is known by its Pod's cgroup, some levels above its container's.

use aya_ebpf::helpers::bpf_get_current_ancestor_cgroup_id;
use revgate_common::layout::{SOURCE_LEVELS, SOURCE_MEMBER, Source};

use crate::maps;

/// What [`source`] returns for a process that is no member's. No member has it: its slot would be out of bounds.
const STRANGER: u64 = u64::MAX;

/// The member Pod that the process is of, as [`Tenant::bits`](revgate_common::layout::Tenant::bits).
///
/// A function of its own for the verifier, see [`fate`](crate::fate).
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn source() -> u64 {
    let Some(whose) = maps::sources() else { return STRANGER };
    let mut levels = levels();
    let mut tried = 0;
    // Not a range: its iterator costs the verifier more than all the rest.
    while tried < SOURCE_LEVELS && levels != 0 {
        if let Some(source) = whose(ancestor(levels)) {
            if source.kind != SOURCE_MEMBER {
                break;
            }
            return source.tenant.bits();
        }
        levels >>= 8;
        tried += 1;
    }
    STRANGER
}

/// What [`source`] found.
#[inline(always)]
pub(crate) fn unpack(found: u64) -> Option<Source> {
    (found != STRANGER).then(|| Source { tenant: bytemuck::cast(found), kind: SOURCE_MEMBER, zero: 0 })
}

/// The cgroups of the process at the levels at which Pods' cgroups are. Straight on, with nothing for the verifier to
/// walk twice.
#[inline(always)]
pub(crate) fn ancestors() -> [u64; SOURCE_LEVELS] {
    let levels = levels();
    [ancestor(levels), ancestor(levels >> 8), ancestor(levels >> 16), ancestor(levels >> 24)]
}

/// The levels, as in the settings.
#[inline(always)]
fn levels() -> u32 {
    maps::settings().map_or(0, |settings| settings.source_levels)
}

/// The cgroup above the process (or its own) at the level in the lowest byte; 0 for a level below its own.
#[inline(always)]
fn ancestor(level: u32) -> u64 {
    // SAFETY: a helper without memory arguments.
    unsafe { bpf_get_current_ancestor_cgroup_id((level & 0xff).cast_signed()) }
}
