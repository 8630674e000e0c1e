//! `shared-storage`: the prefill writes the KV cache to storage that the decode reads; neither names the other.

use super::{Api, Connector, Edits, Handover, LIMITS, Meeting, Order, put};

/// Which part of the prompt must be cached for an engine to serve it; below, it hands the request back.
const THRESHOLD: &str = "cache_hit_threshold";

pub(super) struct SharedStorage;

impl Connector for SharedStorage {
    fn order(&self) -> Order {
        Order::PrefillFirst
    }

    fn fields(&self) -> &'static [&'static str] {
        const { &[THRESHOLD, LIMITS[0], LIMITS[1], LIMITS[2], LIMITS[3], LIMITS[4]] }
    }

    fn prefill(&self, api: Api, _: Meeting) -> Edits {
        let mut edits = api.one_token();
        edits.push(put(THRESHOLD, "0"));
        edits
    }

    fn decode(&self, _: Meeting, _: &Handover) -> Edits {
        vec![put(THRESHOLD, "0")]
    }
}
