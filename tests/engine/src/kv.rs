//! KV transfer as vLLM's `NixlConnector` speaks it over HTTP (connector `nixlv2`): `kv_transfer_params` in the prefill
//! request, the place of the blocks in its reply, and that same object in the decode request.
//!
//! The id of a simulated engine tells its revision ([`Offer::of`]), so that a decoder can tell whose blocks it is
//! offered.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::handover::{Leg, Offer};

/// The side-channel port that a prefill reply names; vLLM's default (`VLLM_NIXL_SIDE_CHANNEL_PORT`).
const SIDE_CHANNEL_PORT: u16 = 5600;

/// The object `kv_transfer_params`, in requests and replies. Unknown fields are ignored.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KvTransfer {
    /// This is a prefill: keep the blocks for another engine.
    pub do_remote_decode: bool,
    /// This is a decode: the blocks are elsewhere.
    pub do_remote_prefill: bool,
    /// Who holds the blocks.
    pub remote_engine_id: Option<String>,
    /// Which blocks.
    pub remote_block_ids: Option<Vec<u64>>,
    /// The holder's host.
    pub remote_host: Option<String>,
    /// The holder's side-channel port.
    pub remote_port: Option<u16>,
    /// The holder's tensor parallelism.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tp_size: Option<u32>,
}

impl KvTransfer {
    pub(crate) fn reply(engine_id: String, address: SocketAddr, blocks: std::ops::Range<u64>) -> Self {
        Self {
            do_remote_decode: false,
            do_remote_prefill: true,
            remote_engine_id: Some(engine_id),
            remote_block_ids: Some(blocks.collect()),
            remote_host: Some(address.ip().to_string()),
            remote_port: Some(SIDE_CHANNEL_PORT),
            tp_size: Some(1),
        }
    }

    pub(crate) fn leg(&self, own_revision: &str) -> Leg {
        if self.do_remote_prefill {
            Leg::Decode(
                self.remote_engine_id.as_deref().map_or(Offer::Unnamed, |id| Offer::of(id, own_revision)),
            )
        } else if self.do_remote_decode {
            Leg::Prefill
        } else {
            Leg::Local
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_handed_on_is_usable_by_its_own_revision_only() {
        let reply = KvTransfer::reply("p0@a@1".to_owned(), ([127, 1, 0, 1], 8000).into(), 4..8);
        assert_eq!(reply.leg("a@1"), Leg::Decode(Offer::Usable));
        assert_eq!(reply.leg("a"), Leg::Decode(Offer::Foreign { engine_id: "p0@a@1".to_owned() }));
    }

    #[test]
    fn kv_without_an_engine_id_is_not_taken_for_ones_own() {
        let params = KvTransfer { do_remote_prefill: true, ..KvTransfer::default() };
        assert_eq!(params.leg("a"), Leg::Decode(Offer::Unnamed));
    }

    #[test]
    fn the_prefill_request_of_nixlv2_parses_with_its_nulls() {
        let params: KvTransfer = serde_json::from_str(
            r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,
                "remote_block_ids":null,"remote_host":null,"remote_port":null}"#,
        )
        .unwrap();
        assert_eq!(params.leg("a"), Leg::Prefill);
    }
}
