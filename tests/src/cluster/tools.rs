//! The programs that the cluster tests run, and whether they are to be run at all.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::require;

/// Names the folder that `tests/cluster/build` made; `make test-cluster` sets it.
const FOLDER: &str = "REVGATE_CLUSTER";

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Tools(PathBuf);

impl Tools {
    /// The programs; `None`: they are not there, and a test of this tier is skipped.
    ///
    /// # Panics
    ///
    /// When `REVGATE_REQUIRE` asks for the tier and they are not there.
    #[must_use]
    pub fn find(tier: &str) -> Option<Self> {
        let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else {
            require::skip(
                tier,
                &format!("it takes minutes and is run by `make test-cluster`, which sets {FOLDER}"),
            );
            return None;
        };
        if !folder.join("kube-apiserver").exists() {
            let folder = folder.display();
            require::skip(tier, &format!("{folder} has no kube-apiserver; run `tests/cluster/build`"));
            return None;
        }
        Some(Self(folder))
    }

    /// The path of a program.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// The top of the repository.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"))
}
