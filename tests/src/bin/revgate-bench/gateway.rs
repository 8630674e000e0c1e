//! A proxy as far as an endpoint picker sees it: its side of external processing, over one connection.
//!
//! No Envoy is needed, and nothing is measured: what the pickers do under it is what the optimiser learns.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::Request;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use prost_types::{Struct, Value, value::Kind};
use revgate::extproc::{
    head::{ATTRIBUTES, DESTINATION},
    proto::envoy::{
        config::core::v3::{HeaderMap, HeaderValue},
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
        service::ext_proc::v3::{
            HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
            processing_request::Request as Asked,
        },
    },
};
use tokio::{net::TcpStream, sync::mpsc, task::JoinSet, time::sleep};
use tonic::{
    Status, Streaming,
    codec::{BufferSettings, EncodeBody},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use crate::{Result, picker::Local};

/// The call of every request.
const CALL: &str = "http://picker/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Tries until a picker listens, a hundredth of a second each.
const TRIES: u32 = 1000;

/// A proxy's connection to its picker.
#[derive(Clone)]
pub(crate) struct Gateway {
    sender: SendRequest<tonic::body::Body>,
}

impl Gateway {
    /// Connects as soon as the picker says where a request with that body goes.
    pub(crate) async fn connect(picker: SocketAddr, body: &Bytes) -> Result<Self> {
        for _ in 0..TRIES {
            if let Ok(stream) = TcpStream::connect(picker).await {
                stream.set_nodelay(true)?;
                let (sender, connection) = handshake(Local, TokioIo::new(stream)).await?;
                tokio::task::spawn_local(async move {
                    if let Err(error) = connection.await {
                        eprintln!("bench: the connection to a picker broke: {error}");
                    }
                });
                let mut gateway = Self { sender };
                // Until it has read its endpoints it refuses.
                if gateway.request(body, false).await? {
                    return Ok(gateway);
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
        Err(format!("no pick from {picker}").into())
    }

    /// Asks for so many requests at a time, for so long, with that body both ways; or by headers alone.
    pub(crate) async fn run(
        &self,
        requests: usize,
        body: &Bytes,
        headers_only: bool,
        time: Duration,
    ) -> Result<()> {
        let mut clients = JoinSet::new();
        for _ in 0..requests {
            let (mut gateway, body) = (self.clone(), body.clone());
            clients.spawn_local(async move {
                loop {
                    if !gateway.request(&body, headers_only).await? {
                        return Result::<()>::Err("a picker refused a request".into());
                    }
                }
            });
        }
        tokio::select! {
            () = sleep(time) => Ok(()),
            // A client only ends by an error.
            Some(ended) = clients.join_next() => ended?,
        }
    }

    /// One request and its response. Whether it was sent anywhere.
    async fn request(&mut self, body: &Bytes, headers_only: bool) -> Result<bool> {
        let (to, messages) = mpsc::unbounded_channel();
        let end_of_stream = headers_only || body.is_empty();
        let message = |asked| ProcessingRequest { request: Some(asked), ..ProcessingRequest::default() };
        let mode = if headers_only { BodySendMode::None } else { BodySendMode::FullDuplexStreamed };
        let modes = ProtocolConfiguration {
            request_body_mode: mode.into(),
            response_body_mode: mode.into(),
            ..ProtocolConfiguration::default()
        };
        let head = HttpHeaders { headers: Some(request_headers(body.len())), end_of_stream };
        let first = message(Asked::RequestHeaders(head));
        to.send(ProcessingRequest { protocol_config: Some(modes), ..first })?;
        let piece = || HttpBody { body: body.clone(), end_of_stream: true };
        if !end_of_stream {
            to.send(message(Asked::RequestBody(piece())))?;
        }
        let mut replies = self.call(messages).await?;
        let each = if end_of_stream { 1 } else { 2 };
        let picked = replies.message().await?.ok_or("a picker said nothing")?;
        let Some(endpoint) = pick(picked) else { return Ok(false) };
        for _ in 1..each {
            replies.message().await?.ok_or("a picker left a body out")?;
        }
        let head = HttpHeaders { headers: Some(response_headers(body.len())), end_of_stream };
        let first = message(Asked::ResponseHeaders(head));
        to.send(ProcessingRequest { attributes: attributes(endpoint), ..first })?;
        if !end_of_stream {
            to.send(message(Asked::ResponseBody(piece())))?;
        }
        for _ in 0..each {
            replies.message().await?.ok_or("a picker left a response out")?;
        }
        drop(to);
        while replies.message().await?.is_some() {}
        Ok(true)
    }

    async fn call(
        &mut self,
        messages: mpsc::UnboundedReceiver<ProcessingRequest>,
    ) -> Result<Streaming<ProcessingResponse>> {
        let messages = futures_util::stream::unfold(messages, |mut messages| async {
            let message = messages.recv().await?;
            Some((Ok::<_, Status>(message), messages))
        });
        let encoder = ProstEncoder::new(BufferSettings::default());
        let body = tonic::body::Body::new(EncodeBody::new_client(encoder, messages, None, None));
        let request = Request::post(CALL)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(body)?;
        self.sender.ready().await?;
        let (head, body) = self.sender.send_request(request).await?.into_parts();
        let decoder = ProstDecoder::new(BufferSettings::default());
        Ok(Streaming::new_response(decoder, body, head.status, None, None))
    }
}

/// Where the request goes, if a reply says so.
fn pick(reply: ProcessingResponse) -> Option<String> {
    use revgate::extproc::proto::envoy::service::ext_proc::v3::processing_response::Response as Said;
    let Some(Said::RequestHeaders(headers)) = reply.response else { return None };
    let set = headers.response?.header_mutation?.set_headers;
    let named =
        set.into_iter().filter_map(|option| option.header).find(|header| header.key == DESTINATION)?;
    String::from_utf8(named.raw_value.into()).ok()
}

/// What Envoy says besides of a response that the endpoint has made.
fn attributes(endpoint: String) -> BTreeMap<String, Struct> {
    let value = |text| Value { kind: Some(Kind::StringValue(text)) };
    let fields = [
        ("response.code_details".to_owned(), value("via_upstream".to_owned())),
        ("upstream.address".to_owned(), value(endpoint)),
    ];
    [(ATTRIBUTES.to_owned(), Struct { fields: fields.into() })].into()
}

/// What Envoy says of a client's request.
fn request_headers(length: usize) -> HeaderMap {
    headers(&[
        (":authority", "bench"),
        (":path", "/v1/completions"),
        (":method", "POST"),
        (":scheme", "http"),
        ("user-agent", "bench"),
        ("accept", "*/*"),
        ("content-type", "application/json"),
        ("content-length", &length.to_string()),
        ("x-forwarded-proto", "http"),
        ("x-request-id", "4f0b7a52-4b62-4be0-9d4a-0a2d9a3c6a11"),
    ])
}

/// What it says of an engine's response.
fn response_headers(length: usize) -> HeaderMap {
    headers(&[
        (":status", "200"),
        ("content-type", "application/json"),
        ("content-length", &length.to_string()),
        ("date", "Mon, 01 Jan 2024 00:00:00 GMT"),
        ("x-envoy-upstream-service-time", "1"),
    ])
}

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let header = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    HeaderMap { headers: lines.iter().map(header).collect() }
}
