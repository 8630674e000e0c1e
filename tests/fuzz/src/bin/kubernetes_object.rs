//! Fuzzes what an API server sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| revgate::fuzz::kubernetes_object(data));
