//! Alarms by themselves, and hyper's keepalive on them: time is an argument, and there is no runtime that had a timer.

use std::{convert::Infallible, task::Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};

use super::*;
use crate::proxy::{client::Local, wakes::tests::Count};

fn alarms(now: u64) -> Alarms {
    Alarms::new(Clock::start(), now)
}

fn count() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count::default());
    (Arc::clone(&count), count.into())
}

fn has_come(alarm: &mut Pin<Box<dyn Sleep>>, waker: &Waker) -> bool {
    alarm.as_mut().poll(&mut Context::from_waker(waker)).is_ready()
}

#[test]
fn an_alarm_wakes_at_the_first_sweep_from_its_time_on_and_then_has_come_for_good() {
    let (alarms, (count, waker)) = (alarms(100), count());
    let mut alarm = alarms.sleep(Duration::from_millis(50));
    assert!(!has_come(&mut alarm, &waker));
    alarms.sweep(149);
    assert_eq!(count.0.load(SeqCst), 0);
    assert!(!has_come(&mut alarm, &waker), "polled for another reason");
    alarms.sweep(150);
    assert_eq!(count.0.load(SeqCst), 1);
    assert!(has_come(&mut alarm, &waker) && has_come(&mut alarm, &waker));
    let mut late = alarms.sleep_until(alarms.now());
    assert!(has_come(&mut late, &waker), "no sweep is waited for");
    assert!(!has_come(&mut alarms.sleep(Duration::MAX), &waker), "the longest there is");
}

#[test]
fn the_time_is_that_of_the_last_sweep() {
    let (alarms, (_, waker)) = (alarms(100), count());
    let then = alarms.now();
    alarms.sweep(150);
    assert_eq!(alarms.now() - then, Duration::from_millis(50));
    let mut alarm = alarms.sleep_until(then + Duration::from_millis(51));
    assert!(!has_come(&mut alarm, &waker));
    alarms.sweep(151);
    assert!(has_come(&mut alarm, &waker));
}

#[test]
fn whoever_polled_last_is_woken() {
    let (alarms, (former, first), (latter, second)) = (alarms(1), count(), count());
    let mut alarm = alarms.sleep(Duration::from_millis(1));
    assert!(!has_come(&mut alarm, &first) && !has_come(&mut alarm, &second));
    alarms.sweep(2);
    assert_eq!((former.0.load(SeqCst), latter.0.load(SeqCst)), (0, 1));
}

#[test]
fn an_alarm_that_is_reset_wakes_at_its_new_time_polled_or_not() {
    let (alarms, (count, waker)) = (alarms(1), count());
    let then = alarms.now();
    let mut alarm = alarms.sleep(Duration::from_millis(10));
    assert!(!has_come(&mut alarm, &waker));
    alarms.reset(&mut alarm, then + Duration::from_millis(20));
    alarms.sweep(11);
    assert_eq!(count.0.load(SeqCst), 0, "not at the former time");
    alarms.reset(&mut alarm, then + Duration::from_millis(15));
    alarms.sweep(16);
    assert_eq!(count.0.load(SeqCst), 1);
    assert!(has_come(&mut alarm, &waker));
    alarms.reset(&mut alarm, then + Duration::from_millis(30));
    assert!(!has_come(&mut alarm, &waker), "again");
    alarms.sweep(31);
    assert_eq!(count.0.load(SeqCst), 2);
}

#[test]
fn one_that_is_dropped_wakes_nobody_and_is_forgotten() {
    let (alarms, (count, waker)) = (alarms(1), count());
    let mut dropped = alarms.sleep(Duration::from_millis(1));
    let kept = alarms.sleep(Duration::from_millis(1));
    assert!(!has_come(&mut dropped, &waker));
    drop(dropped);
    alarms.sweep(2);
    assert_eq!(count.0.load(SeqCst), 0);
    assert_eq!(alarms.0.all.lock().unwrap().len(), 1);
    drop(kept);
}

