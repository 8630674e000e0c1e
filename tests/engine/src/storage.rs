//! A storage that all engines share (connector `shared-storage`): a directory for each prompt, and in it a file for
//! each revision that has prefilled it, with the engine's id.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
};

fn folder(directory: &Path, prompt: u64) -> PathBuf {
    directory.join(format!("{prompt:016x}"))
}

/// A file name, whatever the revision is called.
fn file(revision: &str) -> String {
    let mut hasher = DefaultHasher::new();
    revision.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Stores the blocks of a prompt.
pub(crate) fn store(directory: &Path, prompt: u64, revision: &str, engine_id: &str) -> io::Result<()> {
    let folder = folder(directory, prompt);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(file(revision)), engine_id)
}

/// The engine that stored a prompt: one of that revision, else any; `None`: nobody has.
pub(crate) fn find(directory: &Path, prompt: u64, revision: &str) -> Option<String> {
    let folder = folder(directory, prompt);
    fs::read_to_string(folder.join(file(revision))).ok().or_else(|| {
        let others = fs::read_dir(folder).ok()?;
        others.filter_map(Result::ok).find_map(|other| fs::read_to_string(other.path()).ok())
    })
}
