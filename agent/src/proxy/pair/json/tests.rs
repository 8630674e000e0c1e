//! What an edit changes, and that it changes nothing else.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

const NAMES: [&str; 4] = ["a", "b", "inner", "stream_options"];

fn edit(text: &str, edits: &Edits) -> String {
    let text = Bytes::copy_from_slice(text.as_bytes());
    let rope = Object::scan(&text, &NAMES).unwrap().edit(&text, edits);
    String::from_utf8(rope.whole().to_vec()).unwrap()
}

fn put(name: &'static str, value: &'static str) -> (&'static str, Edit) {
    (name, Edit::Put(Bytes::from_static(value.as_bytes())))
}

fn remove(name: &'static str) -> (&'static str, Edit) {
    (name, Edit::Remove)
}

#[test]
fn a_value_is_replaced_in_place_wherever_it_stands_or_added_at_the_end() {
    assert_eq!(edit(r#"{ "a" : 1 , "x":2 }"#, &vec![put("a", "9")]), r#"{ "a" : 9 , "x":2 }"#);
    assert_eq!(edit(r#"{"a":1,"x":2,"a":[3]}"#, &vec![put("a", "9")]), r#"{"a":9,"x":2,"a":9}"#);
    assert_eq!(edit(r#"{ "x":2 }"#, &vec![put("a", "9"), put("b", "8")]), r#"{ "x":2,"a":9,"b":8 }"#);
    assert_eq!(edit("{ }", &vec![put("a", "9"), put("b", "8")]), r#"{"a":9,"b":8 }"#);
    let replace = vec![("a", Edit::Replace(Bytes::from_static(b"9")))];
    assert_eq!(edit(r#"{"x":1}"#, &replace), r#"{"x":1}"#);
    assert_eq!(edit(r#"{"a":1}"#, &replace), r#"{"a":9}"#);
}

#[test]
fn what_is_removed_takes_one_comma_with_it() {
    let gone = vec![remove("a"), remove("b")];
    for (text, left) in [
        (r#"{"a":1}"#, "{}"),
        (r#"{"a":1,"x":2}"#, r#"{"x":2}"#),
        (r#"{"x":2, "a":1}"#, r#"{"x":2}"#),
        (r#"{"x":2, "a":1 , "y":3}"#, r#"{"x":2 , "y":3}"#),
        (r#"{"a":1,"b":2,"x":3}"#, r#"{"x":3}"#),
        (r#"{"a":1,"x":3,"b":2}"#, r#"{"x":3}"#),
        (r#"{"a":1,"b":2,"a":3}"#, "{}"),
        (r#"{"a":1,"x":3,"b":2,"a":7}"#, r#"{"x":3}"#),
    ] {
        assert_eq!(edit(text, &gone), left, "{text}");
    }
    assert_eq!(edit(r#"{"a":1}"#, &vec![remove("a"), put("b", "8")]), r#"{"b":8}"#);
    assert_eq!(edit(r#"{"x":1,"a":1}"#, &vec![remove("a"), put("b", "8")]), r#"{"x":1,"b":8}"#);
}

#[test]
fn an_inner_object_is_edited_made_or_left_alone() {
    let within = vec![("inner", Edit::Within(vec![put("a", "9")]))];
    assert_eq!(edit(r#"{"inner":{"z":[1] }}"#, &within), r#"{"inner":{"z":[1],"a":9 }}"#);
    assert_eq!(edit(r#"{"q":0,"inner": {"a":1}}"#, &within), r#"{"q":0,"inner": {"a":9}}"#);
    assert_eq!(edit(r#"{"inner":null}"#, &within), r#"{"inner":{"a":9}}"#);
    assert_eq!(edit("{}", &within), r#"{"inner":{"a":9}}"#);
    assert_eq!(edit(r#"{"inner":7}"#, &within), r#"{"inner":7}"#, "the engine says what is wrong with it");
    let present = vec![("inner", Edit::WithinPresent(vec![put("a", "9")]))];
    assert_eq!(edit("{}", &present), "{}");
    assert_eq!(edit(r#"{"inner":null}"#, &present), r#"{"inner":null}"#);
    assert_eq!(edit(r#"{"inner":{}}"#, &present), r#"{"inner":{"a":9}}"#);
}

#[test]
fn numbers_escapes_and_surrogates_stay_as_they_are_written() {
    let text = r#"{"n":1e400,"m":-0.10,"big":123456789012345678901234567890,"s":"\ud800 \u00e9 é","a":1}"#;
    assert_eq!(edit(text, &vec![put("a", "1")]), text);
    assert_eq!(edit(text, &vec![]), text);
}

#[test]
fn a_key_written_with_escapes_is_the_same_key_and_the_last_of_several_counts() {
    let text = r#"{"\u0061":1,"a":2}"#;
    let object = Object::scan(text.as_bytes(), &NAMES).unwrap();
    assert_eq!(object.value("a").map(|place| &text[place]), Some("2"));
    assert_eq!(edit(text, &vec![remove("a")]), "{}");
}

#[test]
fn what_is_no_object_is_told_apart() {
    let of = |text: &[u8]| Object::scan(text, &NAMES).unwrap_err();
    assert!(matches!(of(b""), JsonError::Empty));
    assert!(matches!(of(b" \n"), JsonError::Empty));
    for text in [&b"[1]"[..], b"\"a\"", b"nonsense", b"1", b"\xff", b"\xef\xbb\xbf{}"] {
        assert!(matches!(of(text), JsonError::NoObject), "{text:?}");
    }
    for text in
        [&b"{"[..], b"{\"a\":}", b"{\"a\":1,}", b"{} {}", b"{\"a\":\"\xff\"}", b"{a:1}", b"{\"a\":01}"]
    {
        assert!(matches!(of(text), JsonError::Syntax(_)), "{text:?}");
    }
}

#[test]
fn any_depth_costs_no_stack_and_many_repetitions_no_memory() {
    const DEPTH: usize = 1 << 20;
    let deep = format!(r#"{{"x":{}{},"a":1}}"#, "[".repeat(DEPTH), "]".repeat(DEPTH));
    assert!(edit(&deep, &vec![put("a", "9")]).ends_with(r#"]],"a":9}"#));
    let open = format!(r#"{{"a":{}"#, r#"{"a":"#.repeat(DEPTH));
    assert!(Object::scan(open.as_bytes(), &NAMES).is_err());
    let often = format!(r#"{{{}"x":1}}"#, r#""a":1,"#.repeat(MOST + 1));
    assert!(Object::scan(often.as_bytes(), &NAMES).unwrap_err().to_string().contains("too often"));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC*".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-c]|inner|\\PC{0,3}", inner, 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn an_edited_object_differs_in_the_edited_members_alone(
        mut fields in prop::collection::hash_map("[a-c]|inner|stream_options|\\PC{0,4}", value(), 0..8),
        pretty in any::<bool>(),
    ) {
        let object = Value::Object(fields.clone().into_iter().collect());
        let text = if pretty { format!("{object:#}") } else { object.to_string() };
        let edits = vec![
            put("a", "[9]"),
            remove("stream_options"),
            ("b", Edit::Replace(Bytes::from_static(b"8"))),
            ("inner", Edit::Within(vec![put("a", "7"), remove("b")])),
        ];
        let edited: Value = serde_json::from_str(&edit(&text, &edits)).unwrap();
        fields.insert("a".into(), serde_json::json!([9]));
        fields.remove("stream_options");
        fields.entry("b".into()).and_modify(|value| *value = 8.into());
        let inner = fields.entry("inner".into()).or_insert(Value::Null);
        if inner.is_null() {
            *inner = serde_json::json!({});
        }
        if let Some(inner) = inner.as_object_mut() {
            inner.insert("a".into(), 7.into());
            inner.remove("b");
        }
        prop_assert_eq!(edited, Value::Object(fields.into_iter().collect()));
    }

    #[test]
    fn no_text_makes_it_panic(text in "[{}\\[\\]\",:a1\\\\ ]{0,40}") {
        let text = Bytes::from(text);
        if let Ok(object) = Object::scan(&text, &NAMES) {
            let edited = object.edit(&text, &vec![put("a", "1"), remove("b")]).whole();
            prop_assert!(Object::scan(&edited, &NAMES).is_ok());
        }
    }
}