/// A connection of hyper's with a ping after 1,000 ms and 300 for its answer.
type Served = Pin<Box<dyn Future<Output = hyper::Result<()>>>>;

fn served(alarms: &Alarms) -> (Served, DuplexStream) {
    let (ours, theirs) = duplex(64 << 10);
    let mut builder = http2::Builder::new(Local);
    builder
        .timer(alarms.clone())
        .keep_alive_interval(Duration::from_secs(1))
        .keep_alive_timeout(Duration::from_millis(300));
    let service = service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    (Box::pin(builder.serve_connection(TokioIo::new(ours), service)), theirs)
}

/// Polls a connection for as long as something wakes it.
fn settle(served: &mut Served, count: &Count, waker: &Waker) -> Poll<hyper::Result<()>> {
    loop {
        let before = count.0.load(SeqCst);
        let polled = served.as_mut().poll(&mut Context::from_waker(waker));
        if polled.is_ready() || count.0.load(SeqCst) == before {
            return polled;
        }
    }
}

fn send(stream: &mut DuplexStream, bytes: &[u8]) {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(
        matches!(Pin::new(stream).poll_write(&mut cx, bytes), Poll::Ready(Ok(sent)) if sent == bytes.len())
    );
}

/// The payloads of the pings among the frames that came.
fn pings(stream: &mut DuplexStream) -> Vec<[u8; 8]> {
    let mut room = [0; 4096];
    let mut buffer = ReadBuf::new(&mut room);
    let _ = Pin::new(stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer);
    let (mut frames, mut pings) = (buffer.filled(), Vec::new());
    while let [a, b, c, kind, flags, _, _, _, _, rest @ ..] = frames {
        let (payload, next) = rest.split_at(u32::from_be_bytes([0, *a, *b, *c]) as usize);
        if (*kind, *flags) == (PING, 0) {
            pings.push(payload.try_into().unwrap());
        }
        frames = next;
    }
    pings
}

const PING: u8 = 6;
/// The preface and empty SETTINGS.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn h14_hypers_keepalive_ends_a_connection_whose_peer_answers_no_ping() {
    let (alarms, (count, waker)) = (alarms(1), count());
    let (mut served, mut theirs) = served(&alarms);
    send(&mut theirs, HELLO);
    assert!(settle(&mut served, &count, &waker).is_pending());
    assert!(pings(&mut theirs).is_empty());
    let woken = |now| {
        let before = count.0.load(SeqCst);
        alarms.sweep(now);
        count.0.load(SeqCst) != before
    };
    assert!(!woken(1_000));
    assert!(woken(1_001));
    assert!(settle(&mut served, &count, &waker).is_pending());
    assert_eq!(pings(&mut theirs).len(), 1);
    assert!(!woken(1_300));
    assert!(woken(1_301));
    let Poll::Ready(Err(error)) = settle(&mut served, &count, &waker) else { panic!("it goes on") };
    assert!(error.is_timeout(), "{error:?}");
}

#[test]
fn h14_hypers_keepalive_goes_on_with_a_peer_that_answers() {
    let (alarms, (count, waker)) = (alarms(1), count());
    let (mut served, mut theirs) = served(&alarms);
    send(&mut theirs, HELLO);
    // Each sweep is late, and all the later is what follows.
    for now in [1, 1_400, 2_900, 4_400] {
        alarms.sweep(now);
        assert!(settle(&mut served, &count, &waker).is_pending());
        let pings = pings(&mut theirs);
        assert_eq!(pings.len(), usize::from(now != 1), "at {now}");
        for payload in pings {
            send(&mut theirs, &[&[0, 0, 8, PING, 1, 0, 0, 0, 0], &payload[..]].concat());
        }
        assert!(settle(&mut served, &count, &waker).is_pending());
        alarms.sweep(now + 400);
        assert!(settle(&mut served, &count, &waker).is_pending(), "the answer came");
    }
}
