//! Envoy's external processing protocol, as an endpoint picker speaks it (E1 to E5): messages in, messages out.
//!
//! ```text
//! ProcessingRequest ─> exchange ─┬─> ProcessingResponse ..
//!                                └─> a question: which endpoint? who answered?   `proxy::picker` knows
//! ```
//!
//! No I/O, no clock, no choice: [`exchange`] is the state machine of one HTTP request, [`head`] reads what the
//! messages say, [`reply`] writes the answers. `proxy::picker` serves it on a listener, and chooses by the code of
//! all other listeners.

pub mod exchange;
pub mod head;
pub mod reply;

pub use exchange::{Due, Exchange, Question, Sent, Violation};
pub use head::{Head, Served};
pub use reply::{Destination, Headers, Named, PIECE, Stamps};

/// The messages of `proto/`, as `build.rs` made them.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated; proto/ says what they are")]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/protocols.rs"));
}
