//! Simulated engines from the command line, for benchmarks and for trying things by hand.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use revgate_engine::{Behaviour, Connector, Engine, EngineConfig, EngineError};
use tokio::{
    select,
    signal::unix::{SignalKind, signal},
};

/// Runs simulated inference engines until interrupted.
#[derive(Debug, Parser)]
#[command(name = "revgate-engine", version)]
struct Args {
    /// Where to listen; repeated: one engine each
    #[arg(long = "listen", value_name = "ADDRESS", required = true)]
    listen: Vec<SocketAddr>,
    /// The engine's name [default: its address]
    #[arg(long)]
    name: Option<String>,
    /// The engines' revision
    #[arg(long, default_value = "a")]
    revision: String,
    /// The engines' role
    #[arg(long, default_value = "decode")]
    role: String,
    /// Hand KV on through this directory, which all engines share, instead of from engine to engine
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "bootstrap_port")]
    storage: Option<PathBuf>,
    /// Hand KV on as SGLang does: both legs at once, meeting at a prefill engine's bootstrap server on this port
    #[arg(long, value_name = "PORT")]
    bootstrap_port: Option<u16>,
    /// Tokens of an answer
    #[arg(long, default_value_t = 8)]
    tokens: u64,
    /// Milliseconds before the head of a response
    #[arg(long, value_name = "MS", default_value_t = 0)]
    first_byte_delay: u64,
    /// Milliseconds before each token of a stream
    #[arg(long, value_name = "MS", default_value_t = 0)]
    token_delay: u64,
    /// Fill whole answers up to this many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    min_body: usize,
    /// Cheap mode: answer everything with a body of this many bytes, without looking at the request
    #[arg(long, value_name = "BYTES")]
    fixed_body: Option<usize>,
    /// Name the engine in an `x-engine` response header
    #[arg(long)]
    reveal: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(EngineError::Thread)
        .and_then(|runtime| runtime.block_on(run(args)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("revgate-engine: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), EngineError> {
    let behaviour = Behaviour {
        tokens: args.tokens,
        first_byte_delay: Duration::from_millis(args.first_byte_delay),
        token_delay: Duration::from_millis(args.token_delay),
        min_body: args.min_body,
        fixed_body: args.fixed_body,
        reveal: args.reveal,
        ..Behaviour::default()
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(EngineError::Thread)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(EngineError::Thread)?;
    let connector = match (args.storage, args.bootstrap_port) {
        (Some(directory), _) => Connector::SharedStorage(directory),
        (None, Some(port)) => Connector::Sglang(port),
        (None, None) => Connector::Nixl,
    };
    let mut engines = Vec::new();
    for address in args.listen {
        let mut config = EngineConfig {
            behaviour: behaviour.clone(),
            connector: connector.clone(),
            ..EngineConfig::new(address, args.revision.as_str(), args.role.as_str())
        };
        if let Some(name) = &args.name {
            config.name.clone_from(name);
        }
        let engine = Engine::start(config).await?;
        println!("listening on {}", engine.address());
        engines.push(engine);
    }
    select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    for engine in engines {
        engine.stop(Duration::from_secs(5)).await;
    }
    Ok(())
}
