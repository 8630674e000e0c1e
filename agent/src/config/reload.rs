//! Re-reading a changed file without a restart (F5). A bad new file changes nothing and is reported.
//!
//! The watching is somebody else's: [`Reloader`] is told that the file may have changed. It compares what it read, so
//! a needless call costs a read and no more.

use std::{path::PathBuf, sync::Arc};

use super::{Config, ConfigError, Loaded, load};

/// What became of a change of the file.
#[derive(Debug)]
pub enum Reload {
    /// There is a new configuration.
    Changed {
        /// The new one, with its warnings.
        loaded: Box<Loaded>,
        /// The changed fields that need a restart to take effect, see [`restart_needed`].
        restart: Vec<&'static str>,
    },
    /// The file is bad, and the old configuration stays: to be logged and counted.
    Rejected(ConfigError),
}

/// Holds the configuration in force and the file that it came from.
#[derive(Debug)]
pub struct Reloader {
    file: PathBuf,
    node: Option<Arc<str>>,
    current: Config,
}

impl Reloader {
    /// `current` is what `file` said last; `node` is the argument that [`load`] was given.
    #[must_use]
    pub fn new(file: PathBuf, node: Option<Arc<str>>, current: Config) -> Self {
        Self { file, node, current }
    }

    /// Reads the file again; `None` where it says what is in force.
    #[must_use]
    pub fn check(&self) -> Option<Reload> {
        match load(&self.file, self.node.as_deref()) {
            Ok(loaded) if loaded.config == self.current => None,
            Ok(loaded) => {
                let restart = restart_needed(&self.current, &loaded.config);
                Some(Reload::Changed { loaded: Box::new(loaded), restart })
            }
            Err(error) => Some(Reload::Rejected(error)),
        }
    }

    /// Says what has come into force. Until then [`Reloader::check`] reports it again.
    pub fn accept(&mut self, config: Config) {
        self.current = config;
    }
}

/// The fields that differ and take effect only after a restart: what is bound, pinned or started once.
#[must_use]
pub fn restart_needed(old: &Config, new: &Config) -> Vec<&'static str> {
    let (old, new) = (&old.agent, &new.agent);
    [
        ("nodeName", old.node != new.node),
        ("source", old.source != new.source),
        ("kernel.mode", old.kernel.mode != new.kernel.mode),
        ("kernel.fence", old.kernel.fence != new.kernel.fence),
        ("kernel.cgroup", old.kernel.cgroup != new.kernel.cgroup),
        ("kernel.bpffs", old.kernel.bpffs != new.kernel.bpffs),
        ("kernel.lease", old.kernel.lease != new.kernel.lease),
        ("kernel.trace", old.kernel.trace != new.kernel.trace),
        ("http.workers", old.http.workers != new.http.workers),
        ("admin.address", old.admin != new.admin),
        ("log.format", old.log.format != new.log.format),
        ("log.filter", old.log.filter != new.log.filter),
    ]
    .into_iter()
    .filter_map(|(field, differs)| differs.then_some(field))
    .collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::cluster::files::FileWatch;

    const GOOD: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: app=a}
    revisionGating: {mode: MODE, requiredRoles: [prefill, decode]}
