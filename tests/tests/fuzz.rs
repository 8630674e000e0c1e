//! R2: every parser survives its corpus, and mutations of it that are the same in every run. `make fuzz` looks further.
#![cfg(test)]

use std::{
    collections::BTreeSet,
    fs,
    panic::catch_unwind,
    path::{Path, PathBuf},
    thread,
};

use revgate::fuzz::{TARGETS, Target};
use revgate_common::layout::{Event, MAX_REVISIONS, SetTable, Tenant};

/// Mutations of each corpus: so many, or fewer where they come to so many bytes, which bounds the time they take.
const MUTATIONS: usize = 4000;
const BYTES: usize = 1 << 20;

/// Longest input.
const LONGEST: usize = 1 << 14;

/// What parsers look for.
const WORDS: [&[u8]; 18] = [
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b",",
    b":",
    b"- ",
    b"\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x80",
    b"9999999999999999999999",
    b"-1",
    b"null",
    b" ",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// The files of a folder, sorted: a file system has them in any order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    files(&folder("corpus").join(target)).into_iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Numbers that look random and are the same in every run (`SplitMix64`).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `count`; 0 where that is 0.
    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(count.max(1)).unwrap()).unwrap()
    }

    /// A piece of a text, seldom a long one.
    fn piece<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        let longest = if self.below(4) == 0 { text.len() } else { 16 };
        let begin = self.below(text.len() + 1);
        &text[begin..text.len().min(begin + self.below(longest + 1))]
    }
}

/// One input of the corpus with a few changes.
fn mutation(corpus: &[Vec<u8>], draws: &mut Draws) -> Vec<u8> {
    let mut input = corpus[draws.below(corpus.len())].clone();
    for _ in 0..=draws.below(4) {
        let at = draws.below(input.len() + 1);
        let end = input.len().min(at + draws.below(17));
        match draws.below(7) {
            0 if at < input.len() => input[at] ^= 1 << draws.below(8),
            1 => drop(input.splice(at..at, WORDS[draws.below(WORDS.len())].iter().copied())),
            2 => drop(input.splice(at..end, WORDS[draws.below(WORDS.len())].iter().copied())),
            3 => drop(input.drain(at..end)),
            4 => {
                let again = draws.piece(&input).to_vec();
                drop(input.splice(at..at, again));
            }
            5 => {
                let other = &corpus[draws.below(corpus.len())];
                let other = draws.piece(other).to_vec();
                drop(input.splice(at..end, other));
            }
            _ => input.truncate(at),
        }
    }
    input.truncate(LONGEST);
    input
}

/// The first input that makes a target panic, whose message is on standard error by then.
fn failing(target: Target, corpus: &[Vec<u8>]) -> Option<Vec<u8>> {
    let fails = |input: &Vec<u8>| catch_unwind(|| target(input)).is_err();
    if let Some(input) = corpus.iter().find(|input| fails(input)) {
        return Some(input.clone());
    }
    let (mut draws, mut bytes) = (Draws(0), 0);
    let mutations = std::iter::repeat_with(|| mutation(corpus, &mut draws)).take(MUTATIONS);
    let mut mutations = mutations.take_while(|input| {
        bytes += input.len();
        bytes < BYTES
    });
    mutations.find(fails)
}

#[test]
fn r2_every_parser_survives_its_corpus_and_mutations_of_it() {
    let failed: Vec<String> = thread::scope(|scope| {
        let all = TARGETS.map(|(name, target)| {
            scope.spawn(move || {
                let input = failing(target, &corpus(name))?;
                Some(format!("{name} fails on \"{}\": add it to its corpus", input.escape_ascii()))
            })
        });
        all.into_iter().filter_map(|running| running.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What the seeds are named after, they are only as long as the tables look as they did.
#[test]
fn the_seeds_of_kernel_tables_are_what_they_say() {
    let bytes = |name: &str| {
        let seed = fs::read(folder("corpus/kernel_tables").join(name)).unwrap();
        let start = seed.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        seed[start..].to_vec()
    };
    let tenants = |name: &str| {
        let mut table: Box<SetTable> = bytemuck::zeroed_box();
        let bytes = bytes(name);
        bytemuck::bytes_of_mut(&mut *table)[..bytes.len()].copy_from_slice(&bytes);
        let tenants = table.slots.iter().filter(|slot| slot.epoch != 0);
        tenants.map(|slot| (slot.revision, slot.epoch)).collect::<Vec<_>>()
    };
    // 1 and 2 stand for revisions that are known.
    assert_eq!(tenants("known"), [(2, 4), (1, 9)]);
    assert_eq!(tenants("same-revision-twice"), [(1, 3), (1, 4)]);
    assert_eq!(tenants("last-generation"), [(1, u32::MAX), (2, 1)]);
    assert_eq!(tenants("another-set"), [(1, 1)]);
    assert_eq!(tenants("every-slot-taken").len(), MAX_REVISIONS);
    let event: Event = bytemuck::pod_read_unaligned(&bytes("event"));
    assert_eq!((event.protocol, event.tenant), (6, Tenant { set: 0, slot: 0, epoch: 1 }));
}

#[test]
fn a_parser_that_fails_is_found() {
    let corpus = [b"begin-end".to_vec()];
    assert_eq!(failing(|_| {}, &corpus), None);
    let found = failing(|input| assert!(!input.ends_with(b"begin-")), &corpus).unwrap();
    assert!(found.ends_with(b"begin-"), "{found:?}");
}

#[test]
fn r2_each_parser_has_a_fuzz_target_and_a_corpus() {
    let named: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let stems = |name: &str| -> BTreeSet<String> {
        let files = files(&folder(name));
        files.iter().map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(stems("src/bin"), named);
    assert_eq!(stems("corpus"), named);
    for name in named {
        let text = fs::read_to_string(folder("src/bin").join(format!("{name}.rs"))).unwrap();
        assert!(text.contains(&format!("revgate::fuzz::{name}(data)")), "{name} fuzzes another");
        assert!(corpus(&name).len() >= 10, "{name} has no corpus to speak of");
    }
}
