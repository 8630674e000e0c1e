//! Heads on their way to and from an endpoint: written from a header map, and read into one (RFC 9112). No I/O.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING},
    request,
};

use super::{LinkError, body::Decoder, outbox::Framing};

/// How large the head of a response may be, bytes.
pub(super) const MAX_HEAD: usize = 256 * 1024;

/// How many headers a response may have.
const MAX_HEADERS: usize = 100;

/// Writes the head of a request. How its body ends is said here, and not by what its headers say.
pub(super) fn write(out: &mut Vec<u8>, head: &request::Parts, framing: Option<Framing>) {
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b' ');
    let target = head.uri.path_and_query().map_or("/", |path| path.as_str());
    if target.starts_with('?') {
        // A target in absolute form may have a query and no path.
        out.push(b'/');
    }
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let mut has_length = false;
    for (name, value) in &head.headers {
        if *name == CONTENT_LENGTH {
            has_length = true;
        } else if *name != TRANSFER_ENCODING {
            field(out, name.as_str(), value.as_bytes());
        }
    }
    match framing {
        Some(Framing::Length(length)) => length_field(out, length),
        Some(Framing::Chunked) => field(out, "transfer-encoding", b"chunked"),
        // That it has no body goes without saying, unless it was said.
        None if has_length => length_field(out, 0),
        None => {}
    }
    out.extend_from_slice(b"\r\n");
}

fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn length_field(out: &mut Vec<u8>, length: u64) {
    // Digits from the last to the first.
    let (mut digits, mut left) = ([0; 20], length);
    let mut begin = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(left % 10).unwrap_or_default();
        left /= 10;
        begin -= 1;
        if left == 0 {
            break;
        }
    }
    field(out, "content-length", digits.get(begin..).unwrap_or_default());
}

/// The head of a response, and what it says of its connection.
pub(super) struct Head {
    /// Status and headers.
    pub(super) response: Response<Decoder>,
    /// Another request may follow on the connection.
    pub(super) persists: bool,
}

/// Reads the head of a response, which is then taken from the input. `None`: it is not all there. What comes first may
/// be heads of status 1xx, which are dropped. `spare` is taken for the response's headers: its memory, not its text.
pub(super) fn read(
    input: &mut Bytes,
    to_head: bool,
    spare: &mut HeaderMap,
) -> Result<Option<Head>, LinkError> {
    loop {
        // The parser would skip empty lines, and again with every byte that drips in after them.
        if matches!(input.first(), Some(b'\r' | b'\n')) {
            return Err(LinkError::NotHttp("an empty line stands before the head of the response"));
        }
        let mut fields = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut parsed = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let length = match config.parse_response_with_uninit_headers(&mut parsed, input.as_ref(), &mut fields)
        {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(LinkError::NotHttp("the head of the response is none")),
        };
        let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or(LinkError::NotHttp("the response has no valid status"))?;
        if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            let _ = input.split_to(length);
            continue;
        }
        let version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
        let headers = headers(std::mem::take(spare), input, parsed.headers)?;
        let _ = input.split_to(length);
        return finish(status, version, headers, to_head).map(Some);
    }
}

