//! The score: who may send, what came of it, and which requests count for a step's share.
//!
//! A request takes a [`Ticket`] before it starts. While a step is open, the first so many tickets of a lane are
//! *judged*: they start after the step is in force and end before the next change begins, so the expected share is
//! exactly theirs. All others are loose: they run during changes, count for nothing in the shares, and everything
//! for mixed pairs and failures.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A kind of traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    /// Prefill and decode through the role listeners.
    Pairs,
    /// Plain connections to the decode VIP.
    Vip,
    /// Connections of a member Pod of that revision to the prefill VIP. Never judged by share, and only while a step
    /// is open: before and after, the agent may not know the Pod.
    Member(usize),
}

impl Lane {
    /// The place of its count in [`Score::requests`].
    const fn index(self) -> usize {
        match self {
            Self::Pairs => 0,
            Self::Vip => 1,
            Self::Member(_) => 2,
        }
    }
}

/// The right to one request.
#[derive(Debug)]
#[must_use = "a ticket that is not recorded holds up the play"]
pub(super) struct Ticket {
    lane: Lane,
    /// It counts for the step's share.
    pub(super) judged: bool,
}

/// What came of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Served by engines of one revision, by index.
    Served(usize),
    /// Two revisions had a hand in it, or another than was said.
    Mixed(String),
    /// It went wrong.
    Failed(String),
}

/// The score of one step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Score {
    /// Judged pairs by revision.
    pub(super) pairs: Vec<u64>,
    /// Judged VIP connections by revision.
    pub(super) vip: Vec<u64>,
    /// Requests of the step and of the change before it, judged or not, by lane.
    pub(super) requests: [u64; 3],
    /// Of those, mixed.
    pub(super) mixed: u64,
    /// Of those, failed.
    pub(super) failed: u64,
    /// Pairs begun anew because their revision ended between the legs.
    pub(super) restarted: u64,
}

