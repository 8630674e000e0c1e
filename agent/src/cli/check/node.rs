//! The preconditions that this machine must meet for a configuration.

use std::{io, net::SocketAddr};

use socket2::{Domain, Socket, Type};

use super::{Precondition, api, many};
use crate::{
    cluster::{cgroups::CgroupWatch, file, member::member},
    config::{Config, KernelConfig, KernelMode, SourceConfig, TlsConfig},
    kernel::{cgroup, preflight},
    proxy::tls,
};

/// Every precondition of a configuration, in the order in which an agent needs them.
pub(super) fn preconditions(config: &Config) -> Vec<Precondition> {
    let mut found = source(config);
    found.push(bindable("admin address", config.agent.admin));
    for listener in &config.agent.listeners {
        found.push(bindable(&format!("listener {}", listener.name), listener.address));
        if let Some(files) = &listener.tls {
            found.push(usable(&format!("listener {} TLS", listener.name), files));
        }
    }
    found.extend(kernel(&config.agent.kernel));
    if config.agent.kernel.mode != KernelMode::Off {
        found.extend(local_pods());
    }
    found
}

/// Pods whose connects are known as theirs, of any set; `None` without a cgroup2 root, which is told already.
fn local_pods() -> Option<Precondition> {
    let name = "Pods' cgroups";
    let watch = CgroupWatch::new(cgroup::find(None).ok()?);
    if let Some(error) = watch.trouble() {
        let fix = "let the agent read the directories there";
        return Some(Precondition::warn(name, error.to_string(), fix));
    }
    let pods = many(watch.found().len(), "Pod");
    Some(if watch.is_blind() {
        let fix = "raise fs.inotify.max_user_watches and fs.inotify.max_user_instances";
        Precondition::warn(name, format!("{pods}; new ones without events, so a second late"), fix)
    } else {
        Precondition::pass(name, pods)
    })
}

/// What the kernel programs need. With `auto` the agent runs without them, so what is missing is a warning.
fn kernel(config: &KernelConfig) -> Vec<Precondition> {
    if config.mode == KernelMode::Off {
        return vec![Precondition::pass("kernel programs", "not wanted, kernel.mode is off")];
    }
    let verdict = |check: preflight::Check| match (check.ok, config.mode) {
        (true, _) => Precondition::pass(check.name, check.detail),
        (false, KernelMode::Required) => Precondition::fail(check.name, check.detail, check.fix),
        (false, _) => Precondition::warn(check.name, check.detail, check.fix),
    };
    preflight::checks(config).into_iter().map(verdict).collect()
}

/// The Pods can be read, and each set finds some: an empty set is most often a mistyped selector.
fn source(config: &Config) -> Vec<Precondition> {
    let path = match &config.agent.source {
        SourceConfig::File { path } => path,
        SourceConfig::Kubernetes(access) => return api::rights(config, access),
    };
    let listed = match file::read(path) {
        Ok(listed) => listed,
        Err(error) => {
            let fix = "write the Pods that the agent should know to that file, or change `source`";
            return vec![Precondition::fail("Pod file", error.to_string(), fix)];
        }
    };
    let mut found =
        vec![Precondition::pass("Pod file", format!("{}: {}", path.display(), many(listed.len(), "Pod")))];
    for set in &config.sets {
        let members = listed.iter().filter_map(|listed| member(&listed.pod, set));
        let (mut all, mut ready, mut endpoints) = (0, 0, 0);
        for member in members {
            all += 1;
            ready += usize::from(member.counts);
            endpoints += member.endpoints.len();
        }
        let name = format!("set {}", set.name);
        let counts = format!("{}, {ready} Ready, {}", many(all, "member"), many(endpoints, "endpoint"));
        found.push(if all == 0 {
            let fix = format!(
                "its Pods need the labels {} and {}, and those of its scope",
                set.revision_label, set.role_label
            );
            Precondition::warn(name, counts, fix)
        } else {
            Precondition::pass(name, counts)
        });
    }
    found
}

/// Whether an agent may listen there. Binds without listening, so no client can notice.
fn bindable(name: &str, address: SocketAddr) -> Precondition {
    match bind(address) {
        Ok(()) => Precondition::pass(name, format!("{address} is free")),
        Err(error) => match error.kind() {
            // With a running agent this is as it should be.
            io::ErrorKind::AddrInUse => Precondition::warn(
                name,
                format!("{address} is in use"),
                "fine where that is a running revgate, else free the address or choose another",
            ),
            io::ErrorKind::AddrNotAvailable => Precondition::fail(
                name,
                format!("{address} is no address of this machine"),
                "choose one that `ip address` shows, or 0.0.0.0",
            ),
            io::ErrorKind::PermissionDenied => Precondition::fail(
                name,
                format!("{address} may not be bound: {error}"),
                "choose a port from 1024 on, or give the agent CAP_NET_BIND_SERVICE",
            ),
            _ => Precondition::fail(name, format!("{address}: {error}"), "choose another address"),
        },
    }
}

fn bind(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // As a listener does: old connections of a stopped agent are no obstacle.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())
}

/// Whether a listener could serve TLS with that pair.
fn usable(name: &str, files: &TlsConfig) -> Precondition {
    match tls::check(files) {
        Ok(()) => Precondition::pass(
            name,
            format!("{} and {} belong together", files.certificate.display(), files.key.display()),
        ),
        Err(error) => Precondition::fail(
            name,
            error.to_string(),
            "mount a certificate and its key there, PEM files readable by the agent",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::cli::check::Verdict;

    #[test]
    fn an_address_in_use_is_a_warning_and_a_foreign_one_a_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(bindable("a", listener.local_addr().unwrap()).verdict, Verdict::Warn);
        assert_eq!(bindable("a", "127.0.0.1:0".parse().unwrap()).verdict, Verdict::Pass);
        // TEST-NET-1 (RFC 5737) is on no machine, and binding sends nothing.
        assert_eq!(bindable("a", "192.0.2.1:80".parse().unwrap()).verdict, Verdict::Fail);
    }

    #[test]
    fn what_the_kernel_lacks_fails_only_where_it_is_required() {
        let with = |mode| KernelConfig { mode, bpffs: "/nonexistent".into(), ..KernelConfig::default() };
        let bpffs =
            |mode| kernel(&with(mode)).into_iter().find(|found| found.name == "bpffs").map(|b| b.verdict);
        assert_eq!(bpffs(KernelMode::Required), Some(Verdict::Fail));
        assert_eq!(bpffs(KernelMode::Auto), Some(Verdict::Warn));
        assert_eq!(bpffs(KernelMode::Off), None);
    }

    #[test]
    fn a_certificate_and_key_that_do_not_work_together_are_a_failure() {
        let file = |name| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/proxy_role/").to_owned() + name;
        let verdict = |certificate, key| {
            let files = TlsConfig { certificate: file(certificate).into(), key: file(key).into() };
            usable("a", &files).verdict
        };
        assert_eq!(verdict("localhost.pem", "localhost.key"), Verdict::Pass);
        assert_eq!(verdict("localhost.pem", "renewed.key"), Verdict::Fail);
        assert_eq!(verdict("localhost.pem", "nonexistent.key"), Verdict::Fail);
        assert_eq!(verdict("localhost.key", "localhost.key"), Verdict::Fail, "no certificate in it");
    }
}
