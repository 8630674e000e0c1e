//! What must be watched for a configuration. Pure.
//!
//! Pods are watched by namespace, once, whatever the number of sets there: the API server filters by the requirements
//! that all of them have in common (each needs its two labels, so there nearly always are some), and the state by the
//! rest. So a Pod is in one watch only, and no two watches can say different things of it. With a watch for each set, a
//! Pod of two sets whose labels change would be deleted by one watch and kept by the other, in either order.
//!
//! Services and InferencePools are watched one by one, by name: a Role may then be limited to them, and nothing else
//! is sent.

use std::{collections::BTreeSet, fmt, sync::Arc};

use crate::{
    cluster::ObjectName,
    config::{Config, Selector, SetConfig, VipAddress},
};

/// One watch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Target {
    /// Of what.
    pub kind: Kind,
    /// In which namespace; none: in all.
    pub namespace: Option<Arc<str>>,
    /// Of this object only.
    pub name: Option<Arc<str>>,
    /// Of objects with these labels only; empty: whatever their labels.
    pub labels: String,
}

/// What is watched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Pods.
    Pods,
    /// Services.
    Services,
    /// InferencePools.
    Pools,
    /// InferencePools of the group that had them before; looked at where the present group has no such pool.
    OldPools,
}

impl Kind {
    /// The resource, as RBAC rules and paths have it.
    #[must_use]
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Services => "services",
            Self::Pools | Self::OldPools => "inferencepools",
        }
    }

    /// Its API group; the core group has no name.
    #[must_use]
    pub const fn group(self) -> &'static str {
        match self {
            Self::Pods | Self::Services => "",
            Self::Pools => "inference.networking.k8s.io",
            Self::OldPools => "inference.networking.x-k8s.io",
        }
    }

    /// Whether the API server may know nothing of it: a custom resource need not be installed.
    #[must_use]
    pub const fn is_custom(self) -> bool {
        matches!(self, Self::Pools | Self::OldPools)
    }

    const fn root(self) -> &'static str {
        match self {
            Self::Pods | Self::Services => "/api/v1",
            Self::Pools => "/apis/inference.networking.k8s.io/v1",
            Self::OldPools => "/apis/inference.networking.x-k8s.io/v1alpha2",
        }
    }
}

impl Target {
    /// One object.
    fn object(kind: Kind, object: &ObjectName) -> Self {
        let (namespace, name) = (Some(Arc::clone(&object.namespace)), Some(Arc::clone(&object.name)));
        Self { kind, namespace, name, labels: String::new() }
    }

    /// The name of the one object.
    #[must_use]
    pub fn object_name(&self) -> Option<ObjectName> {
        let (namespace, name) = (self.namespace.clone()?, self.name.clone()?);
        Some(ObjectName { namespace, name })
    }

    pub(super) fn label_selector(&self) -> Option<String> {
        (!self.labels.is_empty()).then(|| self.labels.clone())
    }

    pub(super) fn field_selector(&self) -> Option<String> {
        self.name.as_ref().map(|name| format!("metadata.name={name}"))
    }

    /// The path of the collection.
    #[must_use]
    pub fn path(&self) -> String {
        let (root, resource) = (self.kind.root(), self.kind.resource());
        match &self.namespace {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{resource}"),
            None => format!("{root}/{resource}"),
        }
    }
}

/// As in `pods in namespace llm`, `services llm/decode`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.resource())?;
        if !self.kind.group().is_empty() {
            write!(f, ".{}", self.kind.group())?;
        }
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => write!(f, " {namespace}/{name}"),
            (Some(namespace), None) => write!(f, " in namespace {namespace}"),
            (None, _) => f.write_str(" in all namespaces"),
        }
    }
}

/// Every watch that a configuration needs, sorted.
#[must_use]
pub fn plan(config: &Config) -> Vec<Target> {
    let mut targets = pods(&config.sets);
    for vip in &config.agent.vips {
        if let VipAddress::Service { service, .. } = &vip.at {
            targets.insert(Target::object(Kind::Services, service));
        }
    }
    for pool in config.sets.iter().filter_map(|set| set.pool.as_ref()) {
        targets.insert(Target::object(Kind::Pools, pool));
        targets.insert(Target::object(Kind::OldPools, pool));
    }
    targets.into_iter().collect()
}

