//! What the kernel part needs, looked at one by one without changing anything: for `revgate check`.

use std::{
    fs::File,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use aya::programs::loaded_programs;
use rustix::thread::CapabilitySet;

use super::{
    cgroup::{self, CgroupError},
    object::{self, HOOKS, Hook},
    pins::{self, Pins},
    sys,
};
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
    fn pass(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, ok: true, detail: detail.into(), fix: String::new() }
    }

    fn fail(name: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, ok: false, detail: detail.into(), fix: fix.into() }
    }
}

/// The kernel's own type information, which the loader matches the object's with.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The first kernel with everything that the programs call: `bpf_set_retval` came last.
const OLDEST: (u32, u32) = (5, 18);

/// Every precondition, in the order in which they matter.
#[must_use]
pub fn checks(config: &KernelConfig) -> Vec<Check> {
    let built = object::bytes().is_some();
    let capabilities = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let capabilities = capabilities.unwrap_or(CapabilitySet::empty());
    let found = cgroup::find(config.cgroup.as_deref());
    let mut checks = vec![
        if built {
            Check::pass("kernel programs", "in this binary")
        } else {
            let fix = "install the tools with `make setup` and build the agent again";
            Check::fail("kernel programs", "not in this binary", fix)
        },
        version(&rustix::system::uname().release().to_string_lossy()),
        capability(capabilities, CapabilitySet::BPF, "CAP_BPF"),
        capability(capabilities, CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        match &found {
            Ok(path) => cgroup2(path),
            // These errors say what to do.
            Err(error) => Check::fail("cgroup2", unusable(error), error.to_string()),
        },
        bpffs(&config.bpffs),
    ];
    if let Ok(path) = &found {
        checks.extend(hooks(path, &config.bpffs));
    }
    checks.push(if Path::new(KERNEL_BTF).exists() {
        Check::pass("kernel BTF", KERNEL_BTF)
    } else {
        Check::fail("kernel BTF", "none", "run a kernel with CONFIG_DEBUG_INFO_BTF=y")
    });
    checks
}

fn version(release: &str) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if (major, minor) >= OLDEST {
        return Check::pass("kernel version", release);
    }
    let fix = format!("run Linux {}.{} or later; revgate is tested on 6.18", OLDEST.0, OLDEST.1);
    Check::fail("kernel version", format!("{release} is too old"), fix)
}

fn capability(has: CapabilitySet, wanted: CapabilitySet, name: &'static str) -> Check {
    // Kernels took CAP_SYS_ADMIN for everything before CAP_BPF was split off, and still do.
    let held = has.contains(wanted) || has.contains(CapabilitySet::SYS_ADMIN) && wanted == CapabilitySet::BPF;
    if !held {
        let fix = format!("run as root, or add {name} to the container's securityContext.capabilities");
        return Check::fail(name, "missing", fix);
    }
    if cgroup::in_host_user_namespace() {
        return Check::pass(name, "effective");
    }
    let fix =
        "run the agent in the host's user namespace (a Pod with hostUsers: true, no rootless container)";
    Check::fail(name, "only in a user namespace of its own, which bpf(2) does not count", fix)
}

fn cgroup2(path: &Path) -> Check {
    let layout = if cgroup::has_v1() { "hybrid" } else { "pure" };
    let found = cgroup::partial(path).unwrap_or_else(|| format!("{} ({layout})", path.display()));
    Check::pass("cgroup2", found)
}

/// What is wrong, in a few words; the error itself says what to do.
fn unusable(error: &CgroupError) -> &'static str {
    match error {
        CgroupError::NotMounted if cgroup::has_v1() => "only cgroup v1 is mounted",
        CgroupError::NotMounted => "not mounted",
        CgroupError::NotRoot { .. } => "only a part of it is in sight",
        CgroupError::NotCgroup2 { .. } => "kernel.cgroup is not on cgroup2",
        CgroupError::Io { .. } => "cannot be looked at",
    }
}

