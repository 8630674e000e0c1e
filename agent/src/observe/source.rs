//! How the Pod source is doing (C9): when each of its watches was last heard of, and what is wrong with it.
//!
//! The source writes, scrapes and reports read. None is on a request's path, so a mutex will do.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::report::{SourceReport, WatchReport};

/// What one watch of the source is of; labels of its series.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Watched {
    /// `file`, or a resource as RBAC rules have it.
    pub resource: String,
    /// The namespace; empty: all, or none.
    pub namespace: String,
    /// The object; empty: all.
    pub name: String,
}

impl Watched {
    /// A file.
    #[must_use]
    pub fn file() -> Self {
        Self { resource: "file".to_owned(), namespace: String::new(), name: String::new() }
    }
}

/// As in `pods llm`, `services llm/decode`.
impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        match (self.namespace.as_str(), self.name.as_str()) {
            ("", _) => Ok(()),
            (namespace, "") => write!(f, " {namespace}"),
            (namespace, name) => write!(f, " {namespace}/{name}"),
        }
    }
}

/// What is new after something was heard or has failed: worth a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// Nothing.
    None,
    /// It works again after a failure or a silence.
    Recovered,
    /// It fails, in another way than before.
    Failing,
}

/// How the Pod source is doing.
#[derive(Debug)]
pub struct SourceHealth {
    kind: &'static str,
    location: String,
    /// How long a watch may be silent before its view is stale; none: its silence means nothing.
    stale_after: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    watches: BTreeMap<Watched, Watch>,
    errors: u64,
}

#[derive(Debug)]
struct Watch {
    since: Instant,
    last_event: Option<Instant>,
    error: Option<String>,
    said_stale: bool,
}

impl Watch {
    fn is_stale(&self, now: Instant, after: Option<Duration>) -> bool {
        let silent = now.saturating_duration_since(self.last_event.unwrap_or(self.since));
        after.is_some_and(|after| silent > after)
    }
}

impl SourceHealth {
    /// A source from which nothing has been heard yet. `kind` as in `file`, `location` as in a path.
    #[must_use]
    pub fn new(kind: &'static str, location: impl Into<String>, stale_after: Option<Duration>) -> Self {
        Self { kind, location: location.into(), stale_after, state: Mutex::default() }
    }

    /// From now on this is what is watched.
    pub fn watching(&self, watched: Vec<Watched>, now: Instant) {
        let mut state = self.state();
        state.watches.retain(|known, _| watched.contains(known));
        for watched in watched {
            let new = Watch { since: now, last_event: None, error: None, said_stale: false };
            state.watches.entry(watched).or_insert(new);
        }
    }

    /// A list, an event or a bookmark arrived, and was good: what was wrong before is over.
    pub fn heard(&self, watched: &Watched, now: Instant) -> News {
        let mut state = self.state();
        let Some(watch) = state.watches.get_mut(watched) else { return News::None };
        let recovered = watch.error.take().is_some() | std::mem::take(&mut watch.said_stale);
        watch.last_event = Some(now);
        if recovered { News::Recovered } else { News::None }
    }

    /// Something went wrong; the last good state stays in force.
    pub fn failed(&self, watched: &Watched, error: impl Into<String>) -> News {
        let (mut state, error) = (self.state(), error.into());
        state.errors = state.errors.saturating_add(1);
        let Some(watch) = state.watches.get_mut(watched) else { return News::None };
        let news = watch.error.as_ref() != Some(&error);
        watch.error = Some(error);
        if news { News::Failing } else { News::None }
    }

    /// The watches whose views have become stale since the last call.
    pub fn newly_stale(&self, now: Instant) -> Vec<Watched> {
        let mut state = self.state();
        let silent = state.watches.iter_mut().filter(|(_, watch)| watch.is_stale(now, self.stale_after));
        silent
            .filter_map(|(watched, watch)| {
                (!std::mem::replace(&mut watch.said_stale, true)).then(|| watched.clone())
            })
            .collect()
    }

    pub(super) fn report(&self, now: Instant) -> SourceReport {
        let state = self.state();
        let age = |watch: &Watch| watch.last_event.map(|at| now.saturating_duration_since(at).as_secs_f64());
        let watches: Vec<WatchReport> = state
            .watches
            .iter()
            .map(|(watched, watch)| WatchReport {
                resource: watched.resource.clone(),
                namespace: watched.namespace.clone(),
                name: watched.name.clone(),
                last_event_age_seconds: age(watch),
                stale: watch.is_stale(now, self.stale_after),
                error: watch.error.clone(),
            })
            .collect();
        SourceReport {
            kind: self.kind.to_owned(),
            location: self.location.clone(),
            last_event_age_seconds: watches
                .iter()
                .map(|watch| watch.last_event_age_seconds)
                .reduce(|a, b| Some(a?.max(b?)))
                .flatten(),
            errors: state.errors,
            last_error: watches.iter().find_map(|watch| watch.error.clone()),
            watches,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "a test is an edge: it makes up its own instants from one reading"
)]
mod tests {
    use super::*;

    fn pods(namespace: &str) -> Watched {
        Watched { resource: "pods".to_owned(), namespace: namespace.to_owned(), name: String::new() }
    }

    #[test]
    fn a_source_is_as_old_as_its_oldest_watch_and_an_error_ends_with_the_next_event() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let source = SourceHealth::new("kubernetes", "https://api", None);
        source.watching(vec![pods("a"), pods("b")], start);
        assert_eq!(source.heard(&pods("a"), at(1)), News::None);
        assert_eq!(source.report(at(2)).last_event_age_seconds, None, "one was not heard of yet");
        source.heard(&pods("b"), at(3));
        assert_eq!(source.failed(&pods("b"), "refused"), News::Failing);
        assert_eq!(source.failed(&pods("b"), "refused"), News::None, "said already");
        let report = source.report(at(5));
        assert_eq!(report.last_event_age_seconds, Some(4.0));
        assert_eq!((report.errors, report.last_error.as_deref()), (2, Some("refused")));
        assert_eq!(source.heard(&pods("b"), at(6)), News::Recovered);
        let report = source.report(at(6));
        assert_eq!((report.errors, report.last_error), (2, None), "the count stays, the complaint goes");
    }

    #[test]
    fn a_silent_watch_becomes_stale_once_and_recovers() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let source = SourceHealth::new("kubernetes", "https://api", Some(Duration::from_secs(10)));
        source.watching(vec![pods("a"), pods("b")], start);
        source.heard(&pods("a"), at(5));
        assert_eq!(source.newly_stale(at(10)), []);
        assert_eq!(source.newly_stale(at(12)), [pods("b")], "which has never been heard of");
        assert_eq!(source.newly_stale(at(13)), []);
        assert_eq!(source.newly_stale(at(16)), [pods("a")]);
        assert!(source.report(at(16)).watches.iter().all(|watch| watch.stale));
        assert_eq!(source.heard(&pods("a"), at(17)), News::Recovered);
        assert!(!source.report(at(17)).watches[0].stale);
    }

    #[test]
    fn what_is_not_watched_any_more_is_forgotten() {
        let start = Instant::now();
        let source = SourceHealth::new("kubernetes", "https://api", None);
        source.watching(vec![pods("a"), pods("b")], start);
        source.heard(&pods("b"), start);
        source.watching(vec![pods("b")], start);
        assert_eq!(source.heard(&pods("a"), start), News::None);
        let report = source.report(start);
        assert_eq!((report.watches.len(), report.last_event_age_seconds), (1, Some(0.0)));
    }
}
