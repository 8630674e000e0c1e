//! A gateway as far as a picker sees it: calls, and what is said in them.

use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{Request, StatusCode};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use prost_types::{ListValue, Struct, Value, value::Kind};
use revgate::{
    config::{PickerConfig, Serves, Trust},
    extproc::proto::envoy::{
        config::core::v3::{HeaderMap, HeaderValue, Metadata},
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode as Mode,
        service::ext_proc::v3::{
            HeaderMutation, HeadersResponse, HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
            ProtocolConfiguration, processing_request::Request as Asked,
            processing_response::Response as Said,
        },
    },
    snapshot::Endpoint,
};
use tokio::{net::TcpStream, sync::mpsc, task::JoinSet};
use tonic::{
    Status, Streaming,
    codec::{BufferSettings, EncodeBody},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use crate::{
    base::{http, soon},
    support::{Rig, config, snapshot},
};

/// The header that names a revision.
pub(crate) const REVISION: &str = "x-llm-d-disagg-revision";

/// Of the two roles, one endpoint, and nobody's headers count.
pub(crate) fn pairs() -> PickerConfig {
    PickerConfig { decode: 1, prefill: Some(0), trust: Trust::Never, endpoints: 1 }
}

pub(crate) fn rig(picker: PickerConfig, endpoints: &[std::sync::Arc<Endpoint>]) -> Rig {
    Rig::over(&config(http(), &[Serves::Picker(picker)]), snapshot(endpoints, &[]))
}

/// A gateway's connection.
pub(crate) struct Gateway {
    sender: SendRequest<tonic::body::Body>,
    _driver: JoinSet<()>,
}

impl Gateway {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap()).await
    }

    pub(crate) async fn over<S>(stream: S) -> Self
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await;
        });
        Self { sender, _driver: driver }
    }

    pub(crate) async fn of(rig: &Rig) -> Self {
        Self::connect(rig.address(0)).await
    }

    /// The answers to a method's messages.
    pub(crate) async fn call<M, R>(
        &mut self,
        path: &str,
        messages: impl Stream<Item = M> + Send + 'static,
    ) -> Streaming<R>
    where
        M: prost::Message + 'static,
        R: prost::Message + Default + Send + 'static,
    {
        let messages = futures_util::StreamExt::map(messages, Ok::<_, Status>);
        let encoder = ProstEncoder::new(BufferSettings::default());
        let body = tonic::body::Body::new(EncodeBody::new_client(encoder, messages, None, None));
        let request = Request::post(format!("http://picker{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(body)
            .unwrap();
        soon(self.sender.ready()).await.unwrap();
        let response = soon(self.sender.send_request(request)).await.unwrap();
        let (head, body) = response.into_parts();
        let decoder = ProstDecoder::new(BufferSettings::default());
        if head.headers.contains_key("grpc-status") {
            // An answer of nothing but its end.
            let trailers = http_body_util::Full::new(Bytes::new());
            assert_eq!(head.headers["grpc-status"], "12");
            return Streaming::new_empty(decoder, trailers);
        }
        Streaming::new_response(decoder, body, head.status, None, None)
    }

    /// A request that begins with these headers.
    pub(crate) async fn ask(&mut self, first: ProcessingRequest) -> Call {
        let (to, messages) = mpsc::unbounded_channel();
        to.send(first).unwrap();
        let messages = stream::unfold(messages, |mut messages| async {
            let message = messages.recv().await?;
            Some((message, messages))
        });
        let path = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
        Call { to, replies: self.call(path, messages).await }
    }

    /// Where a request without a body goes, or why nowhere.
    pub(crate) async fn get(&mut self, headers: &[(&str, &str)]) -> Picked {
        Picked::of(self.ask(request("GET", "/v1/models", headers, true)).await.next().await)
    }
}

/// A request that a picker knows of.
pub(crate) struct Call {
    to: mpsc::UnboundedSender<ProcessingRequest>,
    replies: Streaming<ProcessingResponse>,
}

impl Call {
    pub(crate) fn say(&self, asked: Asked) {
        self.say_with(asked, ProcessingRequest::default());
    }

    /// With what a message says besides.
    pub(crate) fn say_with(&self, asked: Asked, besides: ProcessingRequest) {
        self.to.send(ProcessingRequest { request: Some(asked), ..besides }).unwrap();
    }

    pub(crate) fn body(&self, body: impl Into<Bytes>, end_of_stream: bool) {
        self.say(Asked::RequestBody(HttpBody { body: body.into(), end_of_stream }));
    }

    /// The next reply, of a call that goes on.
    pub(crate) async fn next(&mut self) -> ProcessingResponse {
        soon(self.replies.message()).await.unwrap().expect("a reply")
    }

    /// How the call ends.
    pub(crate) async fn end(&mut self) -> Result<Option<ProcessingResponse>, Status> {
        soon(self.replies.message()).await
    }

    /// How the call ends when the gateway says no more.
    pub(crate) async fn hang_up(self) -> Result<Option<ProcessingResponse>, Status> {
        let Self { to, mut replies } = self;
        drop(to);
        soon(replies.message()).await
    }

    /// What is changed of a response with that status, which the endpoint served that is named.
    pub(crate) async fn answered(&mut self, status: u16, served: Option<SocketAddr>) -> HeaderMutation {
        let served = served.map(|address| self::served(&address.to_string())).unwrap_or_default();
        self.responded(status, true, served).await
    }

    /// The same, with what the message says of who served; perhaps with a body behind it.
    pub(crate) async fn responded(
        &mut self,
        status: u16,
        end_of_stream: bool,
        besides: ProcessingRequest,
    ) -> HeaderMutation {
        self.showed(&[(":status", &status.to_string())], end_of_stream, besides).await
    }

    /// A response with these headers, and no others.
    pub(crate) async fn showed(
        &mut self,
        lines: &[(&str, &str)],
        end_of_stream: bool,
        besides: ProcessingRequest,
    ) -> HeaderMutation {
        let headers = Some(self::headers(lines));
        self.say_with(Asked::ResponseHeaders(HttpHeaders { headers, end_of_stream }), besides);
        let reply = self.next().await;
        let Some(Said::ResponseHeaders(reply)) = reply.response else { panic!("{reply:?}") };
        let reply = HeadersResponse::decode(reply).unwrap();
        reply.response.unwrap().header_mutation.unwrap_or_default()
    }
}

pub(crate) fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&str, &str)| HeaderValue {
        key: (*name).to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    HeaderMap { headers: lines.iter().map(header).collect() }
}

