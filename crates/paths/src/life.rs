//! The life of a reservation: hold, commit, activate, up, release, terminate.
//!
//! Sans-IO: the caller passes answers and the time in, and carries actions out in their order. An
//! [`Action::Record`] has to be on disk before the next action. Every request is preceded by a
//! record, so that a crash at any point leaves an entry from which [`Life::recover`] finds the path
//! and removes it. An answer counts only if it belongs to the last order or to a later query; a
//! notification only causes a query. So late, repeated and reordered messages change nothing, and a
//! path is never reported as up before the provider has said so after the activation. A path in use
//! can be extended ([`extension`]) without an effect on these rules.

mod extension;

use std::collections::VecDeque;
use std::time::Duration;

use crate::{Answer, Binding, Entry, Limits, Order, Outcome, Owner, Phase, Request, State, Step};
use extension::Extension;

/// The state that the owner of a reservation wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Have it reserved, without using it.
    Reserved,
    /// Use it as soon as its time has begun.
    Up,
    /// Remove it.
    End,
}

/// A task for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write the entry to disk. An entry that has ended is removed.
    Record(Entry),
    Send(Order),
    Notice(Notice),
}

/// News for the owner.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// The path is reserved.
    Reserved,
    /// The path can be used.
    Up(Binding),
    /// The path is reserved until this time, since 1970.
    Extended(Duration),
    /// The path ends with its present time, for this reason.
    NotExtended(String),
    /// The path cannot be used any more. The provider may bring it up again.
    Down(String),
    /// There will be no path.
    Failed(String),
    /// The provider has no such path any more.
    Ended,
    /// The provider did not confirm the end in time. The entry stays in the journal.
    Left,
}

/// The life of one reservation.
#[derive(Debug)]
pub struct Life {
    entry: Entry,
    limits: Limits,
    goal: Goal,
    number: u64,
    /// The order whose result is outstanding.
    order: Option<Sent>,
    /// The number of the last query since the last order, and when it was sent.
    query: Option<(u64, Duration)>,
    extension: Option<Extension>,
    /// The provider has refused an extension: there is no other.
    not_extended: bool,
    /// When the phase began.
    since: Duration,
    /// When the goal became [`Goal::End`].
    ending: Option<Duration>,
    /// The entry differs from the recorded one.
    changed: bool,
    left: bool,
    actions: VecDeque<Action>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    step: Step,
    number: u64,
    /// The last time it was sent.
    at: Duration,
}

impl Life {
    /// A new reservation. Times are since 1970; they must not go back.
    pub fn new(entry: Entry, limits: Limits, goal: Goal, now: Duration) -> Self {
        let mut life = Self {
            entry,
            limits,
            goal: Goal::Reserved,
            number: 0,
            order: None,
            query: None,
            extension: None,
            not_extended: false,
            since: now,
            ending: None,
            changed: false,
            left: false,
            actions: VecDeque::new(),
        };
        life.set_goal(goal, now);
        life
    }

    /// Continues with an entry of the journal whose process is gone. A reserved path keeps its
    /// place and can be used. A person's path that was in use is released first. Every other one
    /// can only be removed.
    pub fn recover(mut entry: Entry, limits: Limits, goal: Goal, now: Duration) -> Self {
        let was_used = matches!(entry.phase, Phase::Activating | Phase::Up | Phase::Releasing);
        let kept = was_used && entry.owner == Owner::Person && goal != Goal::End;
        if kept {
            entry.phase = Phase::Releasing;
        }
        let adopted = kept || entry.phase == Phase::Reserved;
        if !adopted && !matches!(entry.phase, Phase::New | Phase::Ended) {
            entry.phase = match entry.reference {
                Some(_) => Phase::Terminating,
                None => Phase::Finding,
            };
        }
        Self::new(entry, limits, if adopted { goal } else { Goal::End }, now)
    }

    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Changes what the owner wants. [`Goal::End`] is final.
    pub fn set_goal(&mut self, goal: Goal, now: Duration) {
        if self.goal != Goal::End {
            self.goal = goal;
        }
        if self.goal == Goal::End {
            self.ending.get_or_insert(now);
        }
        self.advance(now);
    }

