//! A simulated inference engine: the OpenAI paths and Anthropic's, KV transfer between revisions, and faults on demand.
//!
//! It stands where vLLM or `SGLang` would stand in the demo, the tests and the benchmarks. One process runs many of
//! them, each on an address of its own in 127.0.0.0/8. What it computes is nonsense; what it *checks* is the point:
//! a decode that brings KV blocks of another revision is refused with a distinct error and counted
//! ([`Counters::mixed`]), as incompatible engines would fail or, worse, not notice.
//!
//! ```no_run
//! # async fn example() -> Result<(), revgate_engine::EngineError> {
//! use revgate_engine::{Engine, EngineConfig, Fault};
//!
//! let engine = Engine::start(EngineConfig::new(([127, 0, 0, 1], 0).into(), "rev-a", "decode")).await?;
//! engine.update(|behaviour| behaviour.tokens = 32);
//! engine.fail_next(2, Fault::Status(503));
//! // ... send requests to engine.address() ...
//! assert_eq!(engine.counters().mixed, 0);
//! # Ok(())
//! # }
//! ```
//!
//! `api` answers the paths, `answer` writes JSON and events, `handover` takes KV from leg to leg (`kv`, `storage` and
//! `meeting` are how each connector does), `connection` serves one connection, `fixed` is the cheap server for
//! benchmarks, to whose streams `pace` deals tokens out. The program `revgate-client` asks them.

mod answer;
mod api;
mod behaviour;
mod body;
mod connection;
mod counters;
mod engine;
mod fixed;
mod fleet;
mod handover;
mod kv;
mod meeting;
mod pace;
mod report;
mod shared;
mod storage;
mod wire;

pub use behaviour::{Behaviour, Fault};
pub use counters::Counters;
pub use engine::{Engine, EngineConfig, EngineError};
pub use fixed::SENT;
pub use fleet::Fleet;
pub use handover::{Connector, KV_MISMATCH};
pub use kv::KvTransfer;
pub use pace::{Pace, now};
pub use report::ClientReport;
pub use shared::Recorded;

/// The response header that names the engine, where [`Behaviour::reveal`] is on.
pub const NAME_HEADER: http::HeaderName = http::HeaderName::from_static("x-engine");
