//! Where the two legs of a request meet (connector `sglang`): the decode comes to the prefill engine's bootstrap server
//! and asks for the room that both requests name.
//!
//! Real engines learn there where to send KV to. These tell each other who they are, a line each way, which is enough to
//! find out that they do not fit. Neither has anything to answer before.

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    net::SocketAddr,
    sync::Mutex,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    select,
    sync::{Notify, oneshot},
    time::timeout,
};

use crate::shared::lock;

/// Longest wait for the other leg.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest line, bytes.
const LONGEST: u64 = 1024;

/// A room at a bootstrap server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) server: SocketAddr,
    pub(crate) room: u64,
}

/// The rooms of a prefill engine in which a prefill waits for its decode.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    open: Mutex<HashMap<u64, oneshot::Sender<String>>>,
    opened: Notify,
}

/// An open room; closed when dropped.
struct Room<'a> {
    rooms: &'a Rooms,
    number: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        lock(&self.rooms.open).remove(&self.number);
    }
}

impl Rooms {
    /// Opens a room and waits for the decode: its engine's id.
    pub(crate) async fn wait(&self, number: u64) -> io::Result<String> {
        let (came, decode) = oneshot::channel();
        match lock(&self.open).entry(number) {
            Entry::Occupied(_) => return Err(io::Error::other("the room is taken by another request")),
            Entry::Vacant(room) => drop(room.insert(came)),
        }
        let _room = Room { rooms: self, number };
        self.opened.notify_waiters();
        match timeout(PATIENCE, decode).await {
            Ok(Ok(engine_id)) => Ok(engine_id),
            _ => Err(io::Error::new(io::ErrorKind::TimedOut, "no decode came")),
        }
    }

    /// Waits for a room to be opened: who waits in it.
    async fn enter(&self, number: u64) -> oneshot::Sender<String> {
        loop {
            // Listen before looking, so that a room that opens between the two is not missed.
            let mut opened = std::pin::pin!(self.opened.notified());
            opened.as_mut().enable();
            if let Some(prefill) = lock(&self.open).remove(&number) {
                return prefill;
            }
            opened.await;
        }
    }

    /// Serves one connection of a decode.
    pub(crate) async fn receive(&self, engine_id: &str, stream: TcpStream) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        let line = line(&mut stream).await?;
        let asked = line.split_once(' ').and_then(|(room, decode)| Some((room.parse().ok()?, decode)));
        let (room, decode) = asked.ok_or(io::ErrorKind::InvalidData)?;
        let entered = select! {
            entered = timeout(PATIENCE, self.enter(room)) => entered,
            // Nothing follows the line but the end, when the decode is given up.
            _ = stream.read_u8() => return Ok(()),
        };
        let prefill = entered.map_err(|_| io::ErrorKind::TimedOut)?;
        // A prefill that was given up meanwhile needs no decode.
        let _ = prefill.send(decode.to_owned());
        stream.write_all(format!("{engine_id}\n").as_bytes()).await
    }
}

/// Goes to a room: the id of the engine that prefills there.
pub(crate) async fn fetch(place: &Place, engine_id: &str) -> io::Result<String> {
    let meet = async {
        let mut stream = BufReader::new(TcpStream::connect(place.server).await?);
        stream.write_all(format!("{} {engine_id}\n", place.room).as_bytes()).await?;
        line(&mut stream).await
    };
    timeout(PATIENCE, meet).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    stream.take(LONGEST).read_line(&mut line).await?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
