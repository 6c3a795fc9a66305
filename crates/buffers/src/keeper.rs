//! A budget for the connections of one's own process, kept by a thread.

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

/// Looks are so far apart, or so many times as long as one takes: with very many connections they cost a twentieth of a
/// processor.
const INTERVAL: Duration = Duration::from_secs(1);
const SHARE: u32 = 20;

/// What is to be divided, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    pub rule: Rule,
    /// Bytes of payload in all buffers, checked ([`check_budget`](crate::check_budget)).
    pub budget: u64,
}

/// What a [`Keeper`] has done.
#[derive(Debug)]
pub enum Kept {
    Divided(Round),
    /// Nothing is divided any more: everything is as it was before.
    GivenBack(Vec<(Flow, Action)>),
    /// Nothing was divided or given back; this is tried again. It is told once.
    Failed(RoundError),
}

/// Divides a budget among the TCP connections of the calling process, again whenever they come or go or their demands move,
/// until it is dropped. Needs no privilege and no file: what was set ends with the process.
#[derive(Debug)]
pub struct Keeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// `wanted` is asked at each look, about once a second; `tell` hears what was done.
    ///
    /// # Errors
    /// There is no thread for it.
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
            // Who panicked has said so.
            let _ = thread.join();
        }
    }
}

/// The thread's.
struct Keeping<W, T> {
    wanted: W,
    tell: T,
    now: Option<Division>,
    /// Absent if nothing is wanted, or the first look failed.
    negotiator: Option<Negotiator>,
    /// What has been told of looks that failed.
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
            // Rates are measured from here on.
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
            // The next look may have what this one had not, such as a descriptor. Until then all stays as it was divided.
            Err(error) => self.fail(error),
        }
    }

    /// Tells of an error, but not again of the same one.
    fn fail(&mut self, error: RoundError) {
        let text = error.to_string();
        if self.failed.as_ref() != Some(&text) {
            self.failed = Some(text);
            (self.tell)(Kept::Failed(error));
        }
    }

    /// Whether nothing is divided any more. Where that fails, who knows what was set is kept, to be asked again.
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
