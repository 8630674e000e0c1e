//! The IPv6 words of the context, one by one.
//!
//! The verifier allows only loads and stores at constant offsets from the context itself. Copying the array as a
//! whole makes the compiler take its address first ("dereference of modified ctx ptr"); volatile words do not.

use aya_ebpf::bindings::bpf_sock_addr;

/// `user_ip6`, in network order.
#[inline(always)]
pub(crate) fn read(from: &bpf_sock_addr) -> [u32; 4] {
    // SAFETY: references to fields of a valid context.
    unsafe {
        [
            (&raw const from.user_ip6[0]).read_volatile(),
            (&raw const from.user_ip6[1]).read_volatile(),
            (&raw const from.user_ip6[2]).read_volatile(),
            (&raw const from.user_ip6[3]).read_volatile(),
        ]
    }
}

/// Sets `user_ip6`, in network order.
#[inline(always)]
pub(crate) fn write(to: &mut bpf_sock_addr, ip: &[u32; 4]) {
    // SAFETY: references to fields of a valid context.
    unsafe {
        (&raw mut to.user_ip6[0]).write_volatile(ip[0]);
        (&raw mut to.user_ip6[1]).write_volatile(ip[1]);
        (&raw mut to.user_ip6[2]).write_volatile(ip[2]);
        (&raw mut to.user_ip6[3]).write_volatile(ip[3]);
    }
}
