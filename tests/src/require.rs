//! A privileged test that cannot run is loud, and a failure where `REVGATE_REQUIRE` asks for its tier.

use std::env;

/// Says that this test is skipped and why, or fails it when `REVGATE_REQUIRE` (a comma list) has `tier`.
///
/// # Panics
///
/// When the tier is required.
pub fn skip(tier: &str, why: &str) {
    let required = env::var("REVGATE_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|part| part.trim() == tier),
        "REVGATE_REQUIRE asks for {tier}, but this test cannot run: {why}"
    );
    eprintln!("SKIPPED, NOT PASSED ({tier}): {why}");
}
