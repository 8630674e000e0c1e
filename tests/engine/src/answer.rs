//! What an engine says: the JSON and the events of each API, for a given number of tokens.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, SocketAddr},
};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{kv::KvTransfer, meeting::Place};

/// The API that a path belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    Chat,
    Completion,
    Responses,
    Messages,
    Generate,
}

impl Dialect {
    pub(crate) fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completion,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/inference/v1/generate" => Self::Generate,
            _ => return None,
        })
    }
}

/// The fields of a request that an engine looks at; all others are accepted.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ask {
    pub(crate) model: Option<String>,
    pub(crate) stream: bool,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    sampling_params: Option<SamplingParams>,
    messages: Value,
    prompt: Value,
    input: Value,
    token_ids: Value,
    pub(crate) kv_transfer_params: Option<KvTransfer>,
    bootstrap_host: Option<String>,
    bootstrap_port: Option<u16>,
    bootstrap_room: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SamplingParams {
    max_tokens: Option<u64>,
}

impl Ask {
    /// The lowest limit that the request sets on the answer's tokens.
    fn limit(&self, dialect: Dialect) -> Option<u64> {
        match dialect {
            Dialect::Chat => self.max_completion_tokens.into_iter().chain(self.max_tokens).min(),
            Dialect::Completion | Dialect::Messages => self.max_tokens,
            Dialect::Responses => self.max_output_tokens,
            Dialect::Generate => self.sampling_params.as_ref().and_then(|params| params.max_tokens),
        }
    }

    /// About four characters a token, at least one.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        let characters = [&self.messages, &self.prompt, &self.input].map(characters).iter().sum::<u64>();
        let ids = self.token_ids.as_array().map_or(0, |ids| u64::try_from(ids.len()).unwrap_or(u64::MAX));
        characters.div_ceil(4).saturating_add(ids).max(1)
    }

    /// The same for the same prompt.
    pub(crate) fn prompt_key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for part in [&self.messages, &self.prompt, &self.input, &self.token_ids] {
            part.to_string().hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Where the legs of this request meet, if it says so.
    pub(crate) fn place(&self) -> Option<Place> {
        let host: IpAddr = self.bootstrap_host.as_ref()?.trim_matches(['[', ']']).parse().ok()?;
        let server = SocketAddr::from((host, self.bootstrap_port?));
        Some(Place { server, room: self.bootstrap_room? })
    }
}

/// Characters of all strings in a value. The depth is bounded by the JSON parser.
fn characters(value: &Value) -> u64 {
    match value {
        Value::String(text) => u64::try_from(text.len()).unwrap_or(u64::MAX),
        Value::Array(items) => items.iter().map(characters).sum(),
        Value::Object(fields) => fields.values().map(characters).sum(),
        _ => 0,
    }
}

/// One answer, told piece by piece.
#[derive(Debug)]
pub(crate) struct Script {
    dialect: Dialect,
    id: String,
    model: String,
    tokens: u64,
    finish: &'static str,
    prompt_tokens: u64,
    cached_tokens: u64,
    usage_event: bool,
    kv: Option<KvTransfer>,
    min_body: usize,
}

/// The place of an event in a stream.
enum Stage {
    Open,
    Token(u64),
    Finish,
    Usage,
    Done,
}

impl Script {
    pub(crate) fn new(dialect: Dialect, ask: &Ask, sequence: u64, tokens: u64, cached_tokens: u64) -> Self {
        let limit = ask.limit(dialect).unwrap_or(u64::MAX);
        Self {
            dialect,
            id: format!("sim-{sequence}"),
            model: ask.model.clone().unwrap_or_default(),
            tokens: tokens.min(limit),
            finish: if limit < tokens { "length" } else { "stop" },
            prompt_tokens: ask.prompt_tokens(),
            cached_tokens: cached_tokens.min(ask.prompt_tokens()),
            usage_event: !matches!(dialect, Dialect::Responses | Dialect::Messages)
                && ask.stream_options.as_ref().is_some_and(|options| options.include_usage),
            kv: None,
            min_body: 0,
        }
    }

    pub(crate) fn with_kv(mut self, kv: Option<KvTransfer>) -> Self {
        self.kv = kv;
        self
    }

    pub(crate) fn filled_to(mut self, min_body: usize) -> Self {
        self.min_body = min_body;
        self
    }

    /// The answer in one piece.
    pub(crate) fn whole(&self) -> Bytes {
        let mut text: String = (0..self.tokens).map(token).collect();
        let bare = self.body(&text).to_string();
        // A letter more in the text is a byte more in the body.
        let missing = self.min_body.saturating_sub(bare.len());
        if missing == 0 {
            return bare.into();
        }
        text.extend(std::iter::repeat_n('x', missing));
        self.body(&text).to_string().into()
    }

