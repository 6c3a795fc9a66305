//! A thread that divides a budget among the connections of its own process.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, process};

use crate::analyzer::{AnalyzeError, Analyzer};
use crate::demand::Measure;
use crate::flow::{Filter, Flow};
use crate::ledger::Ledger;
use crate::negotiator::{Action, Negotiator, Reach, Round, RoundError};
use crate::rule::Rule;

/// The time between looks is at least this interval, and at least `SHARE` times the duration of a
/// look: with very many connections, looks use a twentieth of a processor.
const INTERVAL: Duration = Duration::from_secs(1);
const SHARE: u32 = 20;

/// The budget to divide, and the rule of the division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    pub rule: Rule,
    /// Bytes of payload in all buffers, checked ([`check_budget`](crate::check_budget)).
    pub budget: u64,
}

/// A report of a [`Keeper`].
#[derive(Debug)]
pub enum Kept {
    Divided(Round),
    /// The division has ended: all buffers are restored.
    GivenBack(Vec<(Flow, Action)>),
    /// No buffer was divided or restored. The keeper tries again. The same error is reported once.
    Failed(RoundError),
}

/// Divides a budget among the TCP connections of the calling process until it is dropped. It
/// divides again when connections are opened or closed, or when their demands change. It needs no
/// privilege and no file, because the buffers are closed with the process.
#[derive(Debug)]
pub struct Keeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// `wanted` is called at each look, about once per second; `tell` is called with each report.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn start(
        wanted: impl FnMut() -> Option<Division> + Send + 'static,
        tell: impl FnMut(Kept) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, stop) = mpsc::channel();
        let keep = move || Keeping::new(wanted, tell).until(&stop);
        let thread = thread::Builder::new().name("socket buffers".into()).spawn(keep)?;
        Ok(Self { stop: Some(sender), thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Keeping<W, T> {
    wanted: W,
    tell: T,
    now: Option<Division>,
    /// Absent if no division is wanted, or if the first look failed.
    negotiator: Option<Negotiator>,
    /// The last error that was reported.
    failed: Option<String>,
}

impl<W: FnMut() -> Option<Division>, T: FnMut(Kept)> Keeping<W, T> {
    fn new(wanted: W, tell: T) -> Self {
        Self { wanted, tell, now: None, negotiator: None, failed: None }
    }

    fn until(mut self, stop: &Receiver<()>) {
        let mut pause = Duration::ZERO;
        while stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let begin = Instant::now();
            self.look();
            pause = INTERVAL.max(begin.elapsed().saturating_mul(SHARE));
        }
        self.give_back();
    }

    fn look(&mut self) {
        let wanted = (self.wanted)();
        if wanted != self.now {
            if !self.give_back() {
                return;
            }
            self.now = wanted;
            self.failed = None;
        }
        let Some(division) = wanted else { return };
        let looked = match &mut self.negotiator {
            Some(negotiator) => round(negotiator),
            // This first look is the start of the measurement of rates.
            None => begin(division).map(|begun| {
                self.negotiator = Some(begun);
                None
            }),
        };
        match looked {
            Ok(done) => {
                self.failed = None;
                done.into_iter().for_each(|round| (self.tell)(Kept::Divided(round)));
            }
            // The next look may succeed, for example when a descriptor is available again. Until
            // then the division stays as it is.
            Err(error) => self.fail(error),
        }
    }

    /// Reports an error, unless it is the same as the last one.
    fn fail(&mut self, error: RoundError) {
        let text = error.to_string();
        if self.failed.as_ref() != Some(&text) {
            self.failed = Some(text);
            (self.tell)(Kept::Failed(error));
        }
    }

    /// Restores all buffers, and returns whether this succeeded. If it fails, the negotiator is
    /// kept, because it knows the original sizes, and the next look tries again.
    fn give_back(&mut self) -> bool {
        let Some(negotiator) = &mut self.negotiator else { return true };
        match negotiator.release() {
            Ok(done) => {
                self.negotiator = None;
                (self.tell)(Kept::GivenBack(done));
                true
            }
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }
}

fn begin(division: Division) -> Result<Negotiator, RoundError> {
    let mut negotiator = negotiator(division)?;
    negotiator.look()?;
    Ok(negotiator)
}

fn round(negotiator: &mut Negotiator) -> Result<Option<Round>, RoundError> {
    let snapshot = negotiator.look()?;
    negotiator.is_due(&snapshot).then(|| negotiator.negotiate(snapshot)).transpose()
}

fn negotiator(Division { rule, budget }: Division) -> Result<Negotiator, AnalyzeError> {
    let filter = Filter { pids: vec![process::id()], ..Filter::default() };
    let analyzer = Analyzer::of_this_process()?;
    Ok(Negotiator::with(
        analyzer,
        rule,
        budget,
        (Measure::default(), filter),
        (Reach::All, false),
        Ledger::of_this_process(),
    ))
}
