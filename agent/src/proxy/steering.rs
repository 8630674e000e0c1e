//! The headers with which gateways and routers of llm-d steer a request: the one list of them (H3, H12, E5).
//!
//! Three readers: routers, of which this agent is the last; the sidecar of a Decode Pod, which runs the legs where an
//! agent only picks; engines, which none of it is for.

use http::{HeaderMap, HeaderName};

use crate::{
    config::DECISION_HEADER,
    extproc::{head, reply},
};

/// Names the prefill endpoint.
pub(super) const PREFILLER: HeaderName = HeaderName::from_static(reply::PREFILLER);
/// Named it once.
const PREFILLER_URL: HeaderName = HeaderName::from_static("x-prefiller-url");

/// How the names of all of them begin, and not those of most other headers.
const PREFIX: &str = "x-";

/// For routers alone: nobody behind this agent gets them. A constant would be made and dropped anew at each look.
pub(super) static OF_ROUTERS: [HeaderName; 5] = [
    DECISION_HEADER,
    HeaderName::from_static(head::DESTINATION),
    HeaderName::from_static(head::SUBSET),
    HeaderName::from_static(head::SERVED),
    HeaderName::from_static("x-llm-d-epp-profile"),
];

/// For sidecars, of whoever may steer them.
static OF_SIDECARS: [HeaderName; 5] = [
    PREFILLER,
    PREFILLER_URL,
    HeaderName::from_static("x-encoder-hosts-ports"),
    HeaderName::from_static("x-data-parallel-host-port"),
    HeaderName::from_static("x-peer-topology"),
];

/// Removes all of them: an engine that gets its own leg, or a request of one that may not steer.
pub(super) fn remove_all(headers: &mut HeaderMap) {
    for name in OF_ROUTERS.iter().chain(&OF_SIDECARS) {
        headers.remove(name);
    }
}

/// Whether a picker takes it out of a request: what sidecars read stays, where the client may steer them, but for the
/// prefill endpoint where that is picked here (`pairs`).
pub(super) fn is_taken_out(name: &str, trusted: bool, pairs: bool) -> bool {
    // Whatever their case: a gateway should write them small, as Envoy does, and they are not for it to let through.
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
        && (OF_ROUTERS.iter().any(|of_routers| of_routers == name)
            || OF_SIDECARS.iter().any(|of_sidecars| of_sidecars == name)
                && (!trusted || pairs && (PREFILLER == name || PREFILLER_URL == name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_found_in_whatever_case() {
        for name in OF_ROUTERS.iter().chain(&OF_SIDECARS) {
            let name = name.as_str();
            assert!(is_taken_out(name, false, true), "{name}");
            assert!(is_taken_out(&name.to_ascii_uppercase(), false, true), "{name}");
        }
        assert!(!is_taken_out("x", false, true) && !is_taken_out("é-", false, true));
    }

    #[test]
    fn h12_sidecars_are_steered_by_those_who_may_and_the_prefill_of_a_pair_by_the_picker() {
        let taken = |name: &str| {
            [(false, false), (false, true), (true, false), (true, true)]
                .map(|(trusted, pairs)| is_taken_out(name, trusted, pairs))
        };
        for name in ["x-gateway-destination-endpoint-served", "x-llm-d-revision-decision-id"] {
            assert_eq!(taken(name), [true; 4], "{name}");
        }
        for name in ["x-encoder-hosts-ports", "x-data-parallel-host-port"] {
            assert_eq!(taken(name), [true, true, false, false], "{name}");
        }
        for name in ["x-prefiller-host-port", "x-prefiller-url"] {
            assert_eq!(taken(name), [true, true, false, true], "{name}");
        }
        assert_eq!(taken("authorization"), [false; 4]);
    }
}
