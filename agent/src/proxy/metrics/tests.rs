//! What is shown of what was counted, and for how long.

use super::*;

#[test]
fn a_time_is_counted_in_the_bucket_of_its_bound() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry, StrictNoMatch::default());
    let listener = metrics.listener("prefill", &"set".into(), Alive::default());
    listener.latency.observe(100);
    listener.latency.observe(101);
    listener.latency.observe(u64::from(u32::MAX));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(
        text.contains(r#"proxy_time_to_response_seconds_bucket{le="0.0001",listener="prefill"} 1"#),
        "{text}"
    );
    assert!(
        text.contains(r#"proxy_time_to_response_seconds_bucket{le="0.00025",listener="prefill"} 2"#),
        "{text}"
    );
    assert!(
        text.contains(r#"proxy_time_to_response_seconds_bucket{le="+Inf",listener="prefill"} 3"#),
        "{text}"
    );
}

#[test]
fn series_of_a_revision_that_is_gone_go() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry, StrictNoMatch::default());
    let alive = Alive::default();
    let listener = metrics.listener("prefill", &"set".into(), alive.clone());
    let revision: Arc<str> = "5c9d7a1b".into();
    let last = listener.revision(&revision);
    last.served(StatusCode::OK);
    let show = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    };
    assert!(show().contains("5c9d7a1b"));
    listener.forget(&revision);
    assert!(!show().contains("5c9d7a1b"));
    // A request of the revision ends only now.
    last.served(StatusCode::OK);
    last.served(StatusCode::BAD_GATEWAY);
    assert!(!show().contains("5c9d7a1b"), "{}", show());
    // The revision comes again.
    listener.revision(&revision).served(StatusCode::OK);
    assert!(show().contains("5c9d7a1b"));
    let last = listener.revision(&revision);
    metrics.forget_listener("prefill", &alive, [revision]);
    last.served(StatusCode::BAD_GATEWAY);
    assert!(!show().contains(r#"listener="prefill""#), "{}", show());
}