/// The first message of a request, of a gateway that sends bodies as the endpoint picker protocol has it.
pub(crate) fn request(method: &str, path: &str, lines: &[(&str, &str)], end: bool) -> ProcessingRequest {
    let lines = [&[(":method", method), (":path", path)], lines].concat();
    let headers = HttpHeaders { headers: Some(headers(&lines)), end_of_stream: end };
    ProcessingRequest {
        request: Some(Asked::RequestHeaders(headers)),
        protocol_config: Some(bodies(Mode::FullDuplexStreamed)),
        ..ProcessingRequest::default()
    }
}

pub(crate) fn bodies(mode: Mode) -> ProtocolConfiguration {
    ProtocolConfiguration {
        request_body_mode: mode.into(),
        response_body_mode: mode.into(),
        ..ProtocolConfiguration::default()
    }
}

/// That somebody served.
pub(crate) fn served(by: &str) -> ProcessingRequest {
    let name = "x-gateway-destination-endpoint-served";
    ProcessingRequest {
        metadata_context: Some(metadata("envoy.lb", name, Kind::StringValue(by.to_owned()))),
        ..ProcessingRequest::default()
    }
}

/// Envoy's attributes of a response.
pub(crate) fn attributes(lines: &[(&str, &str)]) -> ProcessingRequest {
    let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let fields = lines.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect();
    ProcessingRequest {
        attributes: [("envoy.filters.http.ext_proc".to_owned(), Struct { fields })].into(),
        ..ProcessingRequest::default()
    }
}

pub(crate) fn metadata(namespace: &str, name: &str, kind: Kind) -> Metadata {
    let fields = [(name.to_owned(), Value { kind: Some(kind) })].into();
    Metadata { filter_metadata: [(namespace.to_owned(), Struct { fields })].into() }
}

/// Only these.
pub(crate) fn subset(addresses: &[SocketAddr]) -> Metadata {
    let value = |address: &SocketAddr| Value { kind: Some(Kind::StringValue(address.to_string())) };
    let list = ListValue { values: addresses.iter().map(value).collect() };
    let name = "x-gateway-destination-endpoint-subset";
    metadata("envoy.lb.subset_hint", name, Kind::ListValue(list))
}

/// Where a request goes.
#[derive(Debug)]
pub(crate) enum Picked {
    To { destinations: Vec<SocketAddr>, prefill: Option<SocketAddr>, removed: Vec<String> },
    Refused { status: u16, reason: String },
}

impl Picked {
    /// What a reply says; the destination in header and metadata alike.
    pub(crate) fn of(reply: ProcessingResponse) -> Self {
        match reply.response.unwrap() {
            Said::RequestHeaders(headers) => {
                let common = headers.response.unwrap();
                assert!(common.clear_route_cache);
                let mutation = common.header_mutation.unwrap();
                let set = |name| value(&mutation, name);
                let named = set("x-gateway-destination-endpoint").unwrap();
                let metadata = Struct::decode(reply.dynamic_metadata).unwrap();
                let space = &metadata.fields["envoy.lb"];
                let Some(Kind::StructValue(space)) = &space.kind else { panic!("{space:?}") };
                let metadata = &space.fields["x-gateway-destination-endpoint"].kind;
                assert_eq!(*metadata, Some(Kind::StringValue(named.clone())));
                Self::To {
                    destinations: named.split(',').map(|address| address.parse().unwrap()).collect(),
                    prefill: set("x-prefiller-host-port").map(|address| address.parse().unwrap()),
                    removed: mutation.remove_headers,
                }
            }
            Said::ImmediateResponse(reply) => {
                let status = u16::try_from(reply.status.unwrap().code).unwrap();
                let headers = reply.headers.unwrap();
                let reason = value(&headers, "x-llm-d-request-dropped-reason").unwrap();
                let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
                assert_eq!((body["error"]["code"].as_str(), &reply.details), (Some(&*reason), &reason));
                let status_503 = status == StatusCode::SERVICE_UNAVAILABLE.as_u16();
                assert_eq!(value(&headers, "retry-after").is_some(), status_503);
                Self::Refused { status, reason }
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn destinations(&self) -> &[SocketAddr] {
        let Self::To { destinations, .. } = self else { panic!("{self:?}") };
        destinations
    }

    pub(crate) fn prefill(&self) -> Option<SocketAddr> {
        let Self::To { prefill, .. } = self else { panic!("{self:?}") };
        *prefill
    }

    pub(crate) fn is_refused(&self, with: u16, why: &str) {
        let Self::Refused { status, reason } = self else { panic!("{self:?}") };
        assert_eq!((*status, &**reason), (with, why));
    }
}

/// What a header is set to.
pub(crate) fn value(mutation: &HeaderMutation, name: &str) -> Option<String> {
    let mut set = mutation.set_headers.iter().filter_map(|option| option.header.as_ref());
    let header = set.find(|header| header.key == name)?;
    Some(String::from_utf8(header.raw_value.to_vec()).unwrap())
}
