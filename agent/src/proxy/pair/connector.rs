//! What each leg of a pair sends (H8), as edits of the client's body.
//!
//! A connector is data and no I/O: a file below this one, and a line in [`of`].

mod nixlv2;
mod sglang;
mod shared_storage;

use std::net::IpAddr;

use bytes::Bytes;
use http::Method;

use super::json::{Edit, Edits};
use crate::config::{ConnectorKind, PairConfig};

/// Which leg waits for which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// The decode leg begins when the prefill leg has answered.
    PrefillFirst,
    /// Both begin at once, and wait for each other.
    Together,
}

/// Where the two legs of one request meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meeting {
    /// The prefill endpoint.
    pub(super) prefill: IpAddr,
    /// Fresh for each try, 63 bits: the engines read a signed number.
    pub(super) room: u64,
}

/// What the prefill's reply hands on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Handover {
    /// Where the decode finds the KV cache, as the prefill wrote it.
    pub(super) kv: Option<Bytes>,
    /// How many tokens of the prompt the prefill had cached.
    pub(super) cached: Option<Bytes>,
}

/// How the engines of a set hand a KV cache on.
pub(super) trait Connector {
    /// Which leg waits for which.
    fn order(&self) -> Order;
    /// Every member of a body that an edit may name.
    fn fields(&self) -> &'static [&'static str];
    /// The prefill leg's body.
    fn prefill(&self, api: Api, meeting: Meeting) -> Edits;
    /// The decode leg's body.
    fn decode(&self, meeting: Meeting, handover: &Handover) -> Edits;
    /// How a prefill's reply is read. `None`: only to its end.
    fn hand_over(&self) -> Option<fn(&Bytes) -> Handover> {
        None
    }
    /// The decode leg's body without a prefill.
    fn decode_only(&self) -> Edits {
        Edits::new()
    }
}

/// The connector of a listener.
pub(super) fn of(config: &PairConfig) -> Box<dyn Connector> {
    match config.connector {
        ConnectorKind::NixlV2 => Box::new(nixlv2::NixlV2),
        ConnectorKind::SharedStorage => Box::new(shared_storage::SharedStorage),
        ConnectorKind::Sglang => Box::new(sglang::Sglang { port: config.bootstrap_port }),
    }
}

/// An API whose requests have two legs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Api {
    /// `OpenAI`'s chat.
    Chat,
    /// `OpenAI`'s completions.
    Completions,
    /// `OpenAI`'s responses.
    Responses,
    /// Anthropic's messages.
    Messages,
    /// Tokens in, tokens out.
    Generate,
}

/// What [`Api::one_token`] edits.
const LIMITS: [&str; 5] =
    ["max_tokens", "max_completion_tokens", "min_tokens", "max_output_tokens", "sampling_params"];

impl Api {
    /// The API of a request; `None`: no request with two legs.
    pub(super) fn of(method: &Method, path: &str) -> Option<Self> {
        let api = match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/inference/v1/generate" => Self::Generate,
            _ => return None,
        };
        (method == Method::POST).then_some(api)
    }

    /// Limits an answer to the one token without which no engine answers.
    fn one_token(self) -> Edits {
        let one = || Edit::Put(Bytes::from_static(b"1"));
        match self {
            Self::Chat | Self::Completions => vec![
                ("max_tokens", one()),
                ("max_completion_tokens", one()),
                ("min_tokens", Edit::Replace(Bytes::from_static(b"1"))),
            ],
            Self::Responses => vec![("max_output_tokens", one())],
            Self::Messages => vec![("max_tokens", one())],
            Self::Generate => {
                let limits = vec![("max_tokens", one()), ("min_tokens", one())];
                vec![("sampling_params", Edit::Within(limits))]
            }
        }
    }
}

/// A member with a value that is written here.
fn put(name: &'static str, value: impl Into<Bytes>) -> (&'static str, Edit) {
    (name, Edit::Put(value.into()))
}

#[cfg(test)]
mod tests;
