//! The metrics registry (O2).
//!
//! Gating, kernel and process series are derived from the [`Scene`] at scrape time by collectors, so the series of a
//! revision that is gone are gone too, and nothing is counted twice. What happens per request is counted by the
//! proxy, which registers its own families in the same registry.
//!
//! Two series carry llm-d's names and labels, so that its dashboards keep working:
//! `llm_d_epp_disaggregatedset_revision_gating_share{plugin_type,plugin_name,mode,revision}` and
//! `llm_d_epp_disaggregatedset_strict_revision_no_match_total{plugin_type,plugin_name}` (llm-d-router, the metrics of
//! its `disaggregatedset-rollout-screener`). There `mode` is empty with gating disabled.

#[cfg(test)]
mod deployed;
mod families;
mod gating;
mod kernel;
mod process;

use std::sync::Arc;

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::Scene;

/// The prefix of everything that is revgate's own: register in `registry.sub_registry_with_prefix(PREFIX)`.
pub const PREFIX: &str = "revgate";

/// The type of the screener plugin, a label of the llm-d series.
const PLUGIN_TYPE: &str = "disaggregatedset-rollout-screener";

/// A registry with every series that is derived from the scene, and `no_match`.
#[must_use]
pub fn registry(scene: &Arc<Scene>, no_match: &StrictNoMatch) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(process::Process(Arc::clone(scene))));
    registry.register_collector(Box::new(gating::LlmdShares(Arc::clone(scene))));
    registry.register(
        "llm_d_epp_disaggregatedset_strict_revision_no_match",
        "Requests that named a revision which is not eligible, and were refused",
        no_match.0.clone(),
    );
    let own = registry.sub_registry_with_prefix(PREFIX);
    own.register_collector(Box::new(gating::GatingSeries(Arc::clone(scene))));
    own.register_collector(Box::new(kernel::KernelSeries(Arc::clone(scene))));
    own.register_collector(Box::new(process::AgentSeries(Arc::clone(scene))));
    registry
}

/// Requests refused because the revision that they named is not eligible, by set: llm-d's series.
#[derive(Clone, Debug, Default)]
pub struct StrictNoMatch(Family<[(&'static str, Arc<str>); 2], Counter>);

impl StrictNoMatch {
    /// The counter of a set, the same one each time; take it once, not per request. It shows from now on, with 0.
    #[must_use]
    pub fn of_set(&self, set: &Arc<str>) -> Counter {
        self.0.get_or_create_owned(&[("plugin_type", PLUGIN_TYPE.into()), ("plugin_name", Arc::clone(set))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::GatingMode,
        observe::{
            exposition,
            testing::{self, SetBuilder},
        },
    };

    fn scrape(scene: &Arc<Scene>) -> String {
        exposition::encode(&registry(scene, &StrictNoMatch::default()), exposition::Format::OpenMetrics)
            .unwrap()
    }

    #[test]
    fn shows_counts_shares_and_eligibility() {
        let text = scrape(&testing::scene(testing::snapshot(7, vec![SetBuilder::rollout().build()])));
        for line in [
            r#"revgate_ready_pods{set="chat",revision="5c9d7a1b",role="decode"} 6"#,
            r#"revgate_endpoints{set="chat",revision="7f00aa12",role="prefill"} 1"#,
            r#"revgate_revision_share{set="chat",revision="5c9d7a1b"} 0.6"#,
            r#"revgate_revision_share{set="chat",revision="9e11bb23"} 0.0"#,
            r#"revgate_revision_eligible{set="chat",revision="9e11bb23"} 0"#,
            "revgate_snapshot_generation 7",
            "revgate_synced 1",
            "revgate_ready 1",
            r#"revgate_kernel_connects_total{outcome="steered_pin"} 41"#,
            r#"revgate_kernel_table_generation{set="chat"} 7"#,
            "revgate_kernel_active 1",
            r#"revgate_config_reloads_total{result="failure"} 0"#,
            "revgate_source_errors_total 0",
            concat!(r#"revgate_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#""} 1"#),
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line}\n{text}");
        }
        assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
    }

    #[test]
    fn the_series_of_a_vanished_revision_go() {
        let scene = testing::scene(testing::snapshot(7, vec![SetBuilder::rollout().build()]));
        assert!(scrape(&scene).contains("5c9d7a1b"));
        let set = SetBuilder::new("chat").revision("7f00aa12", [1, 4]).build();
        scene.published.store(Arc::new(testing::snapshot(8, vec![set])));
        let text = scrape(&scene);
        assert!(!text.contains("5c9d7a1b"), "{text}");
        assert!(text.contains(r#"revgate_revision_share{set="chat",revision="7f00aa12"} 1.0"#), "{text}");
    }

    #[test]
    fn llm_d_series_have_llm_d_names_and_labels() {
        let scene = testing::scene(testing::snapshot(7, vec![SetBuilder::rollout().build()]));
        let no_match = StrictNoMatch::default();
        // Every listener of a set counts into the same series.
        no_match.of_set(&"chat".into()).inc_by(2);
        no_match.of_set(&"chat".into()).inc();
        let text = exposition::encode(&registry(&scene, &no_match), exposition::Format::OpenMetrics).unwrap();
        let labels = r#"plugin_type="disaggregatedset-rollout-screener",plugin_name="chat""#;
        for line in [
            format!(
                r#"llm_d_epp_disaggregatedset_revision_gating_share{{{labels},mode="max-role",revision="7f00aa12"}} 0.4"#
            ),
            format!("llm_d_epp_disaggregatedset_strict_revision_no_match_total{{{labels}}} 3"),
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line}\n{text}");
        }
    }

    #[test]
    fn with_gating_disabled_llm_d_shows_an_empty_mode_and_revgate_no_share() {
        let set = SetBuilder::new("chat").mode(GatingMode::Disabled).revision("a", [0, 3]).build();
        let text = scrape(&testing::scene(testing::snapshot(1, vec![set])));
        assert!(text.contains(r#"mode="",revision="a"} 0.0"#), "{text}");
        assert!(!text.contains("revgate_revision_share{"), "{text}");
    }

    #[test]
    fn a_hostile_revision_name_cannot_forge_a_line() {
        let set = SetBuilder::new("chat").revision("a\"} 1\nforged 1", [1, 1]).build();
        let text = scrape(&testing::scene(testing::snapshot(1, vec![set])));
        assert!(!text.lines().any(|line| line.starts_with("forged")), "{text}");
    }
}
