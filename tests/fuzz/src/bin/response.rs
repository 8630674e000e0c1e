//! Fuzzes an endpoint's response, its head and the framing of its body.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| revgate::fuzz::response(data));
