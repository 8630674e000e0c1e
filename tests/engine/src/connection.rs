//! One connection, from accept to close.

use std::{pin::pin, sync::Arc};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, select, sync::watch};

use crate::{
    api, fixed,
    shared::Shared,
    wire::{Link, Wire},
};

/// Serves a connection until its client leaves, it has been idle for too long, or the engine stops.
///
/// Errors of a connection are its client's business; the counters show them as cancelled requests.
pub(crate) async fn serve(shared: Arc<Shared>, stream: TcpStream, mut stop: watch::Receiver<bool>) {
    drop(stream.set_nodelay(true));
    let link = Link::new();
    let wire = Wire::new(stream, Arc::clone(&link), Arc::clone(&shared.tallies));
    let behaviour = shared.behaviour();
    if let Some(body) = behaviour.fixed_body {
        drop(fixed::serve(wire, body, behaviour.fixed_stream.as_ref(), &shared.tallies, stop).await);
        return;
    }
    let mut behaviours = shared.behaviours();
    let service = {
        let link = Arc::clone(&link);
        service_fn(move |request| api::answer(Arc::clone(&shared), Arc::clone(&link), request))
    };
    let mut connection =
        pin!(http1::Builder::new().half_close(false).serve_connection(TokioIo::new(wire), service));
    loop {
        let idle_close = behaviours.borrow_and_update().idle_close;
        let idle = async {
            match idle_close {
                Some(limit) => link.idle_for(limit).await,
                None => std::future::pending().await,
            }
        };
        select! {
            _ = connection.as_mut() => return,
            changed = behaviours.changed() => if changed.is_err() { break },
            () = idle => break,
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    connection.as_mut().graceful_shutdown();
    drop(connection.await);
}
