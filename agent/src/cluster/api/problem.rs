//! What can go wrong with a watch, in words that say what to do.

use std::{error::Error, fmt, fmt::Write as _, time::Duration};

use super::target::Target;

/// Why a list or a watch failed. The state before it stays in force, and it is tried again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// What was asked: `list`, `watch` or `get`.
    pub verb: &'static str,
    /// Of what.
    pub target: Target,
    /// What came of it.
    pub cause: Cause,
}

/// What came of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// An answer that is no success.
    Status {
        /// The HTTP status code.
        code: u16,
        /// What the server says.
        message: String,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// No answer.
    Unreachable(String),
    /// Nothing within this time.
    Silent(Duration),
    /// An answer that is not understood.
    Unreadable(String),
}

impl Cause {
    /// The status code of the answer.
    #[must_use]
    pub const fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// When the server wants to be asked again.
    pub(super) const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// A later try from the same version may succeed.
    pub(super) const fn may_pass(&self) -> bool {
        match self {
            // Not allowed yet, not now, too many, or out of order.
            Self::Status { code, .. } => matches!(code, 401 | 403 | 404 | 408 | 429 | 500..),
            Self::Unreachable(_) | Self::Silent(_) => true,
            Self::Unreadable(_) => false,
        }
    }

    /// What a status object says.
    pub(super) fn of_status(status: &kube::core::Status, code: u16) -> Self {
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        Self::Status {
            code: if status.code == 0 { code } else { status.code },
            message: if status.message.is_empty() { status.reason.clone() } else { status.message.clone() },
            retry_after: (seconds > 0).then(|| Duration::from_secs(u64::from(seconds))),
        }
    }
}

impl From<kube::Error> for Cause {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(&status, 0),
            kube::Error::SerdeError(error) => Self::Unreadable(error.to_string()),
            error => Self::Unreachable(chain(&error)),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { code, message, .. } if message.is_empty() => {
                write!(f, "the API server answers {code}")
            }
            Self::Status { code, message, .. } => write!(f, "the API server answers {code}: {message}"),
            Self::Unreachable(why) => write!(f, "the API server cannot be reached: {why}"),
            Self::Silent(time) => write!(f, "the API server said nothing for {} s", time.as_secs_f32()),
            Self::Unreadable(why) => write!(f, "the API server's answer is not understood: {why}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, target, cause } = self;
        match cause.code() {
            Some(403) => write!(f, "may not {verb} {target}: {cause}; {}", fix(target)),
            Some(401) => write!(f, "cannot {verb} {target}: {cause}; the credentials are not accepted"),
            _ => write!(f, "cannot {verb} {target}: {cause}"),
        }
    }
}

/// What grants the right that is missing.
#[must_use]
pub fn fix(target: &Target) -> String {
    let (role, place) = match &target.namespace {
        Some(namespace) => ("Role", format!(" in namespace {namespace}")),
        None => ("ClusterRole", String::new()),
    };
    format!(
        "bind a {role}{place} to the agent's ServiceAccount with the rule {{apiGroups: [\"{}\"], resources: [{}], \
         verbs: [get, list, watch]}}",
        target.kind.group(),
        target.kind.resource()
    )
}

/// An error and its causes, without those that repeat what was said.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            let _ = write!(text, ": {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::api::target::Kind;

    fn pods(namespace: Option<&str>) -> Target {
        Target { kind: Kind::Pods, namespace: namespace.map(Into::into), name: None, labels: String::new() }
    }

    #[test]
    fn a_missing_right_is_named_with_its_fix() {
        let cause = Cause::Status { code: 403, message: "pods is forbidden".to_owned(), retry_after: None };
        let problem = Problem { verb: "watch", target: pods(Some("llm")), cause: cause.clone() };
        assert_eq!(
            problem.to_string(),
            "may not watch pods in namespace llm: the API server answers 403: pods is forbidden; bind a Role in \
             namespace llm to the agent's ServiceAccount with the rule {apiGroups: [\"\"], resources: [pods], \
             verbs: [get, list, watch]}"
        );
        let problem = Problem { verb: "list", target: pods(None), cause };
        assert!(problem.to_string().contains("bind a ClusterRole to the agent's"), "{problem}");
    }
}
