//! How KV goes from the prefill leg of a request to its decode leg, by the engines' connector, and what an engine does
//! about KV of another revision: whatever the connector, it refuses it with [`KV_MISMATCH`].
//!
//! What engines tell each other of themselves is an id, `NAME@REVISION`.

use std::{io, path::PathBuf};

use crate::{
    answer::Ask,
    kv::KvTransfer,
    meeting::{self, Place},
    shared::Shared,
    storage,
};

/// The error code of a leg refused for the revision of its KV.
pub const KV_MISMATCH: &str = "kv_revision_mismatch";

/// Cache blocks that a prefill reply names.
const BLOCKS: u64 = 4;

/// How engines hand KV on. Those that belong together have the same.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Connector {
    /// vLLM's `NixlConnector`: the prefill's reply names its blocks, and the decode fetches them. Requests say which
    /// leg they are.
    #[default]
    Nixl,
    /// vLLM with a storage that all engines share: in this directory the blocks lie under the prompt. The engine's role
    /// says which leg a request is; a decode that finds nothing computes the prompt itself. Foreign blocks are only
    /// noticed where no engine of the decode's own revision has had the same prompt.
    SharedStorage(PathBuf),
    /// `SGLang`: both legs come at once and meet in a room at the prefill engine's bootstrap server, which listens on
    /// this port of its address; 0 takes a free one. The engine's role says which leg a request is.
    Sglang(u16),
}

/// Which part of a disaggregated request this is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Leg {
    Prefill,
    Decode(Offer),
    Local,
}

/// Whether the KV that a decode brings can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Offer {
    Usable,
    Foreign {
        engine_id: String,
    },
    Unnamed,
    /// That is told where the legs meet.
    At(Place),
}

impl Offer {
    /// What the engine of that id offers to one of a revision.
    pub(crate) fn of(engine_id: &str, own_revision: &str) -> Self {
        match engine_id.split_once('@') {
            Some((_, revision)) if revision == own_revision => Self::Usable,
            Some(_) => Self::Foreign { engine_id: engine_id.to_owned() },
            None => Self::Unnamed,
        }
    }
}

impl Shared {
    /// The id by which other engines know this one.
    pub(crate) fn engine_id(&self) -> String {
        format!("{}@{}", self.name, self.revision)
    }

    /// Which leg a request is.
    pub(crate) fn leg(&self, ask: &Ask) -> Leg {
        match (&self.connector, self.role.as_str()) {
            (Connector::Nixl, _) => {
                ask.kv_transfer_params.as_ref().map_or(Leg::Local, |params| params.leg(&self.revision))
            }
            (_, "prefill") => Leg::Prefill,
            (Connector::SharedStorage(directory), "decode") => {
                let writer = storage::find(directory, ask.prompt_key(), &self.revision);
                writer.map_or(Leg::Local, |writer| Leg::Decode(Offer::of(&writer, &self.revision)))
            }
            (Connector::Sglang(_), "decode") => Leg::Decode(ask.place().map_or(Offer::Unnamed, Offer::At)),
            _ => Leg::Local,
        }
    }
}

/// What a leg goes on with.
#[derive(Debug, Default)]
pub(crate) struct Transfer {
    /// The whole prompt came from elsewhere.
    pub(crate) fetched: bool,
    /// What the reply tells of the blocks.
    pub(crate) reply: Option<KvTransfer>,
}

/// Why a leg cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The other leg is of another revision.
    #[error("KV of {theirs} is of no use to {ours}")]
    Foreign { theirs: String, ours: String },
    /// The request does not say what this connector needs.
    #[error("the request lacks {0}")]
    Incomplete(&'static str),
    /// The legs have not met, or storage is away.
    #[error("no KV transfer: {0}")]
    Broken(#[from] io::Error),
}

/// Does a leg's part of handing KV on. With some connectors that takes the other leg.
pub(crate) async fn transfer(
    shared: &Shared,
    leg: Leg,
    ask: &Ask,
    sequence: u64,
) -> Result<Transfer, Refusal> {
    let of = |theirs: String| match Offer::of(&theirs, &shared.revision) {
        Offer::Usable => Ok(()),
        _ => Err(Refusal::Foreign { theirs, ours: shared.engine_id() }),
    };
    let fetched = Transfer { fetched: true, reply: None };
    match leg {
        Leg::Local => Ok(Transfer::default()),
        Leg::Decode(Offer::Usable) => Ok(fetched),
        Leg::Decode(Offer::Foreign { engine_id }) => of(engine_id).map(|()| fetched),
        Leg::Decode(Offer::At(place)) => {
            of(meeting::fetch(&place, &shared.engine_id()).await?).map(|()| fetched)
        }
        Leg::Decode(Offer::Unnamed) => Err(Refusal::Incomplete(match shared.connector {
            Connector::Sglang(_) => "bootstrap_host, bootstrap_port or bootstrap_room",
            _ => "a usable remote_engine_id",
        })),
        Leg::Prefill => {
            let mut transfer = Transfer::default();
            match &shared.connector {
                Connector::Nixl => {
                    let first = sequence.saturating_mul(BLOCKS);
                    let blocks = first..first.saturating_add(BLOCKS);
                    transfer.reply = Some(KvTransfer::reply(shared.engine_id(), shared.address, blocks));
                }
                Connector::SharedStorage(directory) => {
                    storage::store(directory, ask.prompt_key(), &shared.revision, &shared.engine_id())?;
                }
                Connector::Sglang(_) => {
                    let place = ask.place().ok_or(Refusal::Incomplete("bootstrap_room"))?;
                    of(shared.rooms.wait(place.room).await?)?;
                }
            }
            Ok(transfer)
        }
    }
}
