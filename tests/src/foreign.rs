//! A program that no agent attached, on the hook of `connect` over IPv4.

use std::{fs::File, io, os::fd::AsRawFd, path::Path};

use aya::{
    Ebpf,
    programs::{CgroupAttachMode, CgroupSockAddr},
};
use revgate::kernel;
use revgate_common::layout::map;

/// The attach type `BPF_CGROUP_INET4_CONNECT`.
const CONNECT4: u32 = 10;
/// The command `BPF_PROG_ATTACH`.
const ATTACH: libc::c_long = 8;

fn built() -> Vec<u8> {
    kernel::object().expect("kernel programs").to_vec()
}

/// A loaded program, which has no tables and lets every connect pass. It is detached with this value, unless it was
/// attached alone.
pub struct Foreign {
    object: Ebpf,
}

impl Foreign {
    /// Loads it: revgate's own under another name, so that it is nobody's by what revgate knows its own by.
    ///
    /// # Panics
    ///
    /// When the kernel refuses.
    #[must_use]
    pub fn load() -> Self {
        let mut object = built();
        let name = map::PEERS.as_bytes();
        let places: Vec<_> =
            object.windows(name.len()).enumerate().filter(|(_, at)| *at == name).map(|(at, _)| at).collect();
        for place in places {
            object[place] = b'Z';
        }
        Self::of(&object)
    }

    /// Loads a copy of revgate's own.
    ///
    /// # Panics
    ///
    /// When the kernel refuses.
    #[must_use]
    pub fn copy() -> Self {
        Self::of(&built())
    }

    fn of(object: &[u8]) -> Self {
        let mut foreign = Self { object: Ebpf::load(object).expect("the object loads") };
        foreign.program().load().expect("the program loads");
        foreign
    }

    fn program(&mut self) -> &mut CgroupSockAddr {
        let program = self.object.program_mut("connect4").expect("there is one");
        program.try_into().expect("for a connect hook")
    }

    /// Its id.
    ///
    /// # Panics
    ///
    /// When the kernel does not tell.
    pub fn id(&mut self) -> u32 {
        self.program().info().expect("its info").id()
    }

    /// Attaches it beside others.
    ///
    /// # Panics
    ///
    /// When the kernel refuses.
    pub fn attach(&mut self, cgroup: &Path) {
        let cgroup = File::open(cgroup).expect("the cgroup");
        let _ = self.program().attach(cgroup, CgroupAttachMode::Single).expect("attached");
    }

    /// Attaches it alone, the old way without flags: no other program is allowed there until it or the cgroup goes.
    ///
    /// # Panics
    ///
    /// When the kernel refuses.
    pub fn attach_alone(&mut self, cgroup: &Path) {
        let cgroup = File::open(cgroup).expect("the cgroup");
        let program = self.program().fd().expect("loaded").try_clone().expect("a descriptor");
        let of = |fd: i32| u32::try_from(fd).expect("an open descriptor");
        let mut attr =
            [of(cgroup.as_raw_fd()), of(std::os::fd::AsFd::as_fd(&program).as_raw_fd()), CONNECT4, 0];
        // SAFETY: four words, the start of `union bpf_attr` for this command, which has no addresses.
        #[expect(unsafe_code, reason = "bpf(2)")]
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, ATTACH, std::ptr::from_mut(&mut attr), size_of_val(&attr))
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }
}
