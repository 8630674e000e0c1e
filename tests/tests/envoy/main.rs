//! A real Envoy that asks a running agent (E7). Needs `.ci/setup envoy`; `REVGATE_REQUIRE=envoy` makes that a must.
#![cfg(test)]

mod bodies;
mod deployed;
mod hints;
mod outage;
mod rollout;
mod scene;
