//! What the kernel knows, for metrics, status and a restarted agent: counters, connections, tenants, memory.

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    slice::from_mut,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use revgate_common::{
    counter::Counter,
    layout::{ConnectionKey, Connections, EventAccount, SetTable, map},
};
use rustix::time::{ClockId, clock_gettime};

use super::{KernelError, pins::Pins, sys::Map, tables::Tables, writer::set_name};

/// Reads the kernel side. Cheap to clone; reading blocks nobody.
#[derive(Clone, Debug)]
pub struct Reader {
    shared: Arc<Shared>,
}

/// The tenants of a set's table, as the kernel has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetTenants {
    /// Index of the set.
    pub index: u32,
    /// The hash of the set, see [`crate::snapshot::slots::set_hash`].
    pub set: u64,
    /// The generation in which its table changed last.
    pub generation: u64,
    /// Its slots that are not free.
    pub tenants: Vec<Tenant>,
}

/// A revision in its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// The slot.
    pub slot: u16,
    /// XXH64 (seed 0) of the revision's name.
    pub revision: u64,
    /// The epoch.
    pub epoch: u32,
}

impl SetTenants {
    /// Of a table, whoever wrote it.
    pub(super) fn of(index: u32, table: &SetTable) -> Self {
        let tenants = (0..).zip(&table.slots).filter(|(_, slot)| slot.epoch != 0).map(|(at, slot)| Tenant {
            slot: at,
            revision: slot.revision,
            epoch: slot.epoch,
        });
        Self { index, set: table.set, generation: table.generation, tenants: tenants.collect() }
    }
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The generation that was published last, whole; 0 before the first.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Local member Pods that the programs cannot tell from strangers, see
    /// [`unseen_sources`](super::tables::Tables::unseen_sources).
    #[must_use]
    pub fn unseen_sources(&self) -> usize {
        self.shared.unseen_sources.load(Ordering::Relaxed)
    }

    /// The cgroup that the programs are attached to.
    #[must_use]
    pub fn cgroup(&self) -> &std::path::Path {
        &self.shared.cgroup
    }

    /// Every outcome's count since the maps were made, over all CPUs.
    pub fn counters(&self) -> Result<Vec<(Counter, u64)>, KernelError> {
        let mut counts = Vec::with_capacity(Counter::ALL.len());
        let mut of_cpus = self.shared.counters.values();
        for counter in Counter::ALL {
            self.shared.counters.read(&(counter as u32), &mut of_cpus).map_err(read_failed(map::COUNTERS))?;
            counts.push((counter, sum(of_cpus.iter().copied())));
        }
        Ok(counts)
    }

    /// What became of the events of denied connects since the maps were made, over all CPUs.
    pub fn events(&self) -> Result<EventAccount, KernelError> {
        let accounts = self.shared.pins.map_of::<u32, EventAccount>(map::EVENT_ACCOUNTS)?;
        let mut of_cpus = accounts.values();
        accounts.read(&0, &mut of_cpus).map_err(read_failed(map::EVENT_ACCOUNTS))?;
        Ok(account(&of_cpus))
    }

    /// Opened and closed connections of every endpoint that ever had one, over all CPUs. One that has left its revision
    /// is told until its last connection is closed, and then until the next one leaves.
    pub fn connections(&self) -> Result<Vec<(ConnectionKey, Connections)>, KernelError> {
        self.shared.connections()
    }

    /// The tables of the sets, as the kernel has them.
    pub fn tenants(&self) -> Result<Vec<SetTenants>, KernelError> {
        let mut sets = Vec::new();
        for index in self.shared.pins.sets()? {
            let Some(table) = self.shared.set_table(index)? else { continue };
            sets.push(SetTenants::of(index, &table));
        }
        Ok(sets)
    }

    /// For how long the tables still count as current without a sign of life; zero once that is over.
    pub fn lease_left(&self) -> Result<Duration, KernelError> {
        let mut end = 0_u64;
        let lease = self.shared.pins.map_of(map::LEASE)?;
        lease.read(&0, from_mut(&mut end)).map_err(read_failed(map::LEASE))?;
        let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
        Ok(Duration::from_nanos(end).saturating_sub(now))
    }

    /// Programs of an agent before are still attached, on its tables: they are replaced at the first publication.
    #[must_use]
    pub fn takeover_pending(&self) -> bool {
        self.shared.takeover_pending.load(Ordering::Relaxed)
    }

    /// Bytes of kernel memory that all maps and tables hold, as the kernel accounts them.
    pub fn memory(&self) -> Result<u64, KernelError> {
        let pins = &self.shared.pins;
        let mut bytes = 0;
        for name in map::ALL {
            bytes += memory_of(&pins.open_map(name)?).map_err(read_failed(name))?;
        }
        for name in pins.tables()? {
            if let Some(table) = pins.open_table(&name)? {
                bytes += memory_of(&table).map_err(read_failed("tables"))?;
            }
        }
        Ok(bytes)
    }
}

