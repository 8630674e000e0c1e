//! The arguments by which a command finds its configuration, the same for all of them.

use std::path::PathBuf;

use super::outcome::Failure;
use crate::config::{self, Loaded};

/// Which configuration.
#[derive(Clone, Debug, clap::Args)]
pub struct ConfigFile {
    /// The configuration file: an EndpointPickerConfig and, as a second document, an AgentConfig.
    #[arg(long = "config", short = 'c', value_name = "FILE", default_value = "/etc/revgate/revgate.yaml")]
    pub path: PathBuf,
    /// The name of this node; `nodeName` in the file overrides it.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub node: Option<String>,
}

impl ConfigFile {
    /// Reads it. A bad file is wrong usage, with everything that is wrong with it.
    pub fn load(&self) -> Result<Loaded, Failure> {
        config::load(&self.path, self.node.as_deref()).map_err(Failure::usage)
    }
}
