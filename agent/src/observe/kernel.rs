//! What the observer needs to know of the kernel part, as plain data, so that it needs no kernel to be tested.

use std::{fmt::Debug, net::SocketAddr, time::Duration};

use revgate_common::counter::Counter;

/// Reads the kernel part. A reading may cost a few system calls; it is made once per scrape or report.
pub trait KernelReader: Debug + Send + Sync {
    /// What is there now. Never fails: what could not be read is said in [`KernelReading::error`].
    fn read(&self) -> KernelReading;
}

/// The kernel part at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelReading {
    /// Programs are attached and steer.
    pub active: bool,
    /// Why not, where `active` is false.
    pub inactive_because: Option<String>,
    /// The fence: `off`, `audit` or `enforce`.
    pub fence: String,
    /// The last snapshot generation that the writer put in force in all tables.
    pub acknowledged: u64,
    /// The generation found in each set's table, by set index; `None`: the set has no table.
    pub tables: Vec<Option<u64>>,
    /// Outcomes of connects since the counters' map was made.
    pub counters: Vec<(Counter, u64)>,
    /// What became of the events that tell of denied connects.
    pub events: Events,
    /// Steered connections by endpoint and tenant.
    pub connections: Vec<EndpointConnections>,
    /// What the maps take, in bytes.
    pub memory: u64,
    /// Until when the tables count as current.
    pub lease: Option<Lease>,
    /// Programs of an agent before are still attached, on its tables, until this one has published.
    pub takeover_pending: bool,
    /// What could not be read.
    pub error: Option<String>,
}

impl KernelReading {
    /// A reading without kernel programs (K12).
    #[must_use]
    pub fn user_space(because: impl Into<String>) -> Self {
        Self { inactive_because: Some(because.into()), fence: "off".to_owned(), ..Self::default() }
    }
}

/// Events that tell of denied connects, which are a sample of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// Came to the agent.
    pub sent: u64,
    /// Left out, because there were too many at a time.
    pub skipped: u64,
    /// Left out, because the agent did not read fast enough, or there was none.
    pub lost: u64,
}

/// For how long the tables count as current without another sign of life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// From a sign of life to the end, as configured.
    pub length: Duration,
    /// From now to the end; zero once it has passed.
    pub left: Duration,
}

/// Steered connections of one endpoint while it was the tenant of (set, slot, epoch).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointConnections {
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Index of its set.
    pub set: usize,
    /// Its revision's slot.
    pub slot: u16,
    /// Its revision's epoch.
    pub epoch: u32,
    /// Connections established so far.
    pub opened: u64,
    /// Of these, closed.
    pub closed: u64,
}

/// The reader of an agent that runs without kernel programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserSpace {
    /// Why it does.
    pub because: String,
}

impl KernelReader for UserSpace {
    fn read(&self) -> KernelReading {
        KernelReading::user_space(self.because.clone())
    }
}
