//! A text that comes in pieces, whole in the end.
//!
//! One piece stays where it was read. Several are joined in one buffer, which grows twofold, and never beyond a length
//! that was told: what is merely promised takes no memory, and neither does the number of pieces.

use bytes::Bytes;

/// The first buffer for what comes in pieces, bytes.
const FIRST: usize = 64 * 1024;

/// What has come.
#[derive(Debug)]
pub(crate) struct Gathered {
    /// While there is one piece.
    first: Bytes,
    /// All, once there are several.
    joined: Vec<u8>,
    /// How long it will be, where that was told.
    told: usize,
}

impl Gathered {
    /// Of which nothing came yet. `told` is its length in bytes, where that is known.
    pub(crate) fn new(told: Option<u64>) -> Self {
        let told = told.and_then(|length| usize::try_from(length).ok());
        Self { first: Bytes::new(), joined: Vec::new(), told: told.unwrap_or(usize::MAX) }
    }

    /// The bytes that came.
    pub(crate) fn length(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    /// The next piece.
    pub(crate) fn add(&mut self, piece: Bytes) {
        let length = self.length() + piece.len();
        if length == piece.len() {
            self.first = piece;
            return;
        }
        if length > self.joined.capacity() {
            let grown = self.joined.capacity().saturating_mul(2).max(FIRST).min(self.told).max(length);
            self.joined.reserve_exact(grown - self.joined.len());
        }
        self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        self.joined.extend_from_slice(&piece);
    }

    /// The whole.
    pub(crate) fn finish(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_piece_is_not_copied_and_several_take_no_more_than_was_told() {
        let piece = Bytes::from(vec![7; 1000]);
        let mut one = Gathered::new(Some(1000));
        one.add(piece.clone());
        one.add(Bytes::new());
        assert_eq!(one.length(), 1000);

        let mut one = Gathered::new(Some(1000));
        one.add(Bytes::new());
        one.add(piece.clone());
        assert_eq!(one.finish().as_ptr(), piece.as_ptr());

        let mut several = Gathered::new(Some(200_000));
        let mut most = 0;
        for _ in 0..200 {
            several.add(piece.clone());
            most = most.max(several.joined.capacity());
            assert!(
                several.joined.capacity() <= several.length().max(FIRST / 2) * 2,
                "no promise is believed"
            );
        }
        assert_eq!((most, several.finish().len()), (200_000, 200_000));
    }

    #[test]
    fn a_million_tiny_pieces_take_what_they_hold() {
        let mut tiny = Gathered::new(None);
        for _ in 0..1_000_000 {
            tiny.add(Bytes::from_static(b"x"));
            tiny.add(Bytes::new());
        }
        assert!(tiny.joined.capacity() <= 2 * tiny.length());
        assert_eq!(tiny.finish().len(), 1_000_000);
    }
}