    fn body(&self, text: &str) -> Value {
        let (id, model, finish, usage) = (&self.id, &self.model, self.finish, self.usage());
        let mut body = match self.dialect {
            Dialect::Chat => json!({
                "id": id, "object": "chat.completion", "created": 0, "model": model, "usage": usage,
                "choices": [{"index": 0, "finish_reason": finish,
                             "message": {"role": "assistant", "content": text}}],
            }),
            Dialect::Completion => json!({
                "id": id, "object": "text_completion", "created": 0, "model": model, "usage": usage,
                "choices": [{"index": 0, "finish_reason": finish, "text": text}],
            }),
            Dialect::Responses => self.response("completed", text),
            Dialect::Messages => self.message(text),
            Dialect::Generate => json!({
                "request_id": id, "padding": text.trim_start_matches(|c| c != 'x'), "usage": usage,
                "choices": [{"index": 0, "finish_reason": finish,
                             "token_ids": (0..self.tokens).collect::<Vec<_>>()}],
            }),
        };
        if let (Some(kv), Some(fields)) = (&self.kv, body.as_object_mut()) {
            fields.insert("kv_transfer_params".to_owned(), json!(kv));
        }
        body
    }

    fn response(&self, status: &str, text: &str) -> Value {
        json!({
            "id": self.id, "object": "response", "created_at": 0, "model": self.model, "status": status,
            "output": [{"type": "message", "role": "assistant",
                        "content": [{"type": "output_text", "text": text, "annotations": []}]}],
            "usage": self.usage(),
        })
    }