    /// Gives the path to a person: from the record of this on, it stays when the process ends.
    pub fn hand_over(&mut self) {
        self.entry.owner = Owner::Person;
        self.changed = true;
        self.record();
    }

    /// A record could not be written: drops the orders behind it, and removes the path.
    pub fn unrecorded(&mut self, why: String, now: Duration) {
        let is_hold = |action: &Action| matches!(action, Action::Send(order) if order.step == Step::Hold);
        if self.actions.iter().any(is_hold) {
            (self.entry.phase, self.order) = (Phase::New, None);
        }
        self.actions.retain(|action| !matches!(action, Action::Send(_)));
        self.fail(why, now);
        self.advance(now);
    }

    /// Whether the path is to go.
    pub fn is_ending(&self) -> bool {
        self.goal == Goal::End
    }

    /// The next action. Actions have to be carried out in this order.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Life::tick`] has to be called next; `None`: only a message or a new goal can change
    /// anything.
    pub fn timeout(&self) -> Option<Duration> {
        if self.is_over() {
            return None;
        }
        let deadline = self.deadline().map(|(at, _)| at);
        let pause = self.waits_for_provider().then(|| self.last_message() + self.pause());
        let window = (self.goal != Goal::End).then_some(self.entry.request.until);
        let start =
            self.entry.request.from.filter(|_| self.entry.phase == Phase::Reserved && self.goal == Goal::Up);
        let ending = self.ending.map(|at| at + self.limits.end);
        let extension = self.extension_timeout();
        [deadline, pause, window, start, ending, extension].into_iter().flatten().min()
    }

    /// Nothing is left to do here.
    pub fn is_over(&self) -> bool {
        self.left || self.entry.phase == Phase::Ended
    }

    /// The time has passed.
    pub fn tick(&mut self, now: Duration) {
        if self.is_over() {
            return;
        }
        if self.goal != Goal::End && now >= self.entry.request.until {
            self.fail("the reserved time is over".to_owned(), now);
        }
        if self.ending.is_some_and(|at| now >= at + self.limits.end) {
            self.left = true;
            self.notice(Notice::Left);
            return;
        }
        if let Some((at, text)) = self.deadline()
            && now >= at
        {
            match self.entry.phase {
                // The next step removes the path in any case.
                Phase::Releasing | Phase::Aborting => {
                    self.goal = Goal::End;
                    self.ending.get_or_insert(now);
                    self.enter(Phase::Terminating, now);
                }
                _ => self.fail(text.to_owned(), now),
            }
        }
        self.advance(now);
        self.tick_extension(now);
        self.record();
        if self.waits_for_provider() && now >= self.last_message() + self.pause() {
            self.ask_again(now);
        }
    }

    /// A message of the provider.
    pub fn answer(&mut self, answer: &Answer, now: Duration) {
        if answer.id != self.entry.id || self.is_over() {
            return;
        }
        if self.extension_answer(answer, now) {
            return self.advance(now);
        }
        let of_query = self.query.is_some_and(|(number, _)| answer.number == Some(number));
        // A late answer to the first request may be the only one that has the name.
        let is_named =
            self.entry.reference.is_none() && answer.number.is_some() && answer.reference.is_some();
        if is_named {
            self.entry.reference.clone_from(&answer.reference);
            self.changed = true;
            if self.entry.phase == Phase::Finding {
                self.enter(Phase::Terminating, now);
            }
        }
        let of_order = self.order.is_some_and(|sent| answer.number == Some(sent.number));
        match &answer.outcome {
            _ if answer.number.is_none() => self.query(now),
            Outcome::State(state) if of_order || of_query => self.state(state.clone(), now),
            Outcome::NotSent(why) if of_order => self.not_sent(why, now),
            Outcome::Refused(why) if of_order => self.refused(why, now),
            Outcome::Unclear(why) if of_order => self.unclear(why, now),
            // A query is repeated after the pause.
            _ => {}
        }
        if is_named {
            // A copy of the query from before may still be answered with "no such path".
            self.query = None;
        }
        self.advance(now);
    }

