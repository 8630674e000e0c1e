//! Runs decisions in the kernel without sockets, for tests and benchmarks: see [`revgate_common::twin`].

use std::os::fd::{AsFd, OwnedFd};

use aya::programs::Program;
use bytemuck::{bytes_of, bytes_of_mut};
use revgate_common::twin::{Answer, PROGRAM, Trial};

use super::{Kernel, KernelError, load, object, sys};

/// The decision program, on the tables of a [`Kernel`].
#[derive(Debug)]
pub struct Twin {
    program: OwnedFd,
}

impl Twin {
    /// Loads it. It is attached to nothing and ends with this value.
    pub fn load(kernel: &Kernel) -> Result<Self, KernelError> {
        let refused = |source| KernelError::Load { source: Box::new(source) };
        let object = object::bytes().ok_or(KernelError::NotBuilt)?;
        let mut ebpf = load::load(object, &kernel.shared.pins)?;
        let Some(Program::SchedClassifier(program)) = ebpf.program_mut(PROGRAM) else {
            return Err(KernelError::Load { source: format!("the object has no program {PROGRAM}").into() });
        };
        program.load().map_err(refused)?;
        let program = program.fd().map_err(refused)?.as_fd().try_clone_to_owned();
        Ok(Self { program: program.map_err(|source| KernelError::Read { table: PROGRAM, source })? })
    }

    /// Decides one connect.
    pub fn decide(&self, trial: &Trial) -> Result<Answer, KernelError> {
        let failed = |source| KernelError::Read { table: PROGRAM, source };
        let mut packet = bytes_of(trial).to_vec();
        let returned = sys::test_run(self.program.as_fd(), &mut packet).map_err(failed)?;
        let mut answer = Answer::default();
        match packet.get(..size_of::<Answer>()) {
            Some(bytes) if returned == 0 => bytes_of_mut(&mut answer).copy_from_slice(bytes),
            _ => return Err(failed(std::io::Error::other(format!("it returned {returned}")))),
        }
        Ok(answer)
    }
}
