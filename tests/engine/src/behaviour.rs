//! How an engine behaves: all of it may change while it runs.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::Pace;

/// How an engine behaves. Changed at run time by [`Engine::update`](crate::Engine::update); a request uses what was
/// in force when it came.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// From the whole request to the head of the response.
    pub first_byte_delay: Duration,
    /// Before each token of a stream.
    pub token_delay: Duration,
    /// Tokens of an answer, where the request sets no lower limit.
    pub tokens: u64,
    /// `cached_tokens` reported where the prompt was computed here, at most the prompt's tokens.
    pub cached_tokens: u64,
    /// Whole (not streamed) answers are filled up to exactly this many bytes where they would be shorter.
    pub min_body: usize,
    /// Added to every response: a wrong revision header that a proxy must overwrite, say.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Name the engine in the [`NAME_HEADER`](crate::NAME_HEADER) of every response. Nothing else tells who answered.
    pub reveal: bool,
    /// `/health` answers 200; 503 otherwise.
    pub healthy: bool,
    /// Close a connection on which nothing happened for this long, as uvicorn does after 5 s.
    pub idle_close: Option<Duration>,
    /// Part of the inference requests that meet `rate_fault`, 0 to 1.
    pub fault_rate: f64,
    /// What those meet.
    pub rate_fault: Fault,
    /// How many of the last requests to keep for [`Engine::recorded`](crate::Engine::recorded); at most 1024.
    pub record: usize,
    /// Cheap mode, looked at when a connection comes: answer whatever is asked with JSON of that many bytes.
    pub fixed_body: Option<usize>,
    /// In cheap mode, answer requests for a stream with events that tell when they were sent ([`SENT`](crate::SENT)),
    /// one at each turn, until the client leaves.
    pub fixed_stream: Option<Pace>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            first_byte_delay: Duration::ZERO,
            token_delay: Duration::ZERO,
            tokens: 8,
            cached_tokens: 0,
            min_body: 0,
            headers: Vec::new(),
            reveal: false,
            healthy: true,
            idle_close: None,
            fault_rate: 0.0,
            rate_fault: Fault::Status(500),
            record: 0,
            fixed_body: None,
            fixed_stream: None,
        }
    }
}

/// What goes wrong with one inference request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// This status with an error body.
    Status(u16),
    /// TCP reset before any byte of the response.
    ResetBeforeHead,
    /// TCP reset after the head and a part of the body.
    ResetMidBody,
    /// No byte of a response, until the client leaves.
    Stall,
    /// The head and a part of the body, then nothing, until the client leaves.
    StallMidBody,
}