    fn state(&mut self, state: State, now: Duration) {
        match (self.entry.phase, state) {
            (Phase::Terminating, State::Gone) => self.enter(Phase::Ended, now),
            (Phase::Terminating | Phase::Ended | Phase::New, _) => {}
            // The first request may still be on its way. The hold ends by itself.
            (Phase::Finding, State::Gone) => {
                let requested = self.entry.requested.unwrap_or_default();
                if now >= requested + self.limits.hold {
                    self.enter(Phase::Ended, now);
                }
            }
            (Phase::Finding, _) => self.enter(Phase::Terminating, now),
            (Phase::Holding, State::Gone) if self.entry.reference.is_none() => {}
            (Phase::Holding, State::Checking) => {}
            (Phase::Holding, State::Held) => self.order = None,
            (Phase::Holding | Phase::Committing, State::Reserved | State::Activated | State::Up(_)) => {
                self.enter(Phase::Reserved, now);
                self.notice(Notice::Reserved);
            }
            (Phase::Committing, State::Held | State::Checking) => {}
            (Phase::Aborting, State::Held | State::Checking) => {}
            (Phase::Aborting, _) => self.enter(Phase::Terminating, now),
            (Phase::Activating, State::Activated) => self.order = None,
            (Phase::Activating, State::Up(binding)) if self.goal == Goal::Up => {
                self.enter(Phase::Up, now);
                self.notice(Notice::Up(binding));
            }
            (Phase::Activating, State::Up(_) | State::Reserved | State::Held | State::Checking) => {}
            (Phase::Up, State::Up(_)) => {}
            (Phase::Up, State::Activated | State::Reserved | State::Held | State::Checking) => {
                self.notice(Notice::Down("the provider reports that the path is down".to_owned()));
                self.enter(Phase::Activating, now);
            }
            (Phase::Releasing, State::Activated | State::Up(_)) => {}
            (Phase::Releasing, State::Reserved | State::Held | State::Checking) => {
                self.enter(if self.goal == Goal::End { Phase::Terminating } else { Phase::Reserved }, now);
            }
            (Phase::Reserved, State::Reserved | State::Activated | State::Up(_)) => {}
            (Phase::Reserved, State::Held | State::Checking) => {}
            (_, State::Failed(why)) => self.fail(why, now),
            (_, State::Gone) => {
                self.fail("the provider has no such path any more".to_owned(), now);
                self.enter(Phase::Ended, now);
            }
        }
    }

    fn not_sent(&mut self, why: &str, now: Duration) {
        if self.entry.phase == Phase::Holding {
            self.fail(why.to_owned(), now);
            // There is nothing to remove.
            self.enter(Phase::Ended, now);
        }
        // Other orders are repeated after the pause.
    }

    fn refused(&mut self, why: &str, now: Duration) {
        match self.entry.phase {
            Phase::Holding if self.entry.reference.is_none() => {
                self.fail(why.to_owned(), now);
                self.enter(Phase::Ended, now);
            }
            Phase::Holding | Phase::Committing | Phase::Activating => self.fail(why.to_owned(), now),
            Phase::Releasing | Phase::Aborting => self.enter(Phase::Terminating, now),
            // A provider that has no such path may refuse to terminate it.
            Phase::Terminating => self.query(now),
            _ => {}
        }
    }

    fn unclear(&mut self, why: &str, now: Duration) {
        // A second request could make a second path.
        if self.entry.phase == Phase::Holding {
            self.fail(why.to_owned(), now);
        }
    }

    /// The path cannot be used: it has to go.
    fn fail(&mut self, why: String, now: Duration) {
        if self.entry.phase == Phase::Up {
            self.notice(Notice::Down(why.clone()));
        }
        if self.goal != Goal::End {
            self.notice(Notice::Failed(why.clone()));
            self.entry.failure = Some(why);
            self.changed = true;
        }
        self.goal = Goal::End;
        self.ending.get_or_insert(now);
    }

