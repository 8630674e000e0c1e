//! How a [`SetTable`] holds endpoints: in runs of words, as few for each as can be.
//!
//! Where there are thousands of endpoints, the line of memory with the one that was picked is what a connect waits for.
//! Of IPv4 endpoints that share a port, which is the rule, a line holds sixteen.
//!
//! | endpoints of a role | words of each |
//! |---|---|
//! | IPv4, all with one port | the address |
//! | IPv4 | the port, the address |
//! | IPv6, all with one port | the address, its last word first |
//! | IPv6 | the port, the address, its last word first |
//!
//! So the word behind the port, if there is one, is always the last of the address. All is in network order. The first
//! word of all is nobody's: an address has a word before it, whether that is its port or not.
//!
//! As with [`layout`](crate::layout), a change of this file that alters what a word means raises its `VERSION`.

use bytemuck::{Pod, Zeroable};

use crate::{
    address::Address,
    decide::Family,
    layout::{MAX_ENDPOINTS, SetTable},
};

/// The words of all endpoints of a table: as many as a `u16` counts.
pub const ENDPOINT_WORDS: usize = 1 << 16;
/// Most words of one endpoint.
pub const MAX_WORDS: usize = 5;

/// Two runs of [`SetTable::endpoints`]: one word, read at once.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
pub struct Runs {
    /// The word before the address of the first IPv4 endpoint.
    pub v4_before: u16,
    /// How many IPv4 endpoints there are.
    pub v4_count: u16,
    /// The word before the address of the first IPv6 endpoint.
    pub v6_before: u16,
    /// How many IPv6 endpoints there are.
    pub v6_count: u16,
}

/// How the endpoints of a role are written down, by family: one word, read at once.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
pub struct Form {
    /// Words of an IPv4 endpoint: 1, or 2 with its port.
    pub v4_words: u16,
    /// Words of an IPv6 endpoint: 4, or 5 with its port.
    pub v6_words: u16,
    /// The port of all IPv4 endpoints, in network order; 0: each has its own.
    pub v4_port: u16,
    /// The port of all IPv6 endpoints, in network order; 0: each has its own.
    pub v6_port: u16,
}

/// The endpoints of one revision (or of all) in one role.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
pub struct Range {
    /// Where they are.
    pub runs: Runs,
    /// What they look like, the same in all ranges of a role.
    pub form: Form,
}

/// Where an endpoint is and what it is, in one number: the word before its address, above it the port of all or 0, and
/// the family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Locator(u64);

impl Locator {
    /// The highest bit.
    const V6: u64 = 1 << 63;

    /// Of the endpoint with this index in the run behind that word, by words of each and port of all.
    #[inline(always)]
    #[must_use]
    pub const fn new(v6: bool, before: u16, index: u32, words: u16, port: u16) -> Self {
        let family = if v6 { Self::V6 } else { 0 };
        Self(family | (port as u64) << 16 | (before as u64 + index as u64 * words as u64))
    }

    /// As a number, never `u64::MAX`.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// From [`Self::to_bits`].
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl SetTable {
    /// The endpoint that a locator stands for.
    ///
    /// All that an endpoint may have is read, and what it has not is masked out: with branches the verifier would walk what
    /// follows once for each. The compiler makes branches of the mask by family, but for `black_box`.
    #[inline(always)]
    #[must_use]
    #[expect(
        clippy::indexing_slicing,
        reason = "a u16 and four are below the length; the verifier proves it too"
    )]
    #[expect(clippy::cast_possible_truncation, reason = "the parts of a locator, and a port in a word")]
    pub fn endpoint(&self, Locator(bits): Locator, family: Family) -> Address {
        // All ones for a negative number, else 0.
        let mask = |number: i64| (number >> 63).cast_unsigned() as u32;
        let before = usize::from(bits as u16);
        let word = |n: usize| self.endpoints[before + n];
        let port = (bits >> 16) as u16;
        let port = port | (word(0) & mask(i64::from(port) - 1)) as u16;
        let v4 = Address::v4(word(1), port);
        if family == Family::V4 {
            return v4;
        }
        let v6 = core::hint::black_box(mask(bits.cast_signed()));
        let [_, _, mapped, last] = v4.ip;
        Address { ip: [word(2) & v6, word(3) & v6, word(4) & v6 | mapped & !v6, last], ..v4 }
    }

    /// The endpoints of a range.
    pub fn endpoints(&self, range: &Range) -> impl Iterator<Item = Address> {
        let Range { runs, form } = *range;
        let v4 = (0..runs.v4_count.into())
            .map(move |n| Locator::new(false, runs.v4_before, n, form.v4_words, form.v4_port));
        let v6 = (0..runs.v6_count.into())
            .map(move |n| Locator::new(true, runs.v6_before, n, form.v6_words, form.v6_port));
        v4.chain(v6).map(|locator| self.endpoint(locator, Family::V6))
    }
}

const _: () = {
    assert!(ENDPOINT_WORDS == u16::MAX as usize + 1, "an index of two bytes is below it");
    assert!(MAX_ENDPOINTS * MAX_WORDS < ENDPOINT_WORDS, "all fit behind the first word, which is nobody's");
};