/// What the writer and all readers hold together.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) pins: Pins,
    pub(super) cgroup: PathBuf,
    pub(super) takeover_pending: AtomicBool,
    generation: AtomicU64,
    unseen_sources: AtomicUsize,
    counters: Map<u32, u64>,
    connections: Map<ConnectionKey, Connections>,
}

impl Shared {
    pub(super) fn open(pins: Pins, cgroup: PathBuf, takeover: bool) -> Result<Self, KernelError> {
        let (counters, connections) = (pins.map_of(map::COUNTERS)?, pins.map_of(map::CONNECTIONS)?);
        Ok(Self {
            pins,
            cgroup,
            takeover_pending: takeover.into(),
            generation: AtomicU64::new(0),
            unseen_sources: AtomicUsize::new(0),
            counters,
            connections,
        })
    }

    pub(super) fn acknowledge(&self, generation: u64, unseen_sources: usize) {
        self.unseen_sources.store(unseen_sources, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Release);
    }

    /// Removes the counts of what is no endpoint of its revision any more and whose connections are all closed, so that
    /// the map holds what is alive, however often Pods come and go.
    pub(super) fn forget_closed(&self, tables: &Tables) -> Result<(), KernelError> {
        let endpoints = tables.endpoints();
        let mut of_cpus = self.connections.values();
        let is_closed = |counts: &Connections| counts.opened <= counts.closed;
        for (key, counts) in self.connections()? {
            if endpoints.contains(&key) || !is_closed(&counts) {
                continue;
            }
            // Again, as near to its end as can be: a connect that was under way may have opened one meanwhile.
            if self.counts(&key, &mut of_cpus)?.as_ref().is_some_and(is_closed) {
                self.connections
                    .delete(&key)
                    .map_err(|source| KernelError::Write { table: map::CONNECTIONS, source })?;
            }
        }
        Ok(())
    }

    fn connections(&self) -> Result<Vec<(ConnectionKey, Connections)>, KernelError> {
        let mut all = Vec::new();
        let mut of_cpus = self.connections.values();
        let next = |key: Option<&ConnectionKey>| {
            self.connections.next_key(key).map_err(read_failed(map::CONNECTIONS))
        };
        let mut key = next(None)?;
        while let Some(at) = key {
            all.extend(self.counts(&at, &mut of_cpus)?.map(|counts| (at, counts)));
            key = next(Some(&at))?;
        }
        Ok(all)
    }

    /// The counts of one endpoint over all CPUs, if it has any.
    fn counts(
        &self,
        key: &ConnectionKey,
        of_cpus: &mut [Connections],
    ) -> Result<Option<Connections>, KernelError> {
        let found = self.connections.read(key, of_cpus).map_err(read_failed(map::CONNECTIONS))?;
        Ok(found.then(|| connections(of_cpus)))
    }

    /// Index and hash of every set that has a table.
    pub(super) fn set_hashes(&self) -> Result<Vec<(u32, u64)>, KernelError> {
        let mut sets = Vec::new();
        for index in self.pins.sets()? {
            // A pin without a table is no set, but an index that may hold one: no hash is 0.
            sets.push((index, self.set_table(index)?.map_or(0, |table| table.set)));
        }
        Ok(sets)
    }

    fn set_table(&self, index: u32) -> Result<Option<Box<SetTable>>, KernelError> {
        let Some(map) = self.pins.open_table(&set_name(index))? else { return Ok(None) };
        let mut table: Box<SetTable> = bytemuck::zeroed_box();
        let found = Map::new(map).and_then(|map| map.read(&0_u32, from_mut(&mut *table)));
        Ok(found.map_err(read_failed(map::SETS))?.then_some(table))
    }
}

/// Over all CPUs. The numbers of a pinned map that is damaged need not add up, and that must end nobody.
fn sum(of_cpus: impl Iterator<Item = u64>) -> u64 {
    of_cpus.fold(0, u64::saturating_add)
}

/// The same of what became of events. Windows are each CPU's own.
pub(super) fn account(of_cpus: &[EventAccount]) -> EventAccount {
    EventAccount {
        sent: sum(of_cpus.iter().map(|account| account.sent)),
        skipped: sum(of_cpus.iter().map(|account| account.skipped)),
        lost: sum(of_cpus.iter().map(|account| account.lost)),
        ..EventAccount::default()
    }
}

/// The same of connections.
pub(super) fn connections(of_cpus: &[Connections]) -> Connections {
    Connections {
        opened: sum(of_cpus.iter().map(|counts| counts.opened)),
        closed: sum(of_cpus.iter().map(|counts| counts.closed)),
    }
}

fn read_failed(table: &'static str) -> impl Fn(io::Error) -> KernelError {
    move |source| KernelError::Read { table, source }
}

/// The `memlock` line of a map's fdinfo.
fn memory_of(map: &OwnedFd) -> io::Result<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd()))?;
    let line = info.lines().find_map(|line| line.strip_prefix("memlock:"));
    line.and_then(|bytes| bytes.trim().parse().ok()).ok_or_else(|| io::Error::other("no memlock in fdinfo"))
}