fn pods(sets: &[SetConfig]) -> BTreeSet<Target> {
    let target = |namespace: Option<&Arc<str>>| {
        let here = |set: &&SetConfig| namespace.is_none_or(|name| set.namespaces.contains(name));
        let labels = sets.iter().filter(here).map(filter).reduce(|all, one| all.in_common(&one));
        let labels = labels.unwrap_or_default().to_string();
        Target { kind: Kind::Pods, namespace: namespace.cloned(), name: None, labels }
    };
    if sets.iter().any(|set| set.namespaces.is_empty()) {
        return BTreeSet::from([target(None)]);
    }
    sets.iter().flat_map(|set| &set.namespaces).map(|namespace| target(Some(namespace))).collect()
}

/// What every member of a set has, as far as an API server can be asked for it.
fn filter(set: &SetConfig) -> Selector {
    set.scope.clone().for_server().with_label(&set.revision_label).with_label(&set.role_label)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    /// The plan for sets with these selectors and namespaces, and these lines of the agent's document.
    fn planned(sets: &[(&str, &str)], lines: &str) -> Vec<(String, String)> {
        let screener = |(at, (selector, _)): (usize, &(&str, &str))| {
            format!(
                "- type: disaggregatedset-rollout-screener\n  name: s{at}\n  parameters:\n    \
                 scope: {{labelSelector: '{selector}'}}\n    \
                 revisionGating: {{mode: sum, requiredRoles: [decode], revisionLabelKey: rev, roleLabelKey: role}}\n"
            )
        };
        let settings = |(at, (_, namespaces)): (usize, &(&str, &str))| {
            format!("- {{name: s{at}, namespaces: [{namespaces}]}}\n")
        };
        let screeners: String = sets.iter().enumerate().map(screener).collect();
        let settings: String = sets.iter().enumerate().map(settings).collect();
        let settings = if lines.contains("sets:") { String::new() } else { format!("sets:\n{settings}") };
        let text = format!(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n{screeners}---\n\
             apiVersion: revgate.dev/v1alpha1\nkind: AgentConfig\nsource: {{kubernetes: {{}}}}\n{lines}{settings}"
        );
        let loaded = config::parse(Path::new("x"), text.as_bytes(), None);
        let config = loaded.unwrap_or_else(|error| panic!("{error}\n{text}")).config;
        plan(&config).into_iter().map(|target| (target.path(), target.labels)).collect()
    }

    #[test]
    fn a_set_is_watched_in_each_of_its_namespaces_with_what_a_server_understands() {
        let labels = "app in (a,b),!canary,rev,role".to_owned();
        assert_eq!(
            planned(&[("app in (b, a),!canary,size>3", "n1, n2")], ""),
            [
                ("/api/v1/namespaces/n1/pods".to_owned(), labels.clone()),
                ("/api/v1/namespaces/n2/pods".to_owned(), labels),
            ]
        );
    }

    #[test]
    fn sets_that_share_a_namespace_share_its_watch() {
        assert_eq!(
            planned(&[("app=a,env=prod", "n1"), ("app=b,env=prod", "n1, n2")], ""),
            [
                ("/api/v1/namespaces/n1/pods".to_owned(), "env=prod,rev,role".to_owned()),
                ("/api/v1/namespaces/n2/pods".to_owned(), "app=b,env=prod,rev,role".to_owned()),
            ]
        );
    }

    #[test]
    fn a_set_in_all_namespaces_makes_one_watch_for_all_sets() {
        assert_eq!(
            planned(&[("app=a", "n1"), ("app=b", "")], ""),
            [("/api/v1/pods".to_owned(), "rev,role".to_owned())]
        );
    }

    #[test]
    fn services_and_pools_are_watched_by_name() {
        let lines = "vips:\n\
                     - {service: {name: prefill}, role: prefill}\n\
                     - {service: {name: decode, namespace: other, port: http}, role: decode}\n\
                     sets: [{namespaces: [n1], inferencePool: {name: pool}}]\n";
        let config = planned(&[("app=a", "")], lines);
        let paths: Vec<&str> = config.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "/api/v1/namespaces/n1/pods",
                "/api/v1/namespaces/n1/services",
                "/api/v1/namespaces/other/services",
                "/apis/inference.networking.k8s.io/v1/namespaces/n1/inferencepools",
                "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/n1/inferencepools",
            ]
        );
    }
}
