//! Fuzzes whose a cgroup is, by its path.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| revgate::fuzz::cgroup_path(data));
