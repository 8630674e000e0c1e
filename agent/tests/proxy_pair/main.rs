//! Pair listeners and pairs of role listeners against engines that do what each test says (H2, H3, H6 to H14, G9).
#![cfg(test)]

#[expect(dead_code, reason = "helpers of the role listeners' tests, of which these use a part")]
#[path = "../proxy_role/support.rs"]
mod base;
mod bodies;
mod breaker;
mod cancel;
mod connectors;
mod engines;
mod failures;
mod limits;
mod load;
mod routers;
mod stream;
mod support;
mod trust;
