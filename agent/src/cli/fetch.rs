//! Asks a running agent for its report.

use std::{
    io::{self, IsTerminal, Write},
    pin::pin,
    str::FromStr,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode, header::HOST};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time};

use super::outcome::Failure;
use crate::observe::{Report, admin};

/// Longest time for the whole exchange.
const TIMEOUT: Duration = Duration::from_secs(10);
/// After this a person at a terminal is told what is awaited.
const PATIENCE: Duration = Duration::from_secs(1);
/// Largest report that is read: 13,107 endpoints in each of 64 sets take about 150 bytes each.
const MAX_REPORT: usize = 256 << 20;

/// Where to find the agent.
#[derive(Clone, Debug, clap::Args)]
pub struct Agent {
    /// The agent's admin address, host:port.
    #[arg(long, value_name = "ADDRESS", default_value_t = Address(admin::DEFAULT_ADDRESS.to_string()))]
    pub admin: Address,
}

/// A `host:port`; an `http://` before it and a `/` behind it are taken off.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address(String);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let port =
            bare.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        match port {
            Some(Ok(1..)) => Ok(Self(bare.to_owned())),
            _ => Err(format!("expected host:port, as in {}", admin::DEFAULT_ADDRESS)),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No runtime.
    #[error("cannot start: {0}")]
    Runtime(io::Error),
    /// Nobody there.
    #[error("no agent answers at {address}: {source}")]
    Connect {
        /// Where.
        address: Address,
        /// Why not.
        source: io::Error,
    },
    /// Somebody there, too slow.
    #[error("the agent at {address} did not answer within {} s", TIMEOUT.as_secs())]
    TimedOut {
        /// Where.
        address: Address,
    },
    /// The exchange broke off.
    #[error("the exchange with {address} failed: {reason}")]
    Http {
        /// Where.
        address: Address,
        /// How.
        reason: String,
    },
    /// Somebody else there.
    #[error("what answers at {address} is no revgate of this version: {reason}")]
    NotAnAgent {
        /// Where.
        address: Address,
        /// What was wrong with the answer.
        reason: String,
    },
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        let failure = Self::failed(&error);
        match error {
            FetchError::Connect { .. } | FetchError::TimedOut { .. } => failure
                .hint("Is the agent running on this machine?  revgate run --config FILE")
                .hint("Does it listen elsewhere?  --admin host:port, as `admin.address` of its AgentConfig says")
                .hint("In a cluster:  kubectl -n NAMESPACE exec POD -- revgate status"),
            FetchError::NotAnAgent { .. } => {
                failure.hint("Is --admin the agent's admin address, and the agent of this version?")
            }
            FetchError::Runtime(_) | FetchError::Http { .. } => failure,
        }
    }
}

/// The report of the agent there.
pub fn report(agent: &Agent) -> Result<Report, FetchError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(FetchError::Runtime)?;
    runtime.block_on(with_progress(&agent.admin, async {
        let timed_out = || FetchError::TimedOut { address: agent.admin.clone() };
        time::timeout(TIMEOUT, fetch(&agent.admin)).await.unwrap_or_else(|_| Err(timed_out()))
    }))
}

/// Awaits `work`; a person at a terminal is told after a second what is awaited.
async fn with_progress<T>(address: &Address, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Ok(done) = time::timeout(PATIENCE, work.as_mut()).await {
        return done;
    }
    let shown = io::stderr().is_terminal();
    if shown {
        let _ = write!(io::stderr(), "waiting for the agent at {address} ...");
    }
    let done = work.await;
    if shown {
        // Back to the start of the line, and clear it.
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    done
}

/// The report of the agent at an address, without a bound on the time.
pub async fn fetch(address: &Address) -> Result<Report, FetchError> {
    let http = |error: &dyn std::fmt::Display| FetchError::Http {
        address: address.clone(),
        reason: error.to_string(),
    };
    let not_an_agent = |reason: String| FetchError::NotAnAgent { address: address.clone(), reason };
    let stream = TcpStream::connect(&address.0)
        .await
        .map_err(|source| FetchError::Connect { address: address.clone(), source })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| http(&e))?;
    let request = Request::get("/debug/state").header(HOST, &address.0).body(Empty::<Bytes>::new());
    let request = request.map_err(|e| http(&e))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|e| http(&e))?;
        if response.status() != StatusCode::OK {
            return Err(not_an_agent(format!("GET /debug/state gave {}", response.status())));
        }
        let body = Limited::new(response.into_body(), MAX_REPORT).collect().await.map_err(|e| http(&e))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|e| not_an_agent(e.to_string()))
    };
    // The connection must be driven for the exchange to move; how it ends, the exchange tells better.
    let mut exchange = pin!(exchange);
    tokio::select! {
        biased;
        report = exchange.as_mut() => report,
        _ = connection => exchange.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (text, address) in [
            ("127.0.0.1:9901", "127.0.0.1:9901"),
            ("http://node-a:9901/", "node-a:9901"),
            ("[::1]:9901", "[::1]:9901"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), address);
        }
        for text in ["", "node-a", ":9901", "node-a:http", "node-a:70000", "node-a:0", "https://node-a"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
