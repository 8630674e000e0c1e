//! Files and paths: the configuration, its selectors, the Pod file, cgroups.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::Arc,
};

use super::{WORLD, publish};
use crate::{
    cluster::{
        Change, Pod,
        api::target,
        identity::{Identity, Whose, identify},
        list,
        member::member,
        pod::Labels,
    },
    config::{ConfigError, Selector, parse, print},
};

/// A configuration file is one that reads back as it is printed, or its faults have a place in it.
pub fn config(data: &[u8]) {
    let file = Path::new("x.yaml");
    match parse(file, data, Some("n1")) {
        Ok(loaded) => {
            let text = print(&loaded.config).unwrap_or_else(|error| unreachable!("{error}"));
            match parse(file, text.as_bytes(), None) {
                Ok(again) => assert_eq!(again.config, loaded.config, "printed as\n{text}"),
                Err(error) => unreachable!("{error} in\n{text}"),
            }
            for target in target::plan(&loaded.config) {
                assert!(target.path().starts_with("/api"), "{target}");
            }
        }
        Err(ConfigError::Invalid { problems, .. }) => {
            assert!(!problems.is_empty(), "refused without a reason");
            let lines = data.split(|byte| *byte == b'\n').count();
            for problem in problems {
                // An empty file has a first line; YAML also ends one at a lone CR, U+0085 and the like.
                assert!(problem.at.line >= 1 && problem.at.column >= 1, "{problem:?}");
                let plain = data.is_ascii() && !data.contains(&b'\r');
                assert!(!plain || problem.at.line <= lines + 1, "{problem:?} of {lines} lines");
            }
        }
        Err(error @ ConfigError::Read { .. }) => unreachable!("{error}"),
    }
}

/// A selector prints as one that is equal, and the looser ones that are asked of servers match what it matches.
pub fn selector(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let selector = match text.parse::<Selector>() {
        Ok(selector) => selector,
        Err(error) => {
            assert!(text.is_char_boundary(error.position), "{error}");
            return;
        }
    };
    let printed = selector.to_string();
    assert_eq!(printed.parse::<Selector>().as_ref(), Ok(&selector), "printed as {printed}");
    assert_eq!(selector.is_empty(), printed.is_empty());
    let for_server = selector.clone().for_server();
    assert_eq!(for_server.to_string().parse::<Selector>().as_ref(), Ok(&for_server));
    let common = selector.clone().in_common(&for_server);
    assert_eq!(common, for_server);
    // Words of the selector as labels: some match.
    let words: Vec<&str> =
        text.split(|c: char| " \t\r\n=!(),<>".contains(c)).filter(|w| !w.is_empty()).collect();
    for value in words.iter().take(8) {
        let labels: Labels = words.iter().take(8).map(|key| (Arc::from(*key), Arc::from(*value))).collect();
        if selector.matches(&labels) {
            assert!(for_server.matches(&labels), "{for_server} of {selector} on {labels:?}");
        }
    }
}

/// A Pod file gives Pods, each of its own name, which make a state; or its first fault has a place in it.
pub fn pod_file(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let listed = match list::parse(text) {
        Ok(listed) => listed,
        Err(invalid) => {
            assert!(!invalid.what.is_empty());
            return;
        }
    };
    let mut names = HashSet::new();
    let mut pods = Vec::new();
    for list::Listed { pod, .. } in listed {
        assert!(names.insert((pod.key.namespace.clone(), pod.key.name.clone())), "{:?} twice", pod.key);
        assert_pod(&pod);
        pods.push(pod);
    }
    if !pods.is_empty() {
        publish(HashMap::new(), 0, vec![Change::Replace(pods)]);
    }
}

/// What holds of every Pod, whoever shows it.
pub(crate) fn assert_pod(pod: &Pod) {
    assert!(!pod.key.name.is_empty() && !pod.key.namespace.is_empty() && !pod.key.uid.is_empty(), "{pod:?}");
    let mut addresses = HashSet::new();
    for ip in &pod.ips {
        assert!(addresses.insert(*ip) && ip.to_canonical() == *ip, "{pod:?}");
    }
    for member in WORLD.sets.iter().filter_map(|set| member(pod, set)) {
        assert!(!member.revision.is_empty() && !member.role.is_empty(), "{member:?}");
        assert!(member.endpoints.is_empty() || pod.is_ready(), "{member:?}");
        let mut endpoints = HashSet::new();
        for endpoint in &member.endpoints {
            assert!(endpoints.insert(*endpoint) && addresses.contains(&endpoint.ip()), "{member:?}");
            assert_ne!(endpoint.port(), 0, "{member:?}");
        }
    }
}

/// Whose a cgroup is holds for all that is below it, if it is anybody's or nobody's.
pub fn cgroup_path(data: &[u8]) {
    let path = Path::new(OsStr::from_bytes(data));
    let whose = identify(path);
    // What a Pod may make inside of its own.
    let inside = [
        "cri-containerd-0.scope",
        "kubepods/pod11111111-2222-3333-4444-555555555555",
        "kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice",
        "kubepods-pod11111111_2222_3333_4444_555555555555.slice:cri-containerd:0",
    ];
    for name in inside.map(|name| path.join(name)) {
        match &whose {
            Whose::Pod(_) | Whose::Nobodys => assert_eq!(identify(&name), whose, "{}", name.display()),
            Whose::Open => {}
        }
    }
    if let Whose::Pod(Identity { uid, level }) = &whose {
        assert!(matches!(uid.len(), 32 | 36), "{uid}");
        assert!(uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-'), "{uid}");
        let depth = path.iter().count();
        assert!(
            *level >= 1 && usize::try_from(*level).is_ok_and(|level| level <= depth),
            "{level} of {depth}"
        );
    }
}