    fn message(&self, text: &str) -> Value {
        let text = json!({"type": "text", "text": text});
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [text],
            "stop_reason": self.stop_reason(), "stop_sequence": null, "usage": self.usage(),
        })
    }

    fn stop_reason(&self) -> &'static str {
        if self.finish == "length" { "max_tokens" } else { "end_turn" }
    }

    fn usage(&self) -> Value {
        let total = self.prompt_tokens.saturating_add(self.tokens);
        match self.dialect {
            Dialect::Responses => json!({
                "input_tokens": self.prompt_tokens, "output_tokens": self.tokens, "total_tokens": total,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
            }),
            Dialect::Messages => json!({
                "input_tokens": self.prompt_tokens, "output_tokens": self.tokens,
                "cache_read_input_tokens": self.cached_tokens,
            }),
            _ => json!({
                "prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens, "total_tokens": total,
                "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            }),
        }
    }

    /// Whether an event waits for a token to be computed.
    pub(crate) fn is_token(&self, index: u64) -> bool {
        matches!(self.stage(index), Some(Stage::Token(_)))
    }

    fn stage(&self, index: u64) -> Option<Stage> {
        let Some(after) = index.checked_sub(self.tokens.saturating_add(1)) else {
            return Some(if index == 0 { Stage::Open } else { Stage::Token(index - 1) });
        };
        Some(match (after, self.usage_event) {
            (0, _) => Stage::Finish,
            (1, true) => Stage::Usage,
            (1, false) | (2, true) => Stage::Done,
            _ => return None,
        })
    }

    /// The event of that index; `None` after the last.
    pub(crate) fn event(&self, index: u64) -> Option<Bytes> {
        let stage = self.stage(index)?;
        Some(match self.dialect {
            Dialect::Responses => self.response_event(&stage, index),
            Dialect::Messages => self.message_events(&stage),
            _ => match self.chunk(&stage) {
                Some(chunk) => format!("data: {chunk}\n\n").into(),
                None => Bytes::from_static(b"data: [DONE]\n\n"),
            },
        })
    }

    fn chunk(&self, stage: &Stage) -> Option<Value> {
        let finish = matches!(stage, Stage::Finish).then_some(self.finish);
        let choice = match (self.dialect, stage) {
            (_, Stage::Done) => return None,
            (_, Stage::Usage) => Value::Null,
            (Dialect::Chat, Stage::Open) => json!({"delta": {"role": "assistant", "content": ""}}),
            (Dialect::Chat, Stage::Token(at)) => json!({"delta": {"content": token(*at)}}),
            (Dialect::Chat, Stage::Finish) => json!({"delta": {}}),
            (Dialect::Generate, Stage::Token(at)) => json!({"token_ids": [at]}),
            (Dialect::Generate, _) => json!({"token_ids": []}),
            (_, Stage::Token(at)) => json!({"text": token(*at)}),
            (_, _) => json!({"text": ""}),
        };
        let choices = match choice {
            Value::Object(mut choice) => {
                choice.insert("index".to_owned(), json!(0));
                choice.insert("finish_reason".to_owned(), json!(finish));
                json!([choice])
            }
            _ => json!([]),
        };
        let object = if self.dialect == Dialect::Chat { "chat.completion.chunk" } else { "text_completion" };
        let mut chunk =
            json!({"id": self.id, "object": object, "created": 0, "model": self.model, "choices": choices});
        if let (Stage::Usage, Some(fields)) = (stage, chunk.as_object_mut()) {
            fields.insert("usage".to_owned(), self.usage());
        }
        Some(chunk)
    }

    /// The Responses API names its events, and has no `[DONE]`; its last event carries the usage.
    fn response_event(&self, stage: &Stage, index: u64) -> Bytes {
        let (name, mut data) = match stage {
            Stage::Open => ("response.created", json!({"response": self.response("in_progress", "")})),
            Stage::Token(at) => ("response.output_text.delta", json!({"delta": token(*at)})),
            Stage::Finish => {
                let text: String = (0..self.tokens).map(token).collect();
                ("response.output_text.done", json!({"text": text}))
            }
            Stage::Usage | Stage::Done => {
                let text: String = (0..self.tokens).map(token).collect();
                ("response.completed", json!({"response": self.response("completed", &text)}))
            }
        };
        if let Some(fields) = data.as_object_mut() {
            fields.insert("sequence_number".to_owned(), json!(index));
        }
        named(name, data).into()
    }

    /// Messages begin and end in two events each; the one that tells why it ends carries the usage.
    fn message_events(&self, stage: &Stage) -> Bytes {
        let events = match stage {
            Stage::Open => {
                let text = json!({"type": "text", "text": ""});
                named("message_start", json!({"message": self.message("")}))
                    + &named("content_block_start", json!({"index": 0, "content_block": text}))
            }
            Stage::Token(at) => {
                let delta = json!({"type": "text_delta", "text": token(*at)});
                named("content_block_delta", json!({"index": 0, "delta": delta}))
            }
            Stage::Finish => {
                let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": null});
                named("content_block_stop", json!({"index": 0}))
                    + &named("message_delta", json!({"delta": delta, "usage": self.usage()}))
            }
            Stage::Usage | Stage::Done => named("message_stop", json!({})),
        };
        events.into()
    }
}

/// An event with a name, which is in its data too.
fn named(name: &str, mut data: Value) -> String {
    if let Some(fields) = data.as_object_mut() {
        fields.insert("type".to_owned(), json!(name));
    }
    format!("event: {name}\ndata: {data}\n\n")
}

fn token(at: u64) -> String {
    format!(" t{at}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(body: &str) -> Ask {
        serde_json::from_str(body).unwrap()
    }

    #[test]
    fn the_lowest_limit_of_the_request_bounds_the_tokens() {
        let one = |dialect, body: &str| Script::new(dialect, &ask(body), 1, 8, 0).tokens;
        assert_eq!(one(Dialect::Chat, r#"{"max_tokens":3,"max_completion_tokens":2}"#), 2);
        assert_eq!(one(Dialect::Completion, r#"{"max_tokens":3}"#), 3);
        assert_eq!(one(Dialect::Responses, r#"{"max_output_tokens":1,"max_tokens":7}"#), 1);
        assert_eq!(one(Dialect::Messages, r#"{"max_tokens":2,"max_output_tokens":1}"#), 2);
        assert_eq!(one(Dialect::Generate, r#"{"sampling_params":{"max_tokens":1}}"#), 1);
        assert_eq!(one(Dialect::Chat, "{}"), 8);
    }

    #[test]
    fn a_whole_answer_is_filled_to_the_byte() {
        for path in [
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/v1/messages",
            "/inference/v1/generate",
        ] {
            let dialect = Dialect::of(path).unwrap();
            let script = Script::new(dialect, &ask("{}"), 1, 8, 0).filled_to(1024);
            assert_eq!(script.whole().len(), 1024, "{dialect:?}");
        }
    }

    #[test]
    fn the_prompt_is_at_least_one_token_and_the_cached_part_no_more_than_it() {
        let script =
            Script::new(Dialect::Chat, &ask(r#"{"messages":[{"content":"12345678"}]}"#), 1, 1, u64::MAX);
        assert_eq!((script.prompt_tokens, script.cached_tokens), (2, 2));
        assert_eq!(ask("{}").prompt_tokens(), 1);
    }

    #[test]
    fn the_place_where_legs_meet_is_read_whole_or_not_at_all() {
        let place = |host| {
            ask(&format!(r#"{{"bootstrap_host":"{host}","bootstrap_port":8998,"bootstrap_room":7}}"#)).place()
        };
        let at = |server: &str| Some(Place { server: server.parse().unwrap(), room: 7 });
        assert_eq!(place("10.0.0.1"), at("10.0.0.1:8998"));
        assert_eq!(place("[fd00::1]"), at("[fd00::1]:8998"));
        assert_eq!(place("a name"), None);
        assert_eq!(ask(r#"{"bootstrap_host":"10.0.0.1","bootstrap_port":8998}"#).place(), None);
    }

    #[test]
    fn usage_comes_once_and_only_where_it_was_asked_for() {
        let events = |body: &str| {
            let script = Script::new(Dialect::Chat, &ask(body), 1, 2, 0);
            (0..).map_while(|at| script.event(at)).map(|e| String::from_utf8(e.to_vec()).unwrap()).collect()
        };
        let bare: Vec<String> = events("{}");
        assert_eq!(bare.len(), 5);
        assert!(bare.iter().all(|event| !event.contains("usage")));
        let with_usage: Vec<String> = events(r#"{"stream_options":{"include_usage":true}}"#);
        assert_eq!(with_usage.iter().filter(|event| event.contains("usage")).count(), 1);
        assert_eq!(with_usage.last().unwrap(), "data: [DONE]\n\n");
    }
}
