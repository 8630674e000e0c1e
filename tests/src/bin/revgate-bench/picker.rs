//! The trivial picker: always the same endpoint, and every body goes on as it came.
//!
//! On the same HTTP/2 and the same framing as revgate's, so that what is compared is what is answered.

use std::{convert::Infallible, net::SocketAddr};

use bytes::Bytes;
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use revgate::extproc::proto::envoy::{
    config::core::v3::{HeaderValue, HeaderValueOption, header_value_option::HeaderAppendAction},
    service::ext_proc::v3::{
        BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpBody,
        ProcessingRequest, ProcessingResponse, StreamedBodyResponse, TrailersResponse,
        body_mutation::Mutation, processing_request::Request as Asked, processing_response::Response as Said,
    },
};
use tokio::{
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
};
use tonic::{
    Status, Streaming,
    codec::{BufferSettings, EncodeBody, SingleMessageCompressionOverride},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use crate::Result;

/// Serves until it is asked to end.
pub(crate) async fn run(listen: SocketAddr, destination: &'static str) -> Result<()> {
    let listener = TcpListener::bind(listen).await?;
    // Not killed: an instrumented one writes its profile at its end.
    let mut asked = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                stream.set_nodelay(true)?;
                tokio::task::spawn_local(serve(stream, destination));
            }
            _ = asked.recv() => return Ok(()),
        }
    }
}

async fn serve(stream: TcpStream, destination: &'static str) {
    let service = service_fn(move |request: Request<Incoming>| async move {
        let decoder = ProstDecoder::new(BufferSettings::default());
        let requests: Streaming<ProcessingRequest> =
            Streaming::new_request(decoder, request.into_body(), None, None);
        let replies = futures_util::stream::unfold(requests, move |mut requests| async move {
            let asked = requests.message().await.ok()??.request?;
            Some((Ok::<_, Status>(answer(asked, destination)), requests))
        });
        let encoder = ProstEncoder::<ProcessingResponse>::new(BufferSettings::default());
        let quiet = SingleMessageCompressionOverride::default();
        let mut response = Response::new(EncodeBody::new_server(encoder, replies, None, quiet, None));
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
        Ok::<_, Infallible>(response)
    });
    // Whatever ends it, its client says what is missing.
    let _ = http2::Builder::new(Local).serve_connection(TokioIo::new(stream), service).await;
}

fn answer(asked: Asked, destination: &'static str) -> ProcessingResponse {
    let said = match asked {
        Asked::RequestHeaders(_) => {
            let header = HeaderValue {
                key: "x-gateway-destination-endpoint".to_owned(),
                value: String::new(),
                raw_value: Bytes::from_static(destination.as_bytes()),
            };
            let set = HeaderValueOption {
                header: Some(header),
                append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
            };
            let mutation = HeaderMutation { set_headers: vec![set], remove_headers: Vec::new() };
            let common = CommonResponse {
                header_mutation: Some(mutation),
                body_mutation: None,
                clear_route_cache: true,
            };
            Said::RequestHeaders(HeadersResponse { response: Some(common) })
        }
        Asked::ResponseHeaders(_) => Said::ResponseHeaders(Bytes::new()),
        Asked::RequestBody(body) => Said::RequestBody(on(body)),
        Asked::ResponseBody(body) => Said::ResponseBody(on(body)),
        Asked::RequestTrailers(_) => Said::RequestTrailers(TrailersResponse::default()),
        Asked::ResponseTrailers(_) => Said::ResponseTrailers(TrailersResponse::default()),
    };
    ProcessingResponse { response: Some(said), dynamic_metadata: Bytes::new() }
}

/// The bodies of the benchmark fit into one message.
fn on(HttpBody { body, end_of_stream }: HttpBody) -> BodyResponse {
    let streamed = Mutation::StreamedResponse(StreamedBodyResponse { body, end_of_stream });
    let common = CommonResponse {
        body_mutation: Some(BodyMutation { mutation: Some(streamed) }),
        ..CommonResponse::default()
    };
    BodyResponse { response: Some(common) }
}

/// Runs streams on the one thread that there is.
#[derive(Clone, Copy)]
pub(crate) struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}