fn headers(
    mut headers: HeaderMap,
    input: &Bytes,
    parsed: &[httparse::Header<'_>],
) -> Result<HeaderMap, LinkError> {
    headers.clear();
    // Room for the stamps, too.
    headers.reserve(parsed.len() + 2);
    for header in parsed {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let value = HeaderValue::from_maybe_shared(input.slice_ref(header.value));
        match (name, value) {
            (Ok(name), Ok(value)) => headers.append(name, value),
            _ => return Err(LinkError::NotHttp("the response has a header that is none")),
        };
    }
    Ok(headers)
}

fn finish(
    status: StatusCode,
    version: Version,
    mut headers: HeaderMap,
    to_head: bool,
) -> Result<Head, LinkError> {
    let (mut closes, mut keeps) = (false, false);
    for value in headers.get_all(CONNECTION) {
        for option in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            closes |= option.eq_ignore_ascii_case(b"close");
            keeps |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }
    let mut persists = !closes && (version == Version::HTTP_11 || keeps);
    let has_length = headers.contains_key(CONTENT_LENGTH);
    let length = if has_length { Some(length(&mut headers)?) } else { None };
    let has_coding = headers.contains_key(TRANSFER_ENCODING);
    let bodiless = status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
    // What it announces may follow from an engine that does not know better.
    persists &= !(bodiless && (has_coding || length.is_some_and(|length| length > 0)));
    let decoder = if to_head || bodiless || status.is_informational() {
        Decoder::Length(0)
    } else if has_coding {
        if version == Version::HTTP_10 {
            return Err(LinkError::NotHttp("HTTP/1.0 has no Transfer-Encoding"));
        }
        // Whoever says both may be saying one to one reader and the other to another (RFC 9112, 6.3).
        persists &= !has_length;
        if !is_chunked(&headers) {
            return Err(LinkError::NotHttp("the response has another transfer coding than chunked"));
        }
        Decoder::chunked()
    } else {
        length.map_or(Decoder::UntilClose(false), Decoder::Length)
    };
    persists &= !matches!(decoder, Decoder::UntilClose(_));
    let mut response = Response::new(decoder);
    *response.status_mut() = status;
    *response.version_mut() = version;
    *response.headers_mut() = headers;
    Ok(Head { response, persists })
}

/// The one length that every value says. Said more than once, it is made to stand there once.
fn length(headers: &mut HeaderMap) -> Result<u64, LinkError> {
    let bad = LinkError::NotHttp("the response has no one valid Content-Length");
    let (mut one, mut count) = (None, 0);
    for value in headers.get_all(CONTENT_LENGTH) {
        for item in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            let digits = !item.is_empty() && item.iter().all(u8::is_ascii_digit);
            let length = std::str::from_utf8(item).ok().filter(|_| digits).and_then(|item| item.parse().ok());
            count += 1;
            match (length, one) {
                (None, _) => return Err(bad),
                (Some(length), Some(other)) if length != other => return Err(bad),
                _ => one = length,
            }
        }
    }
    let length: u64 = one.ok_or(bad)?;
    if count > 1 {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(length)
}

/// Whether `chunked` is the one coding. Any other stays with this hop, and is not taken off here.
fn is_chunked(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let chunked = codings.next().is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    chunked && codings.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Head>, LinkError> {
        read(&mut Bytes::copy_from_slice(text.as_bytes()), false, &mut HeaderMap::new())
    }

    fn framing(headers: &str) -> Result<(String, bool), LinkError> {
        let head = parse(&format!("HTTP/1.1 200 OK\r\n{headers}\r\n"))?.unwrap();
        let framing = match head.response.body() {
            Decoder::Length(length) => length.to_string(),
            Decoder::Chunked(_) => "chunked".to_owned(),
            Decoder::UntilClose(_) => "close".to_owned(),
        };
        Ok((framing, head.persists))
    }

    fn written(head: &str, framing: Option<Framing>) -> String {
        let mut request = http::Request::builder().uri("/v1/x?y=%20z");
        for line in head.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let mut out = Vec::new();
        write(&mut out, &request.body(()).unwrap().into_parts().0, framing);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_request_says_once_how_its_body_ends() {
        let head = "host: a\ncontent-length: 7\nx-a: 1\nx-a: 2";
        let begin = "GET /v1/x?y=%20z HTTP/1.1\r\nhost: a\r\nx-a: 1\r\nx-a: 2\r\n";
        for (framing, said) in [
            (Some(Framing::Length(12_345_678_901)), "content-length: 12345678901\r\n\r\n"),
            (Some(Framing::Length(0)), "content-length: 0\r\n\r\n"),
            (Some(Framing::Length(u64::MAX)), "content-length: 18446744073709551615\r\n\r\n"),
            (Some(Framing::Chunked), "transfer-encoding: chunked\r\n\r\n"),
            (None, "content-length: 0\r\n\r\n"),
        ] {
            assert_eq!(written(head, framing), format!("{begin}{said}"));
        }
        assert_eq!(written("host: a", None), "GET /v1/x?y=%20z HTTP/1.1\r\nhost: a\r\n\r\n");
    }

    #[test]
    fn the_length_of_a_response_is_what_rfc_9112_says() {
        for (headers, expected) in [
            ("content-length: 5\r\n", ("5", true)),
            ("content-length: 5, 5\r\ncontent-length: 5\r\n", ("5", true)),
            ("content-length: 5\r\nconnection: x, Close\r\n", ("5", false)),
            ("transfer-encoding: Chunked\r\n", ("chunked", true)),
            ("transfer-encoding: chunked\r\ncontent-length: 5\r\n", ("chunked", false)),
            ("", ("close", false)),
        ] {
            let (framing, persists) = framing(headers).unwrap();
            assert_eq!((&framing[..], persists), expected, "{headers}");
        }
    }

    #[test]
    fn what_two_readers_might_take_for_two_lengths_is_no_response() {
        for headers in [
            "content-length: 5\r\ncontent-length: 6\r\n",
            "content-length: 5, 6\r\n",
            "content-length: +5\r\n",
            "content-length: -5\r\n",
            "content-length: 0x5\r\n",
            "content-length: \r\n",
            "content-length: 5,\r\n",
            "content-length: 18446744073709551616\r\n",
            "content-length : 5\r\n",
            "transfer-encoding: gzip\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked, gzip\r\n",
            "transfer-encoding: chunked, chunked\r\n",
            "transfer-encoding: \r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "x-folded: a\r\n b\r\n",
            "x\0: a\r\n",
            "no header\r\n",
        ] {
            assert!(framing(headers).is_err(), "{headers:?}");
        }
        assert!(parse("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(parse("HTTP/2 200\r\n\r\n").is_err());
        assert!(parse("\r\nHTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(parse("HTTP/1.1 100 Go on\r\n\r\n\n").is_err());
        assert!(parse("HTTP/1.1 099 No\r\n\r\n").is_err());
    }

    #[test]
    fn a_response_has_so_many_headers_and_no_more() {
        let with = |count| parse(&format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(count)));
        assert_eq!(with(MAX_HEADERS).unwrap().unwrap().response.headers().len(), MAX_HEADERS);
        assert!(with(MAX_HEADERS + 1).is_err());
    }

    #[test]
    fn a_status_without_a_body_that_announces_one_ends_its_connection() {
        for status in [204, 304] {
            let persists = |headers: &str| {
                let head = parse(&format!("HTTP/1.1 {status} x\r\n{headers}\r\n")).unwrap().unwrap();
                assert!(head.response.body().is_end());
                head.persists
            };
            assert!(persists("") && persists("content-length: 0\r\n"));
            assert!(!persists("content-length: 5\r\n") && !persists("transfer-encoding: chunked\r\n"));
        }
    }

    #[test]
    fn a_query_without_a_path_gets_one() {
        for (target, said) in [("http://a?q=1", "/?q=1"), ("http://a", "/"), ("/?q", "/?q"), ("*", "*")] {
            let mut out = Vec::new();
            write(&mut out, &http::Request::builder().uri(target).body(()).unwrap().into_parts().0, None);
            assert_eq!(String::from_utf8(out).unwrap(), format!("GET {said} HTTP/1.1\r\n\r\n"));
        }
    }

    #[test]
    fn heads_of_status_1xx_are_dropped_but_for_101() {
        let mut input = Bytes::from_static(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 204 No\r\n\r\nrest",
        );
        let mut spare = HeaderMap::from_iter([(CONNECTION, HeaderValue::from_static("close"))]);
        let head = read(&mut input, false, &mut spare).unwrap().unwrap();
        assert!(head.persists && head.response.headers().is_empty(), "nothing is left of what the map said");
        assert_eq!((head.response.status().as_u16(), &input[..]), (204, &b"rest"[..]));
        assert!(head.response.body().is_end());
        let head = parse("HTTP/1.1 101 Go\r\nupgrade: x\r\n\r\n").unwrap().unwrap();
        assert_eq!(head.response.status(), 101);
        assert!(parse("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200").unwrap().is_none());
    }

    #[test]
    fn a_response_to_head_has_no_body_and_http_1_0_closes_unless_it_says_otherwise() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        let mut input = Bytes::from_static(text.as_bytes());
        let head = read(&mut input, true, &mut HeaderMap::new()).unwrap().unwrap();
        assert!(head.response.body().is_end() && head.persists);
        assert_eq!(head.response.headers()[CONTENT_LENGTH], "5");
        let old = |more: &str| {
            parse(&format!("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n{more}\r\n")).unwrap().unwrap().persists
        };
        assert!(!old(""));
        assert!(old("connection: keep-alive\r\n"));
    }
}
