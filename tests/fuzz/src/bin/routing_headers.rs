//! Fuzzes the head of a request: what it asks for, and what goes on of it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| revgate::fuzz::routing_headers(data));
