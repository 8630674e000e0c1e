//! Whether the API server lets the agent do what its configuration needs: each request is made once, as small as it can
//! be. A SelfSubjectAccessReview would have to be created, and nothing is ever written (C10).

use kube::{
    api::{ListParams, WatchParams},
    core::Request,
};
use serde::Deserialize;
use tokio::time;

use super::{
    KubernetesSource,
    follow::{ANSWER, fetch},
    problem::{Cause, Problem},
    target::{Target, plan},
};
use crate::config::Config;

/// A right that is needed, and whether there is it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Right {
    /// To do what with it: `list` or `watch`.
    pub verb: &'static str,
    /// With what.
    pub target: Target,
    /// Why not.
    pub outcome: Result<(), Cause>,
}

impl Right {
    /// What keeps the agent from it.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        let cause = self.outcome.clone().err()?;
        Some(Problem { verb: self.verb, target: self.target.clone(), cause })
    }
}

#[derive(Deserialize)]
struct Listed {
    metadata: Version,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    resource_version: Option<String>,
}

impl KubernetesSource {
    /// Tries every right that a configuration needs. The first server that does not answer ends it.
    pub async fn rights(&self, config: &Config) -> Vec<Right> {
        let mut rights = Vec::new();
        for target in plan(config) {
            let listed = self.try_list(&target).await;
            // Any version will do where the list may not be read.
            let version = listed.as_ref().map_or_else(|_| "0".to_owned(), Clone::clone);
            let list = Right { verb: "list", target: target.clone(), outcome: listed.map(drop) };
            let answered = list.outcome.as_ref().err().is_none_or(|cause| cause.code().is_some());
            rights.push(list);
            if !answered {
                break;
            }
            let outcome = self.try_watch(&target, &version).await;
            rights.push(Right { verb: "watch", target, outcome });
        }
        rights
    }

    async fn try_list(&self, target: &Target) -> Result<String, Cause> {
        let params = ListParams {
            limit: Some(1),
            label_selector: target.label_selector(),
            field_selector: target.field_selector(),
            ..ListParams::default()
        };
        let request = Request::new(target.path()).list(&params);
        let request = request.map_err(|error| Cause::Unreadable(error.to_string()))?;
        let listed: Listed = fetch(&self.client, request).await?;
        Ok(listed.metadata.resource_version.unwrap_or_default())
    }

    /// The answer's head says it all.
    async fn try_watch(&self, target: &Target, version: &str) -> Result<(), Cause> {
        let params = WatchParams {
            timeout: Some(1),
            label_selector: target.label_selector(),
            field_selector: target.field_selector(),
            ..WatchParams::default()
        };
        let request = Request::new(target.path()).watch(&params, version);
        let request = request.map_err(|error| Cause::Unreadable(error.to_string()))?;
        let opened = time::timeout(ANSWER, self.client.request_events::<serde_json::Value>(request)).await;
        opened.map_err(|_| Cause::Silent(ANSWER))?.map(drop).map_err(Cause::from)
    }
}
