//! The files of the README's tour mean what the README says.
#![cfg(test)]

use std::{collections::HashMap, fs, path::Path, sync::Arc};

use revgate::{
    cluster::{Change, list},
    config,
    snapshot::state::State,
};

#[test]
fn the_tour_gives_revision_a_three_requests_of_four() {
    let tour = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tour");
    let loaded = config::load(&tour.join("revgate.yaml"), None).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let pods = list::parse(&fs::read_to_string(tour.join("pods.yaml")).unwrap()).unwrap();

    let mut state = State::new(Arc::new(loaded.config), HashMap::new(), 0);
    state.apply(Change::Replace(pods.into_iter().map(|listed| listed.pod).collect()));
    let snapshot = state.build();

    let weights: Vec<(&str, u32)> =
        snapshot.sets[0].distribution.revisions.iter().map(|r| (&*r.name, r.weight)).collect();
    assert_eq!(weights, [("a", 3), ("b", 1)]);
    assert_eq!(snapshot.vips.len(), 1);
}
