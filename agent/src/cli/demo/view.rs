//! What is shown: a finished step is printed once, the running one is redrawn in place below it.
//!
//! Without a terminal, or with `NO_COLOR`, only the finished steps are printed. Lines stay below 80 columns, for a
//! wrapped line would break the redrawing.

use std::fmt::Write as _;

use super::{
    chance,
    judge::{Played, distribution, weights},
    stage::REVISIONS,
};
use crate::cli::{
    outcome::Failure,
    output::{Output, Styles},
};

/// The screen.
#[derive(Debug)]
pub(super) struct View<'o> {
    out: &'o mut Output,
    /// Redraw.
    live: bool,
    /// Lines of the part that is redrawn.
    drawn: usize,
}

impl<'o> View<'o> {
    pub(super) fn new(out: &'o mut Output) -> Self {
        let live = out.terminal && out.styles != Styles::default();
        Self { out, live, drawn: 0 }
    }

    pub(super) fn styles(&self) -> Styles {
        self.out.styles
    }

    /// Prints a text that stays.
    pub(super) fn say(&mut self, text: &str) -> Result<(), Failure> {
        let text = self.over(text);
        self.drawn = 0;
        Ok(self.out.write(&text)?)
    }

    /// Draws the part that changes.
    pub(super) fn draw(&mut self, text: &str) -> Result<(), Failure> {
        if !self.live {
            return Ok(());
        }
        let whole = self.over(text);
        self.drawn = text.lines().count();
        Ok(self.out.write(&whole)?)
    }

    /// The text, over what was drawn last.
    fn over(&self, text: &str) -> String {
        match self.drawn {
            0 => text.to_owned(),
            // Up, then clear to the end of the screen.
            lines => format!("\x1b[{lines}A\x1b[J{text}"),
        }
    }
}

/// One step in three lines, with its verdict or with how far it is.
pub(super) fn step(played: &Played, end: &str, kernel: bool, styles: &Styles) -> String {
    let Played { number, last, step, score, kernel: steers } = played;
    let mut text = String::new();
    let requests: u64 = score.requests.iter().sum();
    let (heading, good, bad) = (styles.heading, styles.good, styles.bad);
    let mixed = if score.mixed == 0 { good } else { bad };
    let failed = if score.failed == 0 { good } else { bad };
    let mut line = format!(
        "{heading}step {number:>2}/{last}{heading:#}  requests {requests:<6} {mixed}mixed {}{mixed:#}  \
         {failed}failed {}{failed:#}",
        score.mixed, score.failed
    );
    if kernel {
        let _ = write!(line, "  steered {:<6} denied {}", steers.steered(), steers.denied);
    }
    let _ = writeln!(text, "{line}  {end}");
    let distribution = distribution(step);
    let (weights, total) = weights(&distribution);
    for (index, (name, counts)) in REVISIONS.iter().zip([&step.old, &step.new]).enumerate() {
        let count = |role: usize| counts.get(role).copied().unwrap_or(0);
        let expected = weights.get(index).map_or(0.0, |weight| percent(*weight, total));
        let _ = write!(
            text,
            "  {name}  prefill {:>2}  decode {:>2}  expected {expected:>6.2}%",
            count(0),
            count(1)
        );
        let _ = write!(text, "  pairs {}", observed(&score.pairs, index));
        if kernel {
            let _ = write!(text, "  VIP {}", observed(&score.vip, index));
        }
        text.push('\n');
    }
    text
}

fn observed(served: &[u64], index: usize) -> String {
    let total: u64 = served.iter().sum();
    match served.get(index) {
        Some(hits) if total > 0 => format!("{:>6.2}%", percent(*hits, total)),
        _ => format!("{:>7}", "-"),
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { chance::float(part) * 100.0 / chance::float(whole) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::demo::{board::Score, child::Kernel},
        rollout::Step,
    };

    fn played() -> Played {
        Played {
            number: 10,
            last: 10,
            step: Step { old: vec![100, 100], new: vec![100, 100] },
            score: Score {
                pairs: vec![1000, 0],
                vip: vec![500, 500],
                requests: [100_000, 200_000, 3_000],
                ..Score::default()
            },
            kernel: Kernel { pin: 100_000, own: 1, weight: 200_000, denied: 10 },
        }
    }

    #[test]
    fn a_step_stays_within_eighty_columns() {
        let text = step(&played(), "ok", true, &Styles::default());
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    }

    #[test]
    fn a_step_shows_counts_expected_and_observed_shares() {
        let text = step(&played(), "ok", true, &Styles::default());
        assert!(
            text.contains("A  prefill 100  decode 100  expected  50.00%  pairs 100.00%  VIP  50.00%"),
            "{text}"
        );
        assert!(text.contains("B  prefill 100  decode 100  expected  50.00%  pairs   0.00%"), "{text}");
    }

    #[test]
    fn without_a_terminal_nothing_is_redrawn() {
        let mut out = Output::to(std::io::sink());
        let mut view = View::new(&mut out);
        view.draw("one\ntwo\n").unwrap();
        assert_eq!((view.live, view.drawn), (false, 0));
    }
}
