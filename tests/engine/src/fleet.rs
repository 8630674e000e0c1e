//! A thread of its own for engines, so that they do not share a runtime with what is tested against them.

use std::thread;

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

use crate::{Engine, EngineConfig, EngineError};

/// A thread with a runtime on which engines run. Dropped, it ends them all.
#[derive(Debug)]
pub struct Fleet {
    handle: Handle,
    /// Dropping it ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Fleet {
    /// Starts the thread.
    pub fn new() -> Result<Self, EngineError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(EngineError::Thread)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("engines".to_owned())
            .spawn(move || drop(runtime.block_on(stopped)))
            .map_err(EngineError::Thread)?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Starts an engine on the fleet's thread. May be awaited on any runtime; a caller without one uses
    /// `fleet.handle().block_on(..)`.
    pub async fn start(&self, config: EngineConfig) -> Result<Engine, EngineError> {
        self.handle.spawn(Engine::start(config)).await.map_err(|_| EngineError::Gone)?
    }

    /// The fleet's runtime.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panicked engine has been reported by its own thread.
            drop(thread.join());
        }
    }
}
