//! The selector grammar beside what apimachinery does with the same text, and properties that hold for every text.

use proptest::{collection, prelude::*};

use super::*;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect()
}

fn parse(text: &str) -> Selector {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// What apimachinery's `labels.Parse` and `Matches` do with the same text and labels.
#[test]
fn selectors_match_as_apimachinery_matches() {
    let pod = labels(&[("app", "vllm"), ("tier", ""), ("rank", "7"), ("in", "x"), ("a.b/c", "d")]);
    for (selector, expected) in [
        ("", true),
        ("  \t\n", true),
        ("app=vllm", true),
        ("app==vllm", true),
        ("app = vllm , rank=7", true),
        ("app=vllm,rank=8", false),
        ("app=other", false),
        ("absent=x", false),
        ("app!=vllm", false),
        ("app!=other", true),
        ("absent!=x", true),
        ("app in (vllm,sglang)", true),
        ("app in (sglang)", false),
        ("absent in (x)", false),
        ("app notin (vllm)", false),
        ("app notin (sglang, trt)", true),
        ("absent notin (x)", true),
        ("app", true),
        ("absent", false),
        ("!absent", true),
        ("!app", false),
        ("! app", false),
        ("tier=", true),
        ("tier", true),
        ("app=", false),
        ("tier=,app", true),
        ("tier in (,x)", true),
        ("app in (,x)", false),
        ("tier!=", false),
        ("app!=", true),
        ("rank>6", true),
        ("rank > 7", false),
        ("rank<8", true),
        ("app>1", false),
        ("absent<1", false),
        ("in=x", true),
        ("in in (x,in)", true),
        ("app in(vllm)", true),
        ("a.b/c=d,!a.b/d", true),
    ] {
        assert_eq!(parse(selector).matches(&pod), expected, "{selector:?}");
    }
}

#[test]
fn a_bad_selector_is_refused_with_the_place() {
    for (text, position) in [
        (",", 0),
        ("a,", 2),
        ("a,,b", 2),
        ("=a", 0),
        ("a b", 2),
        ("a=b c", 4),
        ("a=b=c", 3),
        ("a in", 4),
        ("a in b", 5),
        ("a in (", 6),
        ("a in (b", 7),
        ("a in ()", 6),
        ("a notin (b))", 11),
        ("a in (b c)", 8),
        ("!a=b", 2),
        ("!", 1),
        ("!!a", 1),
        ("a=-b", 2),
        ("a=b/c", 2),
        ("-a", 0),
        ("a/b/c=d", 0),
        ("x,A.b/c=d", 2),
        ("a>b", 2),
        ("a>", 2),
        ("a<=1", 2),
        ("é=1", 0),
        ("a=\u{a0}b", 2),
    ] {
        let error = text.parse::<Selector>().expect_err(text);
        assert_eq!(error.position, position, "{text:?}: {error}");
    }
}

#[test]
fn the_display_is_the_shortest_equal_selector() {
    for (text, display) in [
        ("a==b", "a=b"),
        ("a in (b)", "a=b"),
        ("a in (c,b,c)", "a in (b,c)"),
        ("a notin (b)", "a!=b"),
        ("! a , b", "!a,b"),
        ("a in (,b)", "a in (,b)"),
        ("a > 5", "a>5"),
    ] {
        assert_eq!(parse(text).to_string(), display);
    }
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let values = || collection::btree_set("([a-z0-9]([-_.a-zA-Z0-9]{0,8}[a-z0-9])?)?", 1..4);
    let set = |values: BTreeSet<String>| values.into_iter().map(Arc::from).collect();
    let test = prop_oneof![
        values().prop_map(move |values| Test::In(set(values))),
        values().prop_map(move |values| Test::NotIn(set(values))),
        Just(Test::Exists),
        Just(Test::NotExists),
        (0..i64::MAX).prop_map(Test::Above),
        (0..i64::MAX).prop_map(Test::Below),
    ];
    let key = prop_oneof![
        "[a-zA-Z]([-_.a-z]{0,5}[a-z])?",
        "[a-z]{1,4}(\\.[a-z]{1,4})?/[a-z]{1,4}",
        Just("in".to_owned())
    ];
    (key, test).prop_map(|(key, test)| Requirement { key: Arc::from(key), test })
}

proptest! {
    #[test]
    fn what_is_displayed_parses_to_the_same(requirements in collection::vec(requirement(), 0..5)) {
        let selector = Selector { requirements };
        prop_assert_eq!(selector.to_string().parse::<Selector>(), Ok(selector));
    }

    #[test]
    fn no_text_panics_and_what_parses_round_trips(text in "[ab(),=!<>in notin/.\\-\u{e9}]{0,24}|.*") {
        match text.parse::<Selector>() {
            Ok(selector) => prop_assert_eq!(selector.to_string().parse::<Selector>(), Ok(selector)),
            Err(error) => prop_assert!(error.position <= text.len()),
        }
    }

    #[test]
    fn negations_are_exact_opposites(value in "[a-z]{0,3}", present in prop::option::of("[a-z]{0,3}")) {
        let pod: Labels = present.iter().map(|value| (Arc::from("k"), Arc::from(value.as_str()))).collect();
        let matches = |text: String| parse(&text).matches(&pod);
        prop_assert_ne!(matches(format!("k={value}")), matches(format!("k!={value}")));
        prop_assert_ne!(matches(format!("k in ({value},x)")), matches(format!("k notin ({value},x)")));
        prop_assert_ne!(matches("k".into()), matches("!k".into()));
    }
}
