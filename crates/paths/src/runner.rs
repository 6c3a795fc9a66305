//! Carries out the actions of a reservation: writes its journal, talks to its provider.
//!
//! A runner belongs to one thread. Every wait is short, so that the caller can stop it.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{
    Action, Answer, Binding, Entry, Goal, Journal, JournalError, Life, Locked, Notice, Outcome, Phase,
    Provider,
};

/// How long the caller's request to stop can remain unnoticed.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// There is no path.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{0}")]
    Failed(String),
    #[error("stopped before the path was up")]
    Stopped,
}

/// A reservation, its provider and its entry in the journal.
pub struct Runner {
    life: Life,
    provider: Box<dyn Provider>,
    locked: Locked,
    left: bool,
}

/// The time since 1970. It does not go back while the program runs, whatever happens to the clock.
pub fn now() -> Duration {
    static BEGIN: LazyLock<(Duration, Instant)> =
        LazyLock::new(|| (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), Instant::now()));
    BEGIN.0 + BEGIN.1.elapsed()
}

impl Runner {
    /// Begins a new reservation. Nothing is sent before [`Runner::obtain`].
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn begin(
        journal: &Journal,
        entry: Entry,
        provider: Box<dyn Provider>,
        goal: Goal,
    ) -> Result<Self, JournalError> {
        let locked = journal.create(&entry.id)?;
        let life = Life::new(entry, provider.limits(), goal, now());
        Ok(Self { life, provider, locked, left: false })
    }

    /// Continues with an entry whose process is gone.
    pub fn recover((entry, locked): (Entry, Locked), provider: Box<dyn Provider>, goal: Goal) -> Self {
        let life = Life::recover(entry, provider.limits(), goal, now());
        Self { life, provider, locked, left: false }
    }

    pub fn entry(&self) -> &Entry {
        self.life.entry()
    }

    /// Whether the provider did not confirm the end, so that the entry stays in the journal.
    pub fn is_left(&self) -> bool {
        self.left
    }

    /// Waits until the path is reserved or, if that is the goal, up. A path that fails, or is no
    /// longer wanted, is removed before the return.
    ///
    /// # Errors
    /// The provider gives no path, the journal cannot be written, or `stopped` is true.
    pub fn obtain(&mut self, goal: Goal, stopped: &dyn Fn() -> bool) -> Result<Binding, PathError> {
        self.obtain_with(goal, stopped, &mut |_, _| {})
    }

    /// As [`Runner::obtain`]; `report` gets the news on the way.
    ///
    /// # Errors
    /// Those of [`Runner::obtain`].
    pub fn obtain_with(
        &mut self,
        goal: Goal,
        stopped: &dyn Fn() -> bool,
        report: &mut dyn FnMut(&Entry, &Notice),
    ) -> Result<Binding, PathError> {
        self.life.set_goal(goal, now());
        loop {
            let error = match self.step() {
                Ok(notices) => {
                    let mut failure = None;
                    for notice in notices {
                        report(self.entry(), &notice);
                        match notice {
                            Notice::Up(binding) if goal == Goal::Up => return Ok(binding),
                            Notice::Reserved if goal == Goal::Reserved => return Ok(Binding::default()),
                            Notice::Failed(why) => failure = Some(PathError::Failed(why)),
                            Notice::Ended if failure.is_none() => {
                                failure = Some(PathError::Failed("the provider has no such path".to_owned()));
                            }
                            _ => {}
                        }
                    }
                    failure
                }
                Err(error) => Some(PathError::Journal(error)),
            };
            let error = error.or_else(|| stopped().then_some(PathError::Stopped));
            if let Some(error) = error {
                self.end();
                return Err(error);
            }
        }
    }

    /// Carries out what is due, and waits a moment for the provider. Call it again and again while
    /// the path is in use.
    ///
    /// # Errors
    /// The journal cannot be written. The request that needed the record is not sent.
    pub fn step(&mut self) -> Result<Vec<Notice>, JournalError> {
        let mut notices = Vec::new();
        self.act(&mut notices)?;
        if self.life.is_over() {
            std::thread::sleep(LONGEST_WAIT);
        } else if notices.is_empty() {
            let due = self.life.timeout().map_or(LONGEST_WAIT, |at| at.saturating_sub(now()));
            if let Some(answer) = self.provider.receive(due.min(LONGEST_WAIT)) {
                self.life.answer(&answer, now());
            }
            self.life.tick(now());
            self.act(&mut notices)?;
        }
        Ok(notices)
    }

    /// Gives a reserved path to a person: it stays when the process ends. Until then, a crash makes
    /// it one that the next program removes.
    ///
    /// # Errors
    /// The journal cannot be written. The path still belongs to the process.
    pub fn hand_over(&mut self) -> Result<(), JournalError> {
        self.life.hand_over();
        self.act(&mut Vec::new())
    }

    /// Removes the path, and waits for the provider's confirmation for a limited time.
    pub fn end(&mut self) {
        self.life.set_goal(Goal::End, now());
        while !self.life.is_over() {
            // It fails only for a path that is not to be removed.
            let _ = self.step();
        }
        // Actions that the last step has left.
        let _ = self.act(&mut Vec::new());
    }

    /// Stops using a path, which stays reserved, and waits for the provider's confirmation.
    pub fn release(&mut self) {
        self.life.set_goal(Goal::Reserved, now());
        while !self.life.is_over() && self.entry().phase != Phase::Reserved {
            // The error of the journal removes the path.
            let _ = self.step();
        }
        let _ = self.act(&mut Vec::new());
    }

    fn act(&mut self, notices: &mut Vec<Notice>) -> Result<(), JournalError> {
        while let Some(action) = self.life.poll() {
            match action {
                Action::Record(entry) => match self.locked.write(&entry) {
                    Ok(()) => {}
                    // Without a record, a path that is removed might be removed twice.
                    Err(error) if self.life.is_ending() => {
                        tracing::warn!(%error, "a path is removed without a record");
                    }
                    Err(error) => {
                        self.life.unrecorded(error.to_string(), now());
                        return Err(error);
                    }
                },
                Action::Send(order) => {
                    tracing::debug!(id = %order.id, step = order.step.name(), "order to the provider of paths");
                    let outcome = self.provider.send(&order);
                    let reference = self.provider.reference();
                    if let Outcome::Refused(why) | Outcome::NotSent(why) | Outcome::Unclear(why) = &outcome {
                        tracing::info!(id = %order.id, step = order.step.name(), why, "order failed");
                    }
                    let answer = Answer { id: order.id, number: Some(order.number), reference, outcome };
                    self.life.answer(&answer, now());
                }
                Action::Notice(notice) => {
                    self.left |= notice == Notice::Left;
                    notices.push(notice);
                }
            }
        }
        Ok(())
    }
}
