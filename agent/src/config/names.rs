//! The shapes of names that Kubernetes and HTTP prescribe. Each check says what is allowed when it fails.

/// What a label key is (apimachinery `IsQualifiedName`).
pub(super) const LABEL_KEY: &str = "a label key: an optional DNS prefix and `/`, then at most 63 letters, digits, `-`, `_` or `.`, \
     a letter or digit at both ends";
/// What a label value is (apimachinery `IsValidLabelValue`).
pub(super) const LABEL_VALUE: &str =
    "a label value: at most 63 letters, digits, `-`, `_` or `.`, a letter or digit at both ends";
/// What a namespace is (RFC 1123 label).
pub(super) const NAMESPACE: &str =
    "a namespace: at most 63 lower-case letters, digits or `-`, a letter or digit at both ends";
/// What the name of most objects is (RFC 1123 subdomain).
pub(super) const OBJECT: &str =
    "an object's name: at most 253 lower-case letters, digits, `-` or `.`, a letter or digit at both ends";
/// What the name of a container port is (apimachinery `IsValidPortName`).
pub(super) const PORT_NAME: &str = "a port number from 1 to 65535, the name of a container port (at most 15 lower-case letters, \
     digits or single `-`, with a letter), or a list of them";

const LONGEST_LABEL: usize = 63;
const LONGEST_PREFIX: usize = 253;
const LONGEST_PORT_NAME: usize = 15;

/// See [`LABEL_KEY`].
pub(super) fn is_label_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(is_subdomain)
}

/// See [`LABEL_VALUE`]; the empty value is one.
pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty()
        || (text.len() <= LONGEST_LABEL
            && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
            && is_closed(text, |c| c.is_ascii_alphanumeric()))
}

/// See [`NAMESPACE`].
pub(super) fn is_namespace(text: &str) -> bool {
    text.len() <= LONGEST_LABEL && text.bytes().all(|c| is_lower(c) || c == b'-') && is_closed(text, is_lower)
}

/// See [`OBJECT`].
pub(super) fn is_object(text: &str) -> bool {
    is_subdomain(text)
}

/// The name half of [`PORT_NAME`].
pub(super) fn is_port_name(text: &str) -> bool {
    text.len() <= LONGEST_PORT_NAME
        && is_namespace(text)
        && !text.contains("--")
        && text.bytes().any(|c| c.is_ascii_lowercase())
}

fn is_subdomain(text: &str) -> bool {
    // Parts of a subdomain have no limit of their own, only the whole has.
    text.len() <= LONGEST_PREFIX
        && text
            .split('.')
            .all(|part| part.bytes().all(|c| is_lower(c) || c == b'-') && is_closed(part, is_lower))
}

fn is_lower(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// Not empty, and `end` holds at both ends.
fn is_closed(text: &str, end: impl Fn(u8) -> bool) -> bool {
    matches!((text.as_bytes().first(), text.as_bytes().last()), (Some(&first), Some(&last)) if end(first) && end(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys_and_values() {
        let long = "a".repeat(64);
        for key in ["a", "A.b_c-d", "disaggregatedset.x-k8s.io/revision", "a/b", "1/2"] {
            assert!(is_label_key(key), "{key}");
        }
        for key in ["", "/a", "a/", "a/b/c", "-a", "a-", "A.example/x", "a..b/x", "é", "a b", long.as_str()]
        {
            assert!(!is_label_key(key), "{key}");
        }
        assert!(is_label_value(""));
        assert!(is_label_value("5b7f-A.x_y"));
        assert!(!is_label_value("-a") && !is_label_value("a/b") && !is_label_value(&long));
    }

    #[test]
    fn namespaces_and_port_names() {
        assert!(is_namespace("kube-system") && is_namespace("0a"));
        assert!(!is_namespace("") && !is_namespace("A") && !is_namespace("a.b") && !is_namespace("a-"));
        assert!(is_port_name("http") && is_port_name("vllm-8000"));
        assert!(!is_port_name("8000") && !is_port_name("a--b") && !is_port_name("abcdefghijklmnop"));
    }
}
