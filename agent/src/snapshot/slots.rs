//! Slots and epochs.