    /// Takes the next step, if no result is outstanding or the goal has changed.
    fn advance(&mut self, now: Duration) {
        use Phase as P;
        if self.left {
            return;
        }
        match (self.entry.phase, self.goal) {
            (P::New, Goal::End) => self.enter(P::Ended, now),
            (P::New, _) => {
                self.entry.requested = Some(now);
                self.enter(P::Holding, now);
                self.order(Step::Hold, now);
            }
            (P::Holding, Goal::End) if self.entry.reference.is_none() => {
                self.enter(P::Finding, now);
                self.query(now);
            }
            (P::Holding | P::Committing, Goal::End) => {
                self.enter(P::Aborting, now);
                self.order(Step::Abort, now);
            }
            (P::Holding, _) if self.order.is_none() => {
                self.enter(P::Committing, now);
                self.order(Step::Commit, now);
            }
            (P::Reserved, Goal::Up) if self.entry.request.from.is_none_or(|from| now >= from) => {
                self.enter(P::Activating, now);
                self.order(Step::Activate, now);
            }
            (P::Reserved, Goal::End) => self.enter(P::Terminating, now),
            (P::Activating | P::Up, Goal::End | Goal::Reserved) => {
                self.enter(P::Releasing, now);
                self.order(Step::Release, now);
            }
            (P::Releasing, _) if self.order.is_none() => self.order(Step::Release, now),
            (P::Finding, _) if self.query.is_none() => self.query(now),
            _ => {}
        }
        if self.entry.phase == P::Terminating && self.order.is_none() {
            self.order(Step::Terminate, now);
        }
        self.record();
    }

    fn enter(&mut self, phase: Phase, now: Duration) {
        if self.entry.phase == phase || self.entry.phase == Phase::Ended {
            return;
        }
        self.end_extension();
        self.entry.phase = phase;
        self.since = now;
        self.order = None;
        self.query = None;
        self.changed = true;
        if phase == Phase::Ended {
            self.record();
            self.notice(Notice::Ended);
        }
    }

    fn order(&mut self, step: Step, now: Duration) {
        self.number += 1;
        self.order = Some(Sent { step, number: self.number, at: now });
        self.query = None;
        self.send(step);
    }

    fn query(&mut self, now: Duration) {
        if self.entry.phase == Phase::New || self.entry.phase == Phase::Ended {
            return;
        }
        // Notifications must not cause more queries than the provider answers.
        if self.query.is_some_and(|(_, at)| now < at + self.limits.pause / 5) {
            return;
        }
        self.number += 1;
        self.query = Some((self.number, now));
        self.send(Step::Query);
    }

    /// The result is late: repeats the order, or asks for the state.
    fn ask_again(&mut self, now: Duration) {
        let repeats = |step| !matches!(step, Step::Hold);
        match self.order {
            // In turn: an answer to the query shows whether the order is still needed.
            Some(sent) if repeats(sent.step) && self.query.is_some() => {
                self.order(sent.step, now);
            }
            _ => {
                self.query = None;
                self.query(now);
            }
        }
    }

    fn waits_for_provider(&self) -> bool {
        self.order.is_some() || matches!(self.entry.phase, Phase::Activating | Phase::Finding | Phase::Up)
    }

    /// The pause between queries. A path that is up needs fewer.
    fn pause(&self) -> Duration {
        if self.entry.phase == Phase::Up { self.limits.pause * 6 } else { self.limits.pause }
    }

    fn last_message(&self) -> Duration {
        let order = self.order.map_or(self.since, |sent| sent.at);
        self.query.map_or(order, |(_, at)| at.max(order))
    }

    /// When the phase has taken too long, and what is then reported.
    fn deadline(&self) -> Option<(Duration, &'static str)> {
        let (limit, text) = match self.entry.phase {
            Phase::Holding => (self.limits.hold, "the provider has not answered the reservation in time"),
            Phase::Committing => {
                (self.limits.answer, "the provider has not confirmed the reservation in time")
            }
            Phase::Activating => (self.limits.up, "the path did not come up in time"),
            Phase::Releasing | Phase::Aborting => (self.limits.end / 3, ""),
            _ => return None,
        };
        Some((self.since + limit, text))
    }

    fn send(&mut self, step: Step) {
        self.send_with(step, self.entry.request.clone());
    }

    fn send_with(&mut self, step: Step, request: Request) {
        self.record();
        self.actions.push_back(Action::Send(Order {
            id: self.entry.id.clone(),
            number: self.number,
            step,
            reference: self.entry.reference.clone(),
            request,
        }));
    }

    fn record(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.actions.push_back(Action::Record(self.entry.clone()));
        }
    }

    fn notice(&mut self, notice: Notice) {
        self.actions.push_back(Action::Notice(notice));
    }
}
