//! The rights that the agent needs at the Kubernetes API (C10): each one is tried.

use super::Precondition;
use crate::{
    cluster::api::{
        KubernetesSource,
        problem::{Cause, fix},
        rights::Right,
        target::Kind,
    },
    config::{Config, KubernetesConfig},
};

/// Whether the API can be reached, and whether each right is there.
pub(super) fn rights(config: &Config, access: &KubernetesConfig) -> Vec<Precondition> {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return vec![Precondition::fail("Kubernetes API", error.to_string(), "free memory or files")];
        }
    };
    runtime.block_on(async {
        match KubernetesSource::new(access).await {
            Ok(source) => {
                source.rights(config).await.iter().map(|right| precondition(right, &source)).collect()
            }
            Err(error) => {
                let fix =
                    "run in a Pod with a ServiceAccount, or set KUBECONFIG or `source.kubernetes.kubeconfig`";
                vec![Precondition::fail("Kubernetes API", error.to_string(), fix)]
            }
        }
    })
}

fn precondition(right: &Right, source: &KubernetesSource) -> Precondition {
    let name = format!("{} {}", right.verb, right.target);
    let kind = right.target.kind;
    let Err(cause) = &right.outcome else { return Precondition::pass(name, "allowed") };
    match cause {
        Cause::Status { code: 404, .. } if kind.is_custom() => Precondition::pass(
            name,
            "not installed; without a pool the ports are the configured ones, or 8000",
        ),
        Cause::Status { code: 403, .. } if kind == Kind::OldPools => {
            Precondition::pass(name, "not allowed, and needed only where the pool is of the older group")
        }
        Cause::Status { code: 403, .. } => Precondition::fail(name, cause.to_string(), fix(&right.target)),
        Cause::Status { code: 401, .. } => {
            Precondition::fail(name, cause.to_string(), "renew the token, or the kubeconfig's credentials")
        }
        _ => Precondition::fail(
            name,
            cause.to_string(),
            format!("look whether {} is the API server, and lets this machine in", source.server()),
        ),
    }
}