fn bpffs(mount: &Path) -> Check {
    let path = mount.display();
    let in_container = "in a container, mount the node's with a hostPath volume";
    if !pins::is_bpffs(mount) {
        let fix = format!("mount -t bpf bpf {path} ({in_container})");
        Check::fail("bpffs", format!("{path} is not a bpffs"), fix)
    } else if pins::is_read_only(mount) {
        let fix = format!("mount -o remount,rw {path} ({in_container}, not readOnly)");
        Check::fail("bpffs", format!("{path} is read-only"), fix)
    } else {
        Check::pass("bpffs", path.to_string())
    }
}

/// What others have on the hooks: programs beside which revgate runs, or one that lets nobody beside it. `None`: that
/// cannot be asked, for want of a capability that is missed already.
fn hooks(cgroup: &Path, bpffs: &Path) -> Option<Check> {
    let name = "cgroup hooks";
    let pins = Pins::below(bpffs);
    let mut others = Vec::new();
    for Hook { program, attach_type } in HOOKS {
        let ours = pins.open_link(program).ok().flatten();
        let ours = ours.and_then(|link| sys::link_info(link.as_fd()).ok().flatten()).map(|info| info.program);
        for at in cgroup_and_above(cgroup) {
            let attached = match File::open(&at).and_then(|at| sys::attached(at.as_fd(), attach_type)) {
                Ok(attached) => attached,
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    let fix = "run a kernel with CONFIG_CGROUP_BPF=y";
                    return Some(Check::fail(name, "this kernel has no programs of cgroups", fix));
                }
                Err(_) => return None,
            };
            let foreign: Vec<u32> = attached.programs.into_iter().filter(|id| Some(*id) != ours).collect();
            if let (true, [id, ..]) = (attached.alone, foreign.as_slice()) {
                let at = at.display();
                let detail =
                    format!("{} is on {program} of {at} alone, without BPF_F_ALLOW_MULTI", named(*id));
                let fix = format!(
                    "have its owner attach it with that flag, or detach it: bpftool cgroup detach {at} {program} id {id}"
                );
                return Some(Check::fail(name, detail, fix));
            }
            others.extend(foreign.into_iter().map(|id| format!("{} on {program}", named(id))));
        }
    }
    Some(Check::pass(
        name,
        if others.is_empty() { "free".to_owned() } else { format!("shared with {}", others.join(", ")) },
    ))
}

/// The cgroup, and those above it as far as they are mounted: a program on one of these runs in the cgroup too.
fn cgroup_and_above(cgroup: &Path) -> impl Iterator<Item = PathBuf> {
    cgroup.ancestors().take_while(|at| cgroup::is_cgroup2(at).unwrap_or(false)).map(Path::to_path_buf)
}

/// A program by its id, and its name where the kernel tells it (to `CAP_SYS_ADMIN`).
fn named(id: u32) -> String {
    let program = loaded_programs().filter_map(Result::ok).find(|program| program.id() == id);
    let name = program.and_then(|program| program.name_as_str().map(str::to_owned));
    name.map_or_else(|| format!("program {id}"), |name| format!("program {id} ({name})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_old_by_its_numbers_however_it_is_named() {
        for release in ["5.18.0", "6.1.0-13-amd64", "6.18.44-fc", "10.0-rc1"] {
            assert!(version(release).ok, "{release}");
        }
        for release in ["5.17.9", "5.4.0-150-generic", "4.18.0-553.el8.x86_64", "3.10", "", "linux"] {
            let check = version(release);
            assert!(!check.ok && check.fix.contains("5.18"), "{release}");
        }
    }

    #[test]
    fn each_missing_capability_is_named_and_an_older_kernels_name_for_it_counts() {
        let (none, admin) = (CapabilitySet::empty(), CapabilitySet::SYS_ADMIN);
        let bpf = |has| capability(has, CapabilitySet::BPF, "CAP_BPF");
        assert!(bpf(CapabilitySet::BPF).ok && bpf(admin).ok);
        assert_eq!((bpf(none).ok, bpf(none).fix.contains("CAP_BPF")), (false, true));
        let net = capability(admin, CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN");
        assert_eq!((net.ok, net.fix.contains("CAP_NET_ADMIN")), (false, true));
    }
}
