//! Where the body of a response ends, and its bytes without their framing (RFC 9112, 6 and 7). No I/O.

use bytes::{Buf, Bytes};

use super::LinkError;

/// What chunk extensions and trailers may come to in one response, bytes.
const LIMIT: usize = 16 * 1024;

/// How many trailers there may be.
const MAX_TRAILERS: usize = 64;

/// How many blanks may follow the size of a chunk, which some servers pad.
const MAX_BLANKS: u8 = 16;

/// Takes the framing off a body.
#[derive(Debug)]
pub(super) enum Decoder {
    /// So many bytes are left.
    Length(u64),
    /// Chunks, and trailers after them.
    Chunked(Chunked),
    /// Until the connection ends, which it has or has not.
    UntilClose(bool),
}

/// What comes next.
#[derive(PartialEq, Debug)]
pub(super) enum Next {
    /// A piece of the body.
    Data(Bytes),
    /// More bytes are needed.
    More,
    /// The body is whole.
    End,
}

impl Decoder {
    /// Of a chunked body.
    pub(super) fn chunked() -> Self {
        Self::Chunked(Chunked {
            state: State::Size,
            left: 0,
            digits: 0,
            blanks: 0,
            beside: 0,
            trailers: Vec::new(),
        })
    }

    /// Whether the body is whole.
    pub(super) fn is_end(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunked) => chunked.state == State::End,
            Self::UntilClose(closed) => *closed,
        }
    }

    /// Takes what it can from what has come.
    pub(super) fn decode(&mut self, input: &mut Bytes) -> Result<Next, LinkError> {
        if self.is_end() {
            return Ok(Next::End);
        }
        if input.is_empty() {
            return Ok(Next::More);
        }
        match self {
            Self::Length(left) => Ok(Next::Data(take(input, left))),
            Self::Chunked(chunked) => chunked.decode(input),
            Self::UntilClose(_) => Ok(Next::Data(std::mem::take(input))),
        }
    }

    /// The connection has ended. True where that is the body's end.
    pub(super) fn close(&mut self) -> bool {
        if let Self::UntilClose(closed) = self {
            *closed = true;
        }
        self.is_end()
    }
}

/// At most so many bytes, which are then no longer left.
fn take(input: &mut Bytes, left: &mut u64) -> Bytes {
    let there = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
    *left -= there as u64;
    input.split_to(there)
}

/// Where in a chunked body the next byte belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Size,
    /// Blanks after the size.
    Blank,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers,
    End,
}

/// A chunked body.
#[derive(Debug)]
pub(super) struct Chunked {
    state: State,
    /// Of this chunk: its size while that is read, then what is left of it.
    left: u64,
    /// Of the size.
    digits: u8,
    /// After the size.
    blanks: u8,
    /// What came beside data.
    beside: usize,
    /// The trailers as they came, and the empty line.
    trailers: Vec<u8>,
}

impl Chunked {
    fn decode(&mut self, input: &mut Bytes) -> Result<Next, LinkError> {
        loop {
            if self.state == State::Data {
                if input.is_empty() {
                    return Ok(Next::More);
                }
                let data = take(input, &mut self.left);
                if self.left == 0 {
                    self.state = State::DataCr;
                }
                return Ok(Next::Data(data));
            }
            let Some(byte) = input.first().copied() else { return Ok(Next::More) };
            input.advance(1);
            self.state = self.step(byte)?;
            if self.state == State::End {
                self.end()?;
                return Ok(Next::End);
            }
        }
    }

