//! The `cached_tokens` of an answer are the prefill's: the decode had the whole prompt from elsewhere (H8).
//!
//! Of an event stream each line that has a usage is edited; all else goes on untouched, as soon as its line is whole,
//! which every piece that engines send is. Anything else is one JSON object, held until it is whole. What is longer
//! than the limit goes on as it is: an answer is worth more than one number in it.

use bytes::{Bytes, BytesMut};
use memchr::{memchr2, memmem, memrchr2};

use super::json::{Edit, Edits, Object};

/// Edits an answer on its way.
#[derive(Debug)]
pub(in crate::proxy) struct CachedTokens {
    edits: Edits,
    form: Form,
    /// What is not whole yet.
    held: BytesMut,
    limit: usize,
}

/// How an answer is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::proxy) enum Form {
    /// Server-sent events.
    Events,
    /// One object.
    Object,
    /// As it comes.
    Untouched,
}

impl CachedTokens {
    /// Writes this number over the answer's own. At most `limit` bytes are held.
    pub(in crate::proxy) fn new(number: Bytes, form: Form, limit: usize) -> Self {
        let details = vec![("cached_tokens", Edit::Put(number))];
        let usage = vec![("prompt_tokens_details", Edit::Within(details))];
        let edits = vec![("usage", Edit::WithinPresent(usage))];
        Self { edits, form, held: BytesMut::new(), limit }
    }

    /// What goes on now that this has come. May be empty.
    pub(in crate::proxy) fn push(&mut self, data: Bytes) -> Bytes {
        let whole = match self.form {
            Form::Untouched => return data,
            Form::Object => 0,
            Form::Events => memrchr2(b'\n', b'\r', &data).map_or(0, |at| at + 1),
        };
        if whole == data.len() && self.held.is_empty() {
            return self.lines(data);
        }
        let (lines, rest) = data.split_at(whole);
        if self.held.len() + data.len() > self.limit {
            self.form = Form::Untouched;
            self.held.extend_from_slice(&data);
            return std::mem::take(&mut self.held).freeze();
        }
        if whole == 0 {
            self.held.extend_from_slice(rest);
            return Bytes::new();
        }
        let mut before = std::mem::replace(&mut self.held, BytesMut::from(rest));
        before.extend_from_slice(lines);
        self.lines(before.freeze())
    }

    /// What goes on at the end.
    pub(in crate::proxy) fn finish(&mut self) -> Bytes {
        let rest = std::mem::take(&mut self.held).freeze();
        match self.form {
            Form::Object => self.object(&rest).unwrap_or(rest),
            Form::Events => self.lines(rest),
            Form::Untouched => rest,
        }
    }

    /// Whole lines of an event stream.
    fn lines(&self, lines: Bytes) -> Bytes {
        const DATA: &[u8] = b"data:";
        let usage = |text: &[u8]| memmem::find(text, b"\"usage\"").is_some();
        if !usage(&lines) {
            return lines;
        }
        let mut edited = Vec::with_capacity(lines.len() + 64);
        let mut rest = &lines[..];
        while !rest.is_empty() {
            let (line, after) = rest.split_at(memchr2(b'\n', b'\r', rest).map_or(rest.len(), |at| at + 1));
            rest = after;
            let object = line.strip_prefix(DATA).filter(|line| usage(line)).and_then(|line| {
                let end = line.trim_ascii_end().len();
                let (text, end) = line.split_at(end);
                Some((self.object(&Bytes::copy_from_slice(text))?, end))
            });
            match &object {
                Some((object, end)) => edited.extend(DATA.iter().chain(object).chain(*end)),
                None => edited.extend_from_slice(line),
            }
        }
        edited.into()
    }

    /// One object; `None`: it is none.
    fn object(&self, text: &Bytes) -> Option<Bytes> {
        Some(Object::scan(text, &["usage"]).ok()?.edit(text, &self.edits).whole())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = concat!(
        ": comment with \"usage\"\r\n\r\n",
        "data: {\"id\":1,\"choices\":[{\"text\":\"say \\\"usage\\\" é\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":null}\n\n",
        "event: x\r\ndata: {\"usage\":{\"total\": 9,\"prompt_tokens_details\":{\"cached_tokens\":7}}}\r\n\r\n",
        "data:{\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: \"usage\" is no object\n\n",
        "data: [DONE]\n\n",
        "data: {\"usage\":{\"prompt_tokens_details\":null}}",
    );

    fn edited() -> String {
        STREAM
            .replace("\"cached_tokens\":7", "\"cached_tokens\":3")
            .replace(
                "{\"prompt_tokens\":1}",
                "{\"prompt_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":3}}",
            )
            .replace("\"prompt_tokens_details\":null", "\"prompt_tokens_details\":{\"cached_tokens\":3}")
    }

    fn run(form: Form, limit: usize, pieces: &[&[u8]]) -> Vec<u8> {
        let mut edit = CachedTokens::new(Bytes::from_static(b"3"), form, limit);
        let mut out: Vec<u8> =
            pieces.iter().flat_map(|piece| edit.push(Bytes::copy_from_slice(piece))).collect();
        out.extend(edit.finish());
        out
    }

    #[test]
    fn an_object_is_edited_whole_or_not_at_all() {
        let text = br#"{"id":1,"usage":{"prompt_tokens_details":{"cached_tokens":12, "x":1e400}}}"#;
        let want = br#"{"id":1,"usage":{"prompt_tokens_details":{"cached_tokens":3, "x":1e400}}}"#;
        for at in 0..text.len() {
            let (first, second) = text.split_at(at);
            assert_eq!(run(Form::Object, 1000, &[first, second]), want);
            assert_eq!(run(Form::Object, text.len() - 1, &[first, second]), text, "too long");
        }
        assert_eq!(run(Form::Object, 1000, &[b"no JSON"]), b"no JSON");
        assert_eq!(run(Form::Object, 1000, &[br#"{"usage":null}"#]), br#"{"usage":null}"#);
    }

    #[test]
    fn a_whole_line_goes_on_at_once_and_what_has_no_usage_is_not_even_copied() {
        let mut edit = CachedTokens::new(Bytes::from_static(b"3"), Form::Events, 1000);
        let event = Bytes::from_static(b"data: {\"choices\":[]}\n\n");
        assert_eq!(edit.push(event.clone()).as_ptr(), event.as_ptr());
        assert_eq!(edit.push(Bytes::from_static(b"data: {}\ndata")), "data: {}\n");
        assert_eq!(edit.push(Bytes::from_static(b": 1\n")), "data: 1\n");
    }

    #[test]
    fn a_line_without_end_goes_on_when_it_is_too_long() {
        let line = [b'x'; 3000];
        let mut edit = CachedTokens::new(Bytes::from_static(b"3"), Form::Events, 1000);
        assert!(edit.push(Bytes::copy_from_slice(&line[..900])).is_empty());
        assert_eq!(edit.push(Bytes::copy_from_slice(&line[900..])), line[..]);
    }

    proptest! {
        #[test]
        fn a_stream_is_edited_wherever_it_is_cut(mut at in prop::collection::vec(0..STREAM.len(), 0..8)) {
            at.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for at in at {
                pieces.push(&STREAM.as_bytes()[from..at]);
                from = at;
            }
            pieces.push(&STREAM.as_bytes()[from..]);
            prop_assert_eq!(String::from_utf8(run(Form::Events, 10_000, &pieces)).unwrap(), edited());
        }
    }
}
