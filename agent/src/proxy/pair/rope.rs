//! A text in pieces: slices of an original and what was put between them. A clone is a reference count.

use std::{ops::Range, rc::Rc};

use bytes::Bytes;

/// A text in pieces, none of them empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::proxy) struct Rope {
    pieces: Rc<[Bytes]>,
    length: u64,
}

impl Rope {
    /// A text with parts replaced, which must be in order.
    pub(in crate::proxy) fn spliced(
        text: &Bytes,
        cuts: impl IntoIterator<Item = (Range<usize>, Bytes)>,
    ) -> Self {
        let mut pieces = Vec::new();
        let mut from = 0;
        for (range, new) in cuts {
            // Never out of order; a slice that was would panic.
            let start = range.start.clamp(from, text.len());
            pieces.extend([text.slice(from..start), new]);
            from = range.end.clamp(start, text.len());
        }
        pieces.push(text.slice(from..));
        pieces.retain(|piece| !piece.is_empty());
        Self { length: pieces.iter().map(|piece| piece.len() as u64).sum(), pieces: pieces.into() }
    }

    /// The piece of that number.
    pub(in crate::proxy) fn piece(&self, at: usize) -> Option<&Bytes> {
        self.pieces.get(at)
    }

    /// Of all pieces, bytes.
    pub(in crate::proxy) fn length(&self) -> u64 {
        self.length
    }

    /// All of it in one piece.
    pub(in crate::proxy) fn whole(&self) -> Bytes {
        match &*self.pieces {
            [one] => one.clone(),
            pieces => pieces.concat().into(),
        }
    }
}