    /// One byte that is not data. Only what RFC 9112 has, with its line ends: where two readers may differ on where a
    /// message ends, one of them can be made to take a body for the next response.
    fn step(&mut self, byte: u8) -> Result<State, LinkError> {
        let bad = Err(LinkError::NotHttp("a chunk of the response is not framed as one"));
        match (self.state, byte) {
            (State::Size, _) if byte.is_ascii_hexdigit() => {
                self.digits += 1;
                if self.digits > 16 {
                    return bad;
                }
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                self.left = self.left << 4 | u64::from(digit);
                Ok(State::Size)
            }
            (State::Size, _) if self.digits == 0 => bad,
            (State::Size | State::Blank, b' ' | b'\t') if self.blanks < MAX_BLANKS => {
                self.blanks += 1;
                Ok(State::Blank)
            }
            (State::Size | State::Blank, b';') => self.beside(State::Extension),
            (State::Size | State::Blank | State::Extension, b'\r') => Ok(State::SizeLf),
            (State::Extension, byte) if byte != b'\n' => self.beside(State::Extension),
            (State::SizeLf, b'\n') => {
                (self.digits, self.blanks) = (0, 0);
                Ok(if self.left == 0 { State::Trailers } else { State::Data })
            }
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::Size),
            (State::Trailers, byte) => {
                if (byte == b'\n') != (self.trailers.last() == Some(&b'\r')) {
                    return bad;
                }
                self.trailers.push(byte);
                let whole = self.trailers == b"\r\n" || self.trailers.ends_with(b"\r\n\r\n");
                self.beside(if whole { State::End } else { State::Trailers })
            }
            _ => bad,
        }
    }

    fn beside(&mut self, then: State) -> Result<State, LinkError> {
        self.beside += 1;
        if self.beside > LIMIT {
            return Err(LinkError::NotHttp("the chunks of the response say too much beside their data"));
        }
        Ok(then)
    }

    /// Trailers are dropped, as those of requests are: no rule for headers looks at them. They must be valid, though.
    fn end(&mut self) -> Result<(), LinkError> {
        let lines = std::mem::take(&mut self.trailers);
        if lines == b"\r\n" {
            return Ok(());
        }
        let mut parsed = [httparse::EMPTY_HEADER; MAX_TRAILERS];
        match httparse::parse_headers(&lines, &mut parsed) {
            Ok(httparse::Status::Complete((length, _))) if length == lines.len() => Ok(()),
            _ => Err(LinkError::NotHttp("the trailers of the response are none")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything in a body that comes in pieces of these sizes; `None`: it did not end.
    fn read(mut decoder: Decoder, bytes: &[u8], step: usize) -> Result<Option<(Vec<u8>, usize)>, LinkError> {
        let (mut data, mut at, mut input) = (Vec::new(), 0, Bytes::new());
        loop {
            match decoder.decode(&mut input)? {
                Next::Data(piece) => data.extend_from_slice(&piece),
                Next::End => return Ok(Some((data, at - input.len()))),
                Next::More if at == bytes.len() => return Ok(None),
                Next::More => {
                    let more = &bytes[at..bytes.len().min(at + step)];
                    at += more.len();
                    input = Bytes::copy_from_slice(more);
                }
            }
        }
    }

    #[test]
    fn chunks_come_out_as_they_went_in_however_they_are_cut() {
        let body = b"5\r\nhello\r\n0006 ; a=\"b\"\r\n world\r\n0\r\nx-sum: 1\r\n\r\nnext";
        for step in 1..body.len() {
            let (data, used) = read(Decoder::chunked(), body, step).unwrap().unwrap();
            assert_eq!((&data[..], used), (&b"hello world"[..], body.len() - 4));
        }
    }

    #[test]
    fn trailers_are_read_and_dropped() {
        let body = b"1\r\na\r\n0\r\nX-Sum: 1\r\nx-other:  2 \r\n\r\nHTTP";
        assert_eq!(read(Decoder::chunked(), body, 4).unwrap().unwrap(), (b"a".to_vec(), body.len() - 4));
        let trailers = |count| format!("0\r\n{}\r\n", "a: b\r\n".repeat(count));
        assert!(read(Decoder::chunked(), trailers(MAX_TRAILERS).as_bytes(), 64).unwrap().is_some());
        assert!(read(Decoder::chunked(), trailers(MAX_TRAILERS + 1).as_bytes(), 64).is_err());
    }

    #[test]
    fn a_long_stream_may_pad_every_size() {
        let body = "1               \r\na\r\n".repeat(LIMIT) + "0\r\n\r\n";
        assert_eq!(read(Decoder::chunked(), body.as_bytes(), 1000).unwrap().unwrap().0.len(), LIMIT);
    }

    #[test]
    fn what_others_might_read_differently_is_no_chunk() {
        for bad in [
            "\r\n",
            "g\r\n",
            "-1\r\n",
            "+1\r\nx\r\n",
            " 1\r\nx\r\n",
            "0x1\r\nx\r\n",
            "1\nx\r\n",
            "1\rx\r\n",
            "1 1\r\nx\r\n",
            "1\r\nxx\r\n",
            "1\r\nx\n0\r\n\r\n",
            "1;a\nb\r\nx\r\n",
            "11111111111111111\r\n",
            "0\r\nno trailer\r\n\r\n",
            "0\r\nname : value\r\n\r\n",
            "0\r\n\nHTTP/1.1 200 OK\r\n\r\n",
            "0\r\na: b\n\nANYTHING\r\n\r\n",
            "0\r\na: b\n\r\n",
            "0\r\na: b\rc: d\r\n\r\n",
        ] {
            assert!(read(Decoder::chunked(), bad.as_bytes(), 3).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_comes_beside_the_data_is_bounded() {
        for endless in ["1;", "0\r\nx: ", "1 "] {
            let body = [endless.as_bytes(), &vec![b' '; LIMIT + 1]].concat();
            assert!(read(Decoder::chunked(), &body, 1000).is_err(), "{endless:?}");
        }
    }

    #[test]
    fn a_length_is_kept_and_a_close_ends_only_what_it_delimits() {
        assert_eq!(read(Decoder::Length(5), b"helloHTTP", 3).unwrap().unwrap(), (b"hello".to_vec(), 5));
        assert!(read(Decoder::Length(6), b"hello", 3).unwrap().is_none());
        assert!(!Decoder::Length(6).close());
        assert!(!Decoder::chunked().close());
        assert!(Decoder::UntilClose(false).close());
    }

    proptest! {
        #[test]
        fn no_input_panics_and_no_cut_changes_the_outcome(
            body in proptest::collection::vec(
                prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'0'), Just(b'1'), Just(b';'), any::<u8>()], 0..64),
            step in 1_usize..9,
        ) {
            let whole = read(Decoder::chunked(), &body, 64).ok();
            let pieces = read(Decoder::chunked(), &body, step).ok();
            prop_assert_eq!(whole, pieces);
        }
    }
}
