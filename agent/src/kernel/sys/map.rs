//! A map with the types of its keys and values. They are compared with the map's own once, when it is opened: the kernel
//! copies as many bytes as the map has, not as many as are there.

use std::{
    fmt, io,
    marker::PhantomData,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use bytemuck::{Pod, Zeroable};

use super::{Command, address, address_mut, bpf, bpf_fd, object_info, raw, size};

/// Maps with a value for each CPU: `BPF_MAP_TYPE_PERCPU_HASH`, `BPF_MAP_TYPE_PERCPU_ARRAY`.
const PER_CPU: [u32; 2] = [5, 6];

/// A map of keys `K` to values `V`; a per-CPU map has a `V` for each possible CPU.
pub(in super::super) struct Map<K, V> {
    fd: OwnedFd,
    /// Values of one key.
    values: usize,
    types: PhantomData<fn() -> (K, V)>,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Create {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; 16],
}

/// The start of `struct bpf_map_info`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Info {
    map_type: u32,
    id: u32,
    key: u32,
    value: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Element {
    map_fd: u32,
    zero: u32,
    key: u64,
    /// Or the next key.
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Batch {
    first: u64,
    next: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    element_flags: u64,
    flags: u64,
}

impl<K: Pod, V: Pod> Map<K, V> {
    /// A map that is open. One of other sizes is refused.
    pub(in super::super) fn new(fd: OwnedFd) -> io::Result<Self> {
        let info: Info = object_info(fd.as_fd())?;
        let has = |bytes: u32| usize::try_from(bytes).map_err(io::Error::other);
        let (key, value) = (has(info.key)?, has(info.value)?);
        let per_cpu = PER_CPU.contains(&info.map_type);
        // The values of the CPUs lie 8 bytes apart at least; those that are used fill them.
        if (key, value) != (size_of::<K>(), size_of::<V>()) || per_cpu && !value.is_multiple_of(8) {
            return Err(io::Error::other(format!(
                "the map has keys of {key} and values of {value} bytes, not {} and {}",
                size_of::<K>(),
                size_of::<V>()
            )));
        }
        let values = if per_cpu { aya::util::nr_cpus().map_err(|(_, error)| error)? } else { 1 };
        Ok(Self { fd, values, types: PhantomData })
    }

    /// Makes a map. `name` is cut to 15 bytes; the kernel takes only letters, digits and `_`.
    pub(in super::super) fn create(
        map_type: u32,
        entries: usize,
        flags: u32,
        name: &str,
    ) -> io::Result<Self> {
        let mut attr = Create {
            map_type,
            key_size: size(size_of::<K>())?,
            value_size: size(size_of::<V>())?,
            max_entries: size(entries)?,
            map_flags: flags,
            inner_map_fd: 0,
            numa_node: 0,
            name: [0; 16],
        };
        for (to, from) in attr.name.iter_mut().take(15).zip(name.bytes()) {
            *to = if from.is_ascii_alphanumeric() { from } else { b'_' };
        }
        // SAFETY: no addresses in this command, and it returns a descriptor.
        #[expect(unsafe_code, reason = "bpf(2)")]
        let fd = unsafe { bpf_fd(Command::MapCreate, &mut attr)? };
        Self::new(fd)
    }

    fn element(&self, key: u64, value: u64) -> Element {
        Element { map_fd: raw(self), zero: 0, key, value, flags: 0 }
    }

    /// Sets one element.
    pub(in super::super) fn update(&self, key: &K, value: &V) -> io::Result<()> {
        self.one_value()?;
        let mut attr = self.element(address(key), address(value));
        // SAFETY: key and value live through the call and have the map's sizes, which `new` has looked at.
        #[expect(unsafe_code, reason = "bpf(2)")]
        unsafe {
            bpf(Command::MapUpdate, &mut attr).map(drop)
        }
    }

    /// Sets many elements.
    pub(in super::super) fn fill(&self, keys: &[K], values: &[V]) -> io::Result<()> {
        self.one_value()?;
        if keys.is_empty() {
            return Ok(());
        }
        if keys.len() != values.len() {
            return Err(io::Error::other("as many keys as values"));
        }
        let mut attr = Batch {
            keys: address(keys),
            values: address(values),
            count: size(keys.len())?,
            map_fd: raw(self),
            ..Batch::zeroed()
        };
        // SAFETY: both arrays live through the call and have `count` elements of the map's sizes.
        #[expect(unsafe_code, reason = "bpf(2)")]
        unsafe {
            bpf(Command::MapUpdateBatch, &mut attr).map(drop)
        }
    }

    /// Writing such a map takes as many values as there are CPUs, and nobody here does.
    fn one_value(&self) -> io::Result<()> {
        if self.values == 1 { Ok(()) } else { Err(io::Error::other("a map of the programs alone")) }
    }

    /// Reads one element into `values`: one, or of a per-CPU map [`Map::values`]. False: there is no such element.
    pub(in super::super) fn read(&self, key: &K, values: &mut [V]) -> io::Result<bool> {
        if values.len() != self.values {
            return Err(io::Error::other(format!("{} values, not {}", self.values, values.len())));
        }
        let mut attr = self.element(address(key), address_mut(values));
        // SAFETY: the key lives through the call, the values are ours alone, and all have the map's sizes.
        #[expect(unsafe_code, reason = "bpf(2)")]
        found(unsafe { bpf(Command::MapLookup, &mut attr) })
    }

    /// Zeroed values for [`Map::read`]: one, or one for each possible CPU.
    pub(in super::super) fn values(&self) -> Vec<V> {
        vec![V::zeroed(); self.values]
    }

    /// The key after `key`, or the first.
    pub(in super::super) fn next_key(&self, key: Option<&K>) -> io::Result<Option<K>> {
        let mut next = K::zeroed();
        let mut attr = self.element(key.map_or(0, address), address_mut(&mut next));
        // SAFETY: both keys live through the call and have the map's key size; a null key asks for the first.
        #[expect(unsafe_code, reason = "bpf(2)")]
        let result = unsafe { bpf(Command::MapNextKey, &mut attr) };
        Ok(found(result)?.then_some(next))
    }

    /// Removes one element. False: there is no such element.
    pub(in super::super) fn delete(&self, key: &K) -> io::Result<bool> {
        let mut attr = self.element(address(key), 0);
        // SAFETY: the key lives through the call and has the map's key size.
        #[expect(unsafe_code, reason = "bpf(2)")]
        found(unsafe { bpf(Command::MapDelete, &mut attr) })
    }

    /// Forbids every later write from user space.
    pub(in super::super) fn freeze(&self) -> io::Result<()> {
        // SAFETY: no addresses in this command.
        #[expect(unsafe_code, reason = "bpf(2)")]
        unsafe {
            bpf(Command::MapFreeze, &mut raw(self)).map(drop)
        }
    }
}

/// A map of maps, by its descriptors.
impl Map<u32, u32> {
    /// Points an element to `inner`. Returns once no program sees the old inner map (an RCU grace period).
    pub(in super::super) fn swap(&self, index: u32, inner: BorrowedFd<'_>) -> io::Result<()> {
        self.update(&index, &raw(inner))
    }
}

fn found(result: io::Result<i32>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

impl<K, V> AsFd for Map<K, V> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<K, V> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("fd", &self.fd).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::HASH, *};

    #[test]
    fn a_map_of_other_sizes_is_refused_before_the_kernel_copies_anything() {
        let Ok(map) = Map::<u32, [u64; 4]>::create(HASH, 1, 0, "sizes") else {
            let required = std::env::var("REVGATE_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|tier| tier.trim() == "bpf"), "no map can be made here");
            eprintln!("SKIPPED, NOT PASSED (bpf): no map can be made here");
            return;
        };
        map.update(&1, &[1; 4]).unwrap();
        let same = || map.as_fd().try_clone_to_owned().unwrap();
        assert!(Map::<u32, u64>::new(same()).is_err());
        assert!(Map::<u64, [u64; 4]>::new(same()).is_err());
        assert!(map.fill(&[1], &[]).is_err());
        assert!(map.read(&1, &mut []).is_err());
        let mut values = map.values();
        assert!(map.read(&1, &mut values).unwrap());
        assert_eq!(values, [[1; 4]]);
        assert_eq!(map.next_key(None).unwrap(), Some(1));
        assert!(map.delete(&1).unwrap());
        assert!(!map.delete(&1).unwrap());
        assert_eq!(map.next_key(None).unwrap(), None);

        let of_cpus = Map::<u32, u64>::create(PER_CPU[1], 1, 0, "cpus").unwrap();
        assert_eq!(of_cpus.values().len(), aya::util::nr_cpus().unwrap());
        assert!(of_cpus.read(&0, &mut of_cpus.values()).unwrap());
        assert!(of_cpus.update(&0, &1).is_err());
    }
}
