//! Role listeners against engines that do what each test says (H1, H3 to H7, H10 to H12, H14).

mod gating;
mod hygiene;
mod limits;
mod retry;
mod stream;
mod support;
