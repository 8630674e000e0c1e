//! A gateway that knows which endpoints it can reach (E3).

use std::{collections::HashSet, sync::Arc};

use revgate::config::{PickerConfig, Serves, Trust};

use crate::{
    base::http,
    gateway::{Gateway, Picked, REVISION, pairs, request, rig, subset},
    pick::{at, revision_of, two},
    support::{Rig, config, endpoint, ungated},
};

async fn within(gateway: &mut Gateway, addresses: &[u8], headers: &[(&str, &str)]) -> Picked {
    let addresses: Vec<_> = addresses.iter().map(|last| at(*last)).collect();
    let mut first = request("GET", "/", headers, true);
    first.metadata_context = Some(subset(&addresses));
    Picked::of(gateway.ask(first).await.next().await)
}

#[tokio::test]
async fn e3_only_endpoints_of_the_subset_are_picked_and_only_revisions_that_have_them() {
    let rig = rig(PickerConfig { trust: Trust::Always, ..pairs() }, &two());
    let mut gateway = Gateway::of(&rig).await;
    for _ in 0..20 {
        let picked = within(&mut gateway, &[1, 3, 12], &[]).await;
        assert_eq!(
            (picked.destinations(), picked.prefill()),
            (&[at(3)][..], Some(at(1))),
            "`b` has no prefill"
        );
        assert_eq!(within(&mut gateway, &[11, 12, 99], &[]).await.destinations(), [at(12)]);
    }
    let mut seen = HashSet::new();
    for _ in 0..60 {
        seen.insert(within(&mut gateway, &[1, 2, 11, 12], &[]).await.destinations()[0]);
    }
    assert_eq!(seen, HashSet::from([at(2), at(12)]), "both revisions, as their weights say");
    for _ in 0..10 {
        let id = [("x-llm-d-revision-decision-id", "one")];
        let first = within(&mut gateway, &[1, 2, 11, 12], &id).await.destinations()[0];
        let again = within(&mut gateway, &[1, 2, 11, 12], &id).await.destinations()[0];
        assert_eq!(revision_of(first), revision_of(again));
    }
}

#[tokio::test]
async fn e3_nobody_in_the_subset_is_503() {
    let rig = rig(PickerConfig { trust: Trust::Always, ..pairs() }, &two());
    let mut gateway = Gateway::of(&rig).await;
    for nobody in [&[][..], &[99], &[2, 3], &[1, 12]] {
        within(&mut gateway, nobody, &[]).await.is_refused(503, "outside-subset");
    }
    // A revision that is named is not exchanged for one that would do.
    let named = [(REVISION, "b")];
    within(&mut gateway, &[1, 2], &named).await.is_refused(503, "outside-subset");
}

#[tokio::test]
async fn g4_where_nothing_gates_a_revision_is_found_that_has_both_endpoints() {
    let rig = Rig::over(&config(http(), &[Serves::Picker(pairs())]), ungated(&two()));
    let mut gateway = Gateway::of(&rig).await;
    for _ in 0..20 {
        let picked = within(&mut gateway, &[1, 11, 12], &[]).await;
        assert_eq!((picked.destinations(), picked.prefill()), (&[at(12)][..], Some(at(11))));
    }
    within(&mut gateway, &[1, 12], &[]).await.is_refused(503, "outside-subset");
    let mut seen = HashSet::new();
    for _ in 0..60 {
        seen.insert(within(&mut gateway, &[1, 2, 11, 12], &[]).await.destinations()[0]);
    }
    assert_eq!(seen, HashSet::from([at(2), at(12)]));

    let half = [endpoint("a", 0, at(1)), endpoint("b", 0, at(11)), endpoint("b", 1, at(12))];
    rig.published.store(Arc::new(ungated(&half)));
    for _ in 0..20 {
        assert_eq!(gateway.get(&[]).await.destinations(), [at(12)], "without a subset too");
    }
}
