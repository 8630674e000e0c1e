//! Fuzzes the edit of an answer on its way, a stream of events or one object.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| revgate::fuzz::cached_tokens(data));
