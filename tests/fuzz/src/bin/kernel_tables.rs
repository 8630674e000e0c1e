//! Fuzzes what pinned maps hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| revgate::fuzz::kernel_tables(data));
