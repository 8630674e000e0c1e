//! Fuzzes the edits of a request body, and what a prefill's reply hands on.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| revgate::fuzz::json_edit(data));
