//! The extension of a path in use: a later end is held and committed beside the life of the path.
//!
//! The first request is sent once. It is preceded by a record with the wanted end, and its result
//! is queried if it is late. A refusal is reported once, and the path is used until its end. The
//! state of the path comes from queries of the path alone.

use std::time::Duration;

use super::{Goal, Life, Notice};
use crate::{Answer, Outcome, Phase, State, Step};

/// An extension that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension {
    /// The wanted end.
    until: Duration,
    /// [`Step::Extend`] or [`Step::Commit`].
    step: Step,
    /// When the step began.
    since: Duration,
    number: u64,
    /// When the order or the last query was sent.
    at: Duration,
    /// The number of the last query since the order.
    query: Option<u64>,
    /// The provider did not get the order.
    unsent: bool,
}

impl Life {
    /// When the next extension has to be requested: early enough for its answers.
    pub(super) fn extension_due(&self) -> Option<Duration> {
        let by = self.entry.extend_by?;
        let wanted = self.entry.phase == Phase::Up && self.goal == Goal::Up;
        if !wanted || self.not_extended || self.extension.is_some() {
            return None;
        }
        let lead = (by / 10).max(self.limits.hold + self.limits.answer).min(by / 2);
        Some(self.entry.request.until.saturating_sub(lead))
    }

    /// When the time of the present step is over.
    fn extension_deadline(&self) -> Option<Duration> {
        let extension = self.extension?;
        let limit = if extension.step == Step::Extend { self.limits.hold } else { self.limits.answer };
        Some(extension.since + limit)
    }

    /// When [`Life::tick_extension`] has to be called next.
    pub(super) fn extension_timeout(&self) -> Option<Duration> {
        let pause = self.extension.map(|extension| extension.at + self.limits.pause);
        [self.extension_due(), self.extension_deadline(), pause].into_iter().flatten().min()
    }

    pub(super) fn tick_extension(&mut self, now: Duration) {
        if let (Some(due), Some(by)) = (self.extension_due(), self.entry.extend_by)
            && now >= due
        {
            let until = self.entry.request.until + by;
            (self.entry.extending, self.changed) = (Some(until), true);
            return self.extension_order(until, Step::Extend, now, now);
        }
        let Some(Extension { until, step, since, at, query, unsent, .. }) = self.extension else { return };
        if self.extension_deadline().is_some_and(|deadline| now >= deadline) {
            // Nothing may stay held that is not committed.
            self.send_extension(Step::Abort, until);
            return self.refuse_extension("the provider has not answered in time".to_owned());
        }
        if now < at + self.limits.pause {
            return;
        }
        // Only the first request must not be repeated, unless the provider did not get it.
        let repeats = unsent || step == Step::Commit && query.is_some();
        match repeats {
            true => self.extension_order(until, step, since, now),
            false => {
                let number = self.send_extension(Step::QueryExtension, until);
                if let Some(extension) = &mut self.extension {
                    (extension.query, extension.at) = (Some(number), now);
                }
            }
        }
    }

    /// Takes an answer to an order or a query of the extension. Returns whether it was one.
    pub(super) fn extension_answer(&mut self, answer: &Answer, now: Duration) -> bool {
        let Some(Extension { until, step, number, query, .. }) = self.extension else { return false };
        let of_order = answer.number == Some(number);
        if !of_order && (query.is_none() || answer.number != query) {
            return false;
        }
        match &answer.outcome {
            Outcome::State(State::Held) if step == Step::Extend => {
                self.extension_order(until, Step::Commit, now, now);
            }
            Outcome::State(State::Reserved) => {
                self.entry.request.until = until;
                self.end_extension();
                self.notice(Notice::Extended(until));
            }
            Outcome::State(State::Failed(why)) => {
                let why = why.clone();
                self.send_extension(Step::Abort, until);
                self.refuse_extension(why);
            }
            Outcome::Refused(why) if of_order => self.refuse_extension(why.clone()),
            Outcome::NotSent(_) if of_order => {
                if let Some(extension) = &mut self.extension {
                    extension.unsent = true;
                }
            }
            // The result is queried after the pause. "Gone" is no result: a query may overtake the
            // request, and whether the path is gone is the matter of other queries.
            _ => {}
        }
        true
    }

    /// Forgets an extension, as its path ends or is not in use any more.
    pub(super) fn end_extension(&mut self) {
        self.changed |= self.entry.extending.take().is_some();
        self.extension = None;
    }

    fn extension_order(&mut self, until: Duration, step: Step, since: Duration, now: Duration) {
        let number = self.send_extension(step, until);
        self.extension = Some(Extension { until, step, since, number, at: now, query: None, unsent: false });
    }

    fn send_extension(&mut self, step: Step, until: Duration) -> u64 {
        self.number += 1;
        let mut request = self.entry.request.clone();
        request.until = until;
        self.send_with(step, request);
        self.number
    }

    fn refuse_extension(&mut self, why: String) {
        self.end_extension();
        self.not_extended = true;
        self.notice(Notice::NotExtended(why));
    }
}
