//! `nixlv2`: vLLM's `NixlConnector`. The prefill's reply tells where the KV cache lies, and the decode fetches it.

use bytes::Bytes;

use super::{Api, Connector, Edit, Edits, Handover, LIMITS, Meeting, Order, put};
use crate::proxy::pair::json::Object;

const PARAMS: &str = "kv_transfer_params";

/// Keep the cache for another engine.
const KEEP: &[u8] = br#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

pub(super) struct NixlV2;

impl Connector for NixlV2 {
    fn order(&self) -> Order {
        Order::PrefillFirst
    }

    fn fields(&self) -> &'static [&'static str] {
        const { &[PARAMS, "stream", "stream_options", LIMITS[0], LIMITS[1], LIMITS[2], LIMITS[3], LIMITS[4]] }
    }

    fn prefill(&self, api: Api, _: Meeting) -> Edits {
        let mut edits = api.one_token();
        edits.extend([
            put(PARAMS, KEEP),
            put("stream", "false"),
            // Only a stream has options: an engine refuses them without one.
            ("stream_options", Edit::Remove),
        ]);
        edits
    }

    fn decode(&self, _: Meeting, handover: &Handover) -> Edits {
        // What a client says of other engines' memory is never passed on.
        vec![(PARAMS, handover.kv.clone().map_or(Edit::Remove, Edit::Put))]
    }

    fn hand_over(&self) -> Option<fn(&Bytes) -> Handover> {
        Some(read)
    }

    fn decode_only(&self) -> Edits {
        vec![(PARAMS, Edit::Remove)]
    }
}

/// What a prefill's reply says. A reply that is no JSON hands nothing on.
fn read(reply: &Bytes) -> Handover {
    let Ok(object) = Object::scan(reply, &[PARAMS, "usage"]) else { return Handover::default() };
    let text = |place| reply.get::<std::ops::Range<usize>>(place);
    let kv = object.value(PARAMS).filter(|place| text(place.clone()) != Some(b"null"));
    let cached = object.value("usage").and_then(|usage| {
        let usage = text(usage)?;
        let details = Object::scan(usage, &["prompt_tokens_details"]).ok()?.value("prompt_tokens_details")?;
        let details = usage.get(details)?;
        let cached = details.get(Object::scan(details, &["cached_tokens"]).ok()?.value("cached_tokens")?)?;
        cached.first().is_some_and(u8::is_ascii_digit).then(|| reply.slice_ref(cached))
    });
    Handover { kv: kv.map(|place| reply.slice(place)), cached }
}
