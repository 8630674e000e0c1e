//! revgate
