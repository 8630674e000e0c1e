//! The `revgate` command.
fn main() {}
