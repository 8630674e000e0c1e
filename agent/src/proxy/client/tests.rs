//! Limits of a client's connection in time (H14), with time as an argument.

use std::time::Duration;

use super::*;
use crate::config::HttpConfig;

fn http() -> HttpConfig {
    HttpConfig {
        head_timeout: Duration::from_millis(100),
        idle_timeout: Duration::from_secs(1),
        ..HttpConfig::default()
    }
}

fn client(multiplexed: bool) -> (Client, Ticker) {
    let ticker = Ticker::default();
    ticker.set(1);
    let client = Client::new(0, false, ticker.clone());
    client.multiplexed.set(multiplexed);
    (client, ticker)
}

/// What a connection is told at a sweep.
fn order(client: &Client, ticker: &Ticker, now: u64) -> Order {
    ticker.set(now);
    client.check(now, &http());
    client.order.get()
}

#[test]
fn h14_an_http2_client_that_does_not_answer_the_goodbye_is_closed() {
    let (client, ticker) = client(true);
    assert_eq!(order(&client, &ticker, 100), Order::Serve);
    assert_eq!(order(&client, &ticker, 101), Order::Finish);
    assert_eq!(order(&client, &ticker, 200), Order::Finish);
    assert_eq!(order(&client, &ticker, 201), Order::Abort);
}

#[test]
fn h14_the_goodbye_waits_for_requests_and_for_the_bytes_of_the_last_one() {
    let (client, ticker) = client(true);
    let turn = client.began();
    client.finish();
    assert_eq!(order(&client, &ticker, 5_000), Order::Finish, "a request is in flight");
    client.ended(&turn, 5_000);
    for now in [5_090, 5_180, 5_270] {
        ticker.set(now);
        client.wrote(&Poll::Ready(Ok(1)));
        assert_eq!(order(&client, &ticker, now + 90), Order::Finish);
    }
    ticker.set(5_990);
    client.wrote(&Poll::Ready(Ok(1)));
    assert_eq!(order(&client, &ticker, 6_000), Order::Abort, "not for ever");
}

#[test]
fn h14_a_response_that_an_http2_client_does_not_take_closes_the_connection() {
    let (client, ticker) = client(true);
    let (stuck, live) = (client.began(), client.began());
    for now in [500, 1_000, 1_500] {
        assert_eq!(order(&client, &ticker, now), Order::Serve, "no response yet");
    }
    client.must_ask(&stuck, 2_500);
    client.must_ask(&live, 3_500);
    assert_eq!(order(&client, &ticker, 2_499), Order::Serve);
    client.ended(&live, 2_499);
    assert_eq!(order(&client, &ticker, 2_500), Order::Abort);
}

#[test]
fn the_place_of_a_response_that_is_over_limits_nobody() {
    let (client, ticker) = client(true);
    let over = client.began();
    client.must_ask(&over, 10);
    let other = client.began();
    client.ended(&over, 5);
    assert_eq!(order(&client, &ticker, 500), Order::Serve);
    let again = client.began();
    assert_eq!(order(&client, &ticker, 500), Order::Serve, "nothing of the one before is left");
    client.ended(&again, 500);
    client.ended(&other, 500);
}