impl Score {
    fn of(revisions: usize) -> Self {
        Self { pairs: vec![0; revisions], vip: vec![0; revisions], ..Self::default() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No new request.
    Paused,
    /// Requests that are not judged.
    Loose,
    /// A step is in force.
    Open,
    /// The end.
    Over,
}

/// Judged requests of one lane.
#[derive(Clone, Copy, Debug, Default)]
struct Quota {
    target: u64,
    issued: u64,
    done: u64,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    outstanding: u64,
    pairs: Quota,
    vip: Quota,
    /// Revisions whose member Pod is known to the agent.
    members: Vec<bool>,
    score: Score,
    complaints: Vec<String>,
}

impl Inner {
    fn quota(&mut self, lane: Lane) -> Option<&mut Quota> {
        match lane {
            Lane::Pairs => Some(&mut self.pairs),
            Lane::Vip => Some(&mut self.vip),
            Lane::Member(_) => None,
        }
    }
}

/// Most failures that are told in words.
const MAX_COMPLAINTS: usize = 8;

/// The score of a whole demo.
#[derive(Debug)]
pub(super) struct Board {
    inner: Mutex<Inner>,
    changed: Notify,
    revisions: usize,
}

impl Board {
    pub(super) fn new(revisions: usize) -> Self {
        let inner = Inner {
            phase: Phase::Paused,
            outstanding: 0,
            pairs: Quota::default(),
            vip: Quota::default(),
            members: Vec::new(),
            score: Score::of(revisions),
            complaints: Vec::new(),
        };
        Self { inner: Mutex::new(inner), changed: Notify::new(), revisions }
    }

    /// A ticket, as soon as there is one; `None` at the end.
    pub(super) async fn ticket(&self, lane: Lane) -> Option<Ticket> {
        self.when(|inner| {
            let judged = match (inner.phase, lane) {
                (Phase::Paused, _) | (Phase::Loose, Lane::Member(_)) => return None,
                (Phase::Over, _) => return Some(None),
                (Phase::Loose, _) => false,
                (Phase::Open, Lane::Member(of)) => match inner.members.get(of) {
                    Some(true) => false,
                    _ => return None,
                },
                (Phase::Open, _) => inner.quota(lane).is_some_and(|quota| {
                    let judged = quota.issued < quota.target;
                    quota.issued += u64::from(judged);
                    judged
                }),
            };
            inner.outstanding += 1;
            Some(Some(Ticket { lane, judged }))
        })
        .await
    }

    /// Gives a ticket back with what came of it.
    pub(super) fn record(&self, Ticket { lane, judged }: Ticket, outcome: Outcome) {
        let mut inner = self.lock();
        inner.outstanding = inner.outstanding.saturating_sub(1);
        if let Some(requests) = inner.score.requests.get_mut(lane.index()) {
            *requests += 1;
        }
        if judged && let Some(quota) = inner.quota(lane) {
            quota.done += 1;
        }
        match outcome {
            Outcome::Served(revision) => {
                let served = match lane {
                    Lane::Pairs => inner.score.pairs.get_mut(revision),
                    Lane::Vip => inner.score.vip.get_mut(revision),
                    Lane::Member(_) => None,
                };
                if let Some(served) = served.filter(|_| judged) {
                    *served += 1;
                }
            }
            Outcome::Mixed(what) => {
                inner.score.mixed += 1;
                complain(&mut inner.complaints, what);
            }
            Outcome::Failed(what) => {
                inner.score.failed += 1;
                complain(&mut inner.complaints, what);
            }
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Counts a pair that is begun anew.
    pub(super) fn restarted(&self) {
        self.lock().score.restarted += 1;
    }

    /// Lets loose requests run while the next step comes into force.
    pub(super) fn loosen(&self) {
        self.lock().phase = Phase::Loose;
        self.changed.notify_waiters();
    }

    /// Stops new requests and waits for those under way.
    pub(super) async fn settle(&self) {
        self.lock().phase = Phase::Paused;
        self.when(|inner| (inner.outstanding == 0).then_some(())).await;
    }

    /// Opens a step with so many judged pairs and VIP connections, and these revisions' member Pods.
    pub(super) fn open(&self, pairs: u64, vip: u64, members: Vec<bool>) {
        let mut inner = self.lock();
        inner.phase = Phase::Open;
        inner.pairs = Quota { target: pairs, ..Quota::default() };
        inner.vip = Quota { target: vip, ..Quota::default() };
        inner.members = members;
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Waits until all judged requests of the open step are done.
    pub(super) async fn judged(&self) {
        let done = |quota: Quota| quota.done >= quota.target;
        self.when(|inner| (done(inner.pairs) && done(inner.vip)).then_some(())).await;
    }

    /// The score of this step so far.
    pub(super) fn score(&self) -> Score {
        self.lock().score.clone()
    }

    /// Ends a step: its score, and a fresh one.
    pub(super) fn take(&self) -> Score {
        std::mem::replace(&mut self.lock().score, Score::of(self.revisions))
    }

    /// What went wrong, in words; the first few.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.lock().complaints.clone()
    }

    /// No more tickets.
    pub(super) fn end(&self) {
        self.lock().phase = Phase::Over;
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics under this lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn when<T>(&self, mut look: impl FnMut(&mut Inner) -> Option<T>) -> T {
        loop {
            // Listen before looking, so that a change between the two is not missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let found = look(&mut self.lock());
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }
}

fn complain(complaints: &mut Vec<String>, what: String) {
    if complaints.len() < MAX_COMPLAINTS {
        complaints.push(what);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tokio::{task::JoinSet, time::timeout};

    use super::*;

    #[tokio::test]
    async fn only_so_many_requests_of_an_open_step_are_judged() {
        let board = Board::new(2);
        board.loosen();
        let early = board.ticket(Lane::Pairs).await.unwrap();
        board.open(2, 1, vec![false, true]);
        let tickets = [
            board.ticket(Lane::Pairs).await.unwrap(),
            board.ticket(Lane::Pairs).await.unwrap(),
            board.ticket(Lane::Pairs).await.unwrap(),
            board.ticket(Lane::Vip).await.unwrap(),
            board.ticket(Lane::Member(1)).await.unwrap(),
        ];
        for ticket in tickets.into_iter().chain([early]) {
            board.record(ticket, Outcome::Served(1));
        }
        assert!(timeout(Duration::from_millis(1), board.ticket(Lane::Member(0))).await.is_err());
        board.judged().await;
        let score = board.take();
        assert_eq!((score.pairs, score.vip, score.requests), (vec![0, 2], vec![0, 1], [4, 1, 1]));
        assert_eq!(board.score(), Score::of(2));
    }

    #[tokio::test]
    async fn settling_waits_for_what_is_under_way_and_holds_what_is_new() {
        let board = Arc::new(Board::new(1));
        board.open(1, 0, Vec::new());
        let ticket = board.ticket(Lane::Pairs).await.unwrap();
        let mut settling = JoinSet::new();
        settling.spawn({
            let board = Arc::clone(&board);
            async move { board.settle().await }
        });
        tokio::task::yield_now().await;
        assert!(settling.try_join_next().is_none());
        assert!(timeout(Duration::from_millis(1), board.ticket(Lane::Pairs)).await.is_err());
        board.record(ticket, Outcome::Failed("why".to_owned()));
        settling.join_next().await.unwrap().unwrap();
        assert_eq!((board.score().failed, board.complaints()), (1, vec!["why".to_owned()]));
        board.end();
        assert!(board.ticket(Lane::Vip).await.is_none());
    }
}
