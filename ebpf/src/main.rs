//! The kernel programs of revgate.
//!
//! | program | hook | file |
//! |---|---|---|
//! | `connect4`, `connect6` | `connect` of TCP, MPTCP and UDP sockets | [`connect`] |
//! | `getpeername4`, `getpeername6` | `getpeername` | [`peer`] |
//! | `count` | TCP state changes | [`count`] |
//! | `decide` | none: runs a decision for tests (`BPF_PROG_TEST_RUN` does not know the connect hooks) | [`twin`] |
//!
//! Who is calling is in [`caller`], what follows a decision in [`fate`], its traces in [`peers`], [`events`] and, for diagnosis,
//! [`trace`]. What is decided is in `revgate_common::decide`; here is how the kernel is asked and told. Entry points return
//! what the hook expects: 1 goes on, 0 fails with the set return value.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![warn(unused_results)]
#![expect(
    clippy::inline_always,
    reason = "the verifier sees one flat program; calls on the connect path cost and confuse it"
)]
#![expect(clippy::needless_pass_by_value, reason = "aya's macros hand the context over by value")]
#![expect(unsafe_code, reason = "every line here speaks to the kernel")]

mod caller;
mod connect;
mod count;
mod ctx6;
mod events;
mod fate;
mod maps;
mod peer;
mod peers;
mod trace;
mod twin;

/// The licence that the kernel asks of a program that calls its GPL-only helpers.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Nothing panics: indices are masked to constant bounds, so the compiler drops the checks. The linker wants it.
#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
