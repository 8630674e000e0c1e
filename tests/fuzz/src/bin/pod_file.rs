//! Fuzzes the Pod file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| revgate::fuzz::pod_file(data));
