//! What the kernel part needs, looked at one by one without changing anything: for `revgate check`.

use std::path::Path;

use rustix::thread::CapabilitySet;

use super::{cgroup, object, pins};
use crate::config::KernelConfig;

/// One precondition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// It is as it must be.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// What to do about it; empty when it is fine.
    pub fix: String,
}

impl Check {
    fn new(name: &'static str, ok: bool, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, ok, detail: detail.into(), fix: if ok { String::new() } else { fix.into() } }
    }
}

/// The kernel's own type information, which the loader matches the object's with.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Every precondition, in the order in which they matter.
#[must_use]
pub fn checks(config: &KernelConfig) -> Vec<Check> {
    let capabilities = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let capabilities = capabilities.unwrap_or(CapabilitySet::empty());
    let mut checks = vec![
        Check::new(
            "kernel programs",
            object::bytes().is_some(),
            if object::bytes().is_some() { "in this binary" } else { "not in this binary" },
            "install the tools with `make setup` and build the agent again",
        ),
        capability(capabilities, CapabilitySet::BPF, "CAP_BPF"),
        capability(capabilities, CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    ];
    checks.push(match cgroup::find(config.cgroup.as_deref()) {
        Ok(path) => {
            let found = cgroup::partial(&path).unwrap_or_else(|| path.display().to_string());
            Check::new("cgroup2", true, found, "")
        }
        // These errors say what to do.
        Err(error) => Check::new("cgroup2", false, "not usable", error.to_string()),
    });
    let mount = config.bpffs.display();
    checks.push(match (pins::is_bpffs(&config.bpffs), pins::is_read_only(&config.bpffs)) {
        (false, _) => {
            let fix = format!("mount -t bpf bpf {mount}");
            Check::new("bpffs", false, format!("{mount} is not a bpffs"), fix)
        }
        (true, true) => {
            let fix = format!("mount -o remount,rw {mount}");
            Check::new("bpffs", false, format!("{mount} is read-only"), fix)
        }
        (true, false) => Check::new("bpffs", true, mount.to_string(), ""),
    });
    let btf = Path::new(KERNEL_BTF).exists();
    checks.push(Check::new(
        "kernel BTF",
        btf,
        if btf { KERNEL_BTF } else { "none" },
        "run a kernel with CONFIG_DEBUG_INFO_BTF=y",
    ));
    checks
}

fn capability(has: CapabilitySet, wanted: CapabilitySet, name: &'static str) -> Check {
    // Kernels took CAP_SYS_ADMIN for everything before CAP_BPF was split off, and still do.
    let ok = has.contains(wanted) || (wanted == CapabilitySet::BPF && has.contains(CapabilitySet::SYS_ADMIN));
    Check::new(
        name,
        ok,
        if ok { "effective" } else { "missing" },
        format!("run as root, or add {name} to the container's securityContext.capabilities"),
    )
}
