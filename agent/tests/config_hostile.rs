//! R2: whatever the bytes of a configuration file are, the answer is a configuration or a message.
#![cfg(test)]

use std::path::Path;

use proptest::prelude::*;
use revgate::config::{parse, print};

const FIXTURES: [&str; 4] = ["present.yaml", "earlier.yaml", "full.yaml", "bad.yaml"];

/// What a mutation may put in.
const SHARDS: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    "- ",
    "\n",
    "\n  ",
    "\t",
    "&a ",
    "*a",
    "<<: *a",
    "!!str ",
    "!x ",
    "|\n",
    ">-\n",
    "'",
    "\"",
    "#",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "\u{feff}",
    "\0",
];

fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/config/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn survives(bytes: &[u8]) {
    match parse(Path::new("x.yaml"), bytes, None) {
        Ok(loaded) => {
            let text = print(&loaded.config).unwrap();
            let again = parse(Path::new("x.yaml"), text.as_bytes(), None);
            assert_eq!(again.unwrap_or_else(|error| panic!("{error}\n{text}")).config, loaded.config);
        }
        Err(error) => assert!(error.to_string().starts_with("x.yaml:")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        survives(&bytes);
    }

    #[test]
    fn no_text_panics(text in "(?s)[ \\n\\-:{}\\[\\]&*!|>'\"%#a-c0-2,?~\\PC]{0,128}") {
        survives(text.as_bytes());
    }

    #[test]
    fn no_mutation_of_a_good_file_panics(
        fixture_index in 0..FIXTURES.len(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..24_usize, 0..SHARDS.len()), 1..6),
    ) {
        let mut bytes = std::fs::read(fixture(FIXTURES[fixture_index])).unwrap();
        for (place, removed, shard) in edits {
            let start = place.index(bytes.len());
            let end = (start + removed).min(bytes.len());
            drop(bytes.splice(start..end, SHARDS[shard].bytes()));
        }
        survives(&bytes);
    }

    #[test]
    fn lines_in_any_order_do_not_panic(
        fixture_index in 0..FIXTURES.len(),
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..80),
    ) {
        let text = std::fs::read_to_string(fixture(FIXTURES[fixture_index])).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let shuffled: Vec<&str> = order.iter().map(|index| lines[index.index(lines.len())]).collect();
        survives(shuffled.join("\n").as_bytes());
    }
}
