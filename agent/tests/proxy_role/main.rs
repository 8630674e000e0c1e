//! Role listeners against engines that do what each test says (H1, H3 to H7, H10 to H12, H14).

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the helpers of a test may end it"
)]

mod blame;
mod gating;
mod handshake;
mod hygiene;
mod limits;
mod retry;
mod selectors;
mod stream;
mod support;
