//! Fuzzes the configuration file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| revgate::fuzz::config(data));