---
apiVersion: revgate.dev/v1alpha1
kind: AgentConfig
";

    fn good(mode: &str, agent: &str) -> String {
        format!("{}{agent}\n", GOOD.replace("MODE", mode))
    }

    /// A directory laid out as the kubelet mounts a ConfigMap: a link to a link to a directory that is swapped.
    struct Mount {
        directory: tempfile::TempDir,
        swaps: u32,
    }

    impl Mount {
        fn new(text: &str) -> Self {
            let mut mount = Self { directory: tempfile::tempdir().unwrap(), swaps: 0 };
            mount.swap(text);
            std::os::unix::fs::symlink("..data/revgate.yaml", mount.file()).unwrap();
            mount
        }

        fn file(&self) -> PathBuf {
            self.directory.path().join("revgate.yaml")
        }

        fn swap(&mut self, text: &str) {
            self.swaps += 1;
            let version = format!("..{}", self.swaps);
            let root = self.directory.path();
            fs::create_dir(root.join(&version)).unwrap();
            fs::write(root.join(&version).join("revgate.yaml"), text).unwrap();
            std::os::unix::fs::symlink(&version, root.join("..data_tmp")).unwrap();
            fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        }

        fn reloader(&self) -> Reloader {
            let file = self.file();
            let current = load(&file, Some("n")).unwrap().config;
            Reloader::new(file, Some("n".into()), current)
        }
    }

    #[test]
    fn f5_a_swapped_config_map_is_read_and_a_bad_one_keeps_the_old() {
        let mut mount = Mount::new(&good("max-role", ""));
        let mut reloader = mount.reloader();
        assert!(reloader.check().is_none(), "nothing changed");

        mount.swap(&good("sum", ""));
        let Some(Reload::Changed { loaded, restart }) = reloader.check() else { panic!("changed") };
        assert_eq!(loaded.config.sets[0].mode, super::super::GatingMode::Sum);
        assert!(restart.is_empty());
        assert!(matches!(reloader.check(), Some(Reload::Changed { .. })), "until it is accepted");
        reloader.accept(loaded.config);
        assert!(reloader.check().is_none(), "in force");

        mount.swap(&good("mean", ""));
        let Some(Reload::Rejected(error)) = reloader.check() else { panic!("rejected") };
        assert!(error.to_string().contains("unknown mode `mean`"), "{error}");
        assert!(matches!(reloader.check(), Some(Reload::Rejected(_))), "still bad");

        mount.swap(&good("sum", "# the same again\n"));
        assert!(reloader.check().is_none(), "the old configuration was kept");
    }

    #[test]
    fn f5_a_vanished_file_keeps_the_old() {
        let mount = Mount::new(&good("sum", ""));
        let reloader = mount.reloader();
        fs::remove_file(mount.file()).unwrap();
        assert!(matches!(reloader.check(), Some(Reload::Rejected(ConfigError::Read { .. }))));
    }

    #[tokio::test]
    async fn f5_the_watched_file_is_read_again_when_its_config_map_is_swapped() {
        let mut mount = Mount::new(&good("sum", ""));
        let mut watch = FileWatch::new(&mount.file()).unwrap();
        let reloader = mount.reloader();
        let bound = std::time::Duration::from_mins(1);
        mount.swap(&good("max-role", ""));
        let reload = tokio::time::timeout(bound, next(&mut watch, &reloader)).await.unwrap();
        assert!(matches!(reload, Reload::Changed { .. }), "{reload:?}");
        mount.swap("nothing useful");
        let reload = tokio::time::timeout(bound, next(&mut watch, &reloader)).await.unwrap();
        assert!(matches!(reload, Reload::Rejected(_)), "{reload:?}");
    }

    /// The watch may tell of a change that is none.
    async fn next(watch: &mut FileWatch, reloader: &Reloader) -> Reload {
        loop {
            watch.changed().await;
            if let Some(reload) = reloader.check() {
                return reload;
            }
        }
    }

    #[test]
    fn fields_that_need_a_restart_are_named() {
        let config = |agent: &str| {
            super::super::parse(Path::new("x"), good("sum", agent).as_bytes(), None)
                .unwrap_or_else(|error| panic!("{error}"))
                .config
        };
        let old = config("");
        for (agent, expected) in [
            ("nodeName: m", "nodeName"),
            ("source: {file: {path: /p}}", "source"),
            ("kernel: {mode: required}", "kernel.mode"),
            ("kernel: {fence: audit}", "kernel.fence"),
            ("kernel: {cgroup: /c}", "kernel.cgroup"),
            ("kernel: {bpffs: /b}", "kernel.bpffs"),
            ("kernel: {lease: 1m}", "kernel.lease"),
            ("kernel: {trace: true}", "kernel.trace"),
            ("http: {workers: 2}", "http.workers"),
            ("admin: {address: '127.0.0.1:1'}", "admin.address"),
            ("log: {format: json}", "log.format"),
            ("log: {filter: debug}", "log.filter"),
        ] {
            assert_eq!(restart_needed(&old, &config(agent)), [expected]);
        }
        let free = "http: {retries: 0}\nlisteners: [{address: '127.0.0.1:80', role: decode}]";
        assert!(restart_needed(&old, &config(free)).is_empty());
    }
}
