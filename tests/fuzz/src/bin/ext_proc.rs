//! Fuzzes a gateway's messages, any sequence of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| revgate::fuzz::ext_proc(data));
