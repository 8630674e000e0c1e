//! Endpoint pickers, asked as a gateway asks them (E1 to E6). A real Envoy asks in `tests/tests/envoy`.
#![cfg(test)]

#[expect(dead_code, reason = "helpers of the role listeners' tests, of which these use a part")]
#[path = "../proxy_role/support.rs"]
mod base;
mod begin;
mod breakers;
mod gateway;
#[path = "../proxy_role/handshake.rs"]
mod handshake;
mod health;
mod limits;
mod log;
mod pick;
mod response;
mod subset;
#[expect(dead_code, reason = "helpers of the pair listeners' tests, of which these use a part")]
#[path = "../proxy_pair/support.rs"]
mod support;
mod tls;
mod trust;
