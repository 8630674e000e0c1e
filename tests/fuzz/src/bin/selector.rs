//! Fuzzes label selectors.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| revgate::fuzz::selector(data));
