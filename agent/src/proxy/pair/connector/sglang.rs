//! `sglang`: both engines get the same body at once, and meet in a room at the prefill's bootstrap server.

use std::net::IpAddr;

use super::{Api, Connector, Edit, Edits, Handover, Meeting, Order, put};

const HOST: &str = "bootstrap_host";
const PORT: &str = "bootstrap_port";
const ROOM: &str = "bootstrap_room";

pub(super) struct Sglang {
    /// Of every prefill endpoint's bootstrap server.
    pub(super) port: u16,
}

impl Connector for Sglang {
    fn order(&self) -> Order {
        Order::Together
    }

    fn fields(&self) -> &'static [&'static str] {
        &[HOST, PORT, ROOM]
    }

    fn prefill(&self, _: Api, meeting: Meeting) -> Edits {
        self.both(meeting)
    }

    fn decode(&self, meeting: Meeting, _: &Handover) -> Edits {
        self.both(meeting)
    }

    fn decode_only(&self) -> Edits {
        vec![(HOST, Edit::Remove), (PORT, Edit::Remove), (ROOM, Edit::Remove)]
    }
}

impl Sglang {
    fn both(&self, meeting: Meeting) -> Edits {
        let host = match meeting.prefill {
            IpAddr::V4(host) => format!("\"{host}\""),
            // As SGLang's own router writes it.
            IpAddr::V6(host) => format!("\"[{host}]\""),
        };
        vec![put(HOST, host), put(PORT, self.port.to_string()), put(ROOM, meeting.room.to_string())]
    }
}
