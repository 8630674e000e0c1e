//! What the process itself uses, for the `process_*` series that every exporter has.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads so far, in seconds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "seconds of CPU time stay far below 2^52")]
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Resident memory in bytes; `None` without /proc.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    resident(&fs::read_to_string("/proc/self/status").ok()?)
}

/// Open file descriptors; `None` without /proc.
#[must_use]
pub fn open_descriptors() -> Option<usize> {
    // One of them is that of the directory being read.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

/// `VmRSS` of a /proc/PID/status, which is in kB, see `proc_pid_status(5)`.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_process() {
        assert!(resident_bytes().unwrap() > 1 << 20);
        assert!(cpu_seconds() > 0.0);
        assert!(open_descriptors().unwrap() >= 3);
    }

    #[test]
    fn a_strange_status_gives_nothing() {
        assert_eq!(resident("Name: x\nVmRSS:\t  12 kB\n"), Some(12 * 1024));
        assert_eq!(resident("Name: x\n"), None);
        assert_eq!(resident("VmRSS: many\n"), None);
    }
}
