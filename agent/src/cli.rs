//! The commands, one file each.

pub mod config_print;
