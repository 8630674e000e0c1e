//! One HTTP/1.1 client connection that is opened when needed and kept while it lasts.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, Response, header::HOST};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

/// Longest time for one exchange.
const PATIENCE: Duration = Duration::from_secs(15);
/// Largest answer that is read, bytes.
const MAX_ANSWER: usize = 1 << 20;

/// A client of one address.
#[derive(Debug)]
pub(super) struct Peer {
    address: SocketAddr,
    open: Option<(SendRequest<Full<Bytes>>, JoinSet<()>)>,
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, open: None }
    }

    /// Sends a request and reads the whole answer. An error is in words.
    pub(super) async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, String> {
        let host = self.address.to_string().parse().map_err(|_| "a bad address".to_owned())?;
        request.headers_mut().insert(HOST, host);
        match timeout(PATIENCE, self.exchange(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                self.open = None;
                Err(format!("{}: {error}", self.address))
            }
            Err(_) => {
                self.open = None;
                Err(format!("{}: no answer within {} s", self.address, PATIENCE.as_secs()))
            }
        }
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, String> {
        // A connection that the other side has closed while it was idle is not ready.
        let kept = match self.open.take() {
            Some((mut sender, task)) => sender.ready().await.is_ok().then_some((sender, task)),
            None => None,
        };
        let (sender, _) = match kept {
            Some(kept) => self.open.insert(kept),
            None => self.open.insert(connect(self.address).await?),
        };
        let response = sender.send_request(request).await.map_err(|error| words(&error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| error.to_string())?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

async fn connect(address: SocketAddr) -> Result<(SendRequest<Full<Bytes>>, JoinSet<()>), String> {
    let stream = TcpStream::connect(address).await.map_err(|error| format!("connect: {error}"))?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| words(&error))?;
    let mut task = JoinSet::new();
    // How a connection ends, its requests tell better.
    task.spawn(async move { drop(connection.await) });
    Ok((sender, task))
}

fn words(error: &hyper::Error) -> String {
    use std::error::Error as _;
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
