//! A real Envoy that asks a running agent (E7). Needs `.ci/setup envoy`; `REVGATE_REQUIRE=envoy` makes that a must.
#![cfg(test)]

mod bodies;
mod client;
mod deployed;
mod hints;
mod leave;
mod load;
mod outage;
mod reload;
mod rollout;
mod scene;
mod tls;
mod trailers;
