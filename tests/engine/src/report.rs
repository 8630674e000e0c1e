//! What a client has counted: written by `revgate-client`, read by the tests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What became of a client's requests.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClientReport {
    /// Requests that were answered.
    pub answered: u64,
    /// Requests whose decode was refused for the revision of its prefill.
    pub mixed: u64,
    /// Requests begun anew, because the revision of their prefill had ended before the decode. They are not `failed`.
    pub begun_anew: u64,
    /// Answers of the prefill leg by engine.
    pub prefill: BTreeMap<String, u64>,
    /// Answers of the decode leg by engine.
    pub decode: BTreeMap<String, u64>,
    /// Requests that failed, by leg and error.
    pub failed: BTreeMap<String, u64>,
}
