//! A connect by a process in another cgroup.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd},
};

use rustix::process::{Pid, WaitOptions, waitpid};
use socket2::SockAddr;

/// Set in the status of a child that could not enter the cgroup, or has no socket, so that nothing was tried; error
/// numbers of the calls here are smaller.
const NOT_TRIED: i32 = 0x80;

/// How a TCP connect ends that does not wait, by a process that goes into a cgroup by its open `cgroup.procs` and ends;
/// `None`: it succeeded. An error: it could not be tried.
pub(super) fn connect_inside(entrance: BorrowedFd<'_>, to: SocketAddr) -> io::Result<Option<io::Error>> {
    let to = SockAddr::from(to);
    let family = libc::c_int::from(to.family());
    let entrance = entrance.as_raw_fd();
    // SAFETY: between the fork and `_exit` the child makes system calls and nothing else: no allocation, no lock, no
    // destructor. What it reads was made before.
    #[expect(unsafe_code, reason = "only a process that is in a cgroup makes sockets there")]
    let child = unsafe {
        match libc::fork() {
            0 => {
                let status = if libc::write(entrance, c"0".as_ptr().cast(), 1) == 1 {
                    let socket = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
                    if socket < 0 {
                        NOT_TRIED | *libc::__errno_location()
                    } else if libc::connect(socket, to.as_ptr().cast(), to.len()) == 0 {
                        0
                    } else {
                        *libc::__errno_location()
                    }
                } else {
                    NOT_TRIED | *libc::__errno_location()
                };
                libc::_exit(status)
            }
            child => child,
        }
    };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    let ended = loop {
        match waitpid(Pid::from_raw(child), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            ended => break ended?,
        }
    };
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(None),
        Some(status) if status & NOT_TRIED != 0 => Err(io::Error::from_raw_os_error(status & !NOT_TRIED)),
        Some(status) => Ok(Some(io::Error::from_raw_os_error(status))),
        None => Err(io::Error::other("the process of the probe was killed")),
    }
}
