//! What the end-to-end tests share.

pub mod dial;
pub mod echo;
pub mod node;
pub mod random;
pub mod require;
pub mod shadow;
pub mod world;
