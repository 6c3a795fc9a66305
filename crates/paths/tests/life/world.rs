//! A provider in virtual time, whose messages are lost, late, repeated and reordered.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ropewalk_paths::{
    Action, Answer, Binding, Entry, Goal, Id, Life, Limits, Notice, Order, Outcome, Owner, Phase, Request,
    State, Step,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A path at the provider.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub state: State,
    /// When an uncommitted hold is dropped.
    pub hold_ends: Option<Duration>,
    /// When the activated path is usable.
    pub comes_up: Option<Duration>,
    /// The next state of a provider without commits, and when it has that state.
    pub next: Option<(Duration, State)>,
    pub reference: String,
    /// The end of the reserved time: the provider then removes the path.
    pub ends: Duration,
    /// An extension that is not committed: its end, and when the provider drops it.
    pub held_end: Option<(Duration, Duration)>,
}

/// Misbehaviour of the network and of the provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub loss: u32,
    pub repeat: u32,
    pub longest_delay: u64,
    pub refusal: u32,
    pub never_up: bool,
    /// The provider is one as the NSI Aggregator Proxy: it commits by itself, no reservation ends
    /// by itself, and an active path is terminated only after a release.
    pub commits_itself: bool,
}

pub(crate) struct World {
    pub random: fastrand::Rng,
    pub faults: Faults,
    pub limits: Limits,
    pub now: Duration,
    pub paths: HashMap<Id, Path>,
    pub to_provider: Vec<(Duration, Order)>,
    pub to_client: Vec<(Duration, Answer)>,
    /// The journal.
    pub disk: HashMap<Id, Entry>,
    pub activations_asked: bool,
    /// The end of the path, as the program knows it.
    pub known_end: Duration,
    /// Holds that a provider without leases has refused.
    pub refused_holds: HashSet<Id>,
}

/// The events of one process.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub up: bool,
    pub over: bool,
    pub crashed: bool,
    pub left: bool,
    pub extensions: u32,
    /// Extensions that the program reports as refused.
    pub refused: u32,
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            faults,
            limits: Limits::default(),
            now: Duration::from_secs(1_800_000_000),
            paths: HashMap::new(),
            to_provider: Vec::new(),
            to_client: Vec::new(),
            disk: HashMap::new(),
            activations_asked: false,
            known_end: Duration::MAX,
            refused_holds: HashSet::new(),
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.u32(0..100) < percent
    }

    /// When each copy of a message arrives.
    fn arrivals(&mut self) -> Vec<Duration> {
        let copies = if self.chance(self.faults.repeat) { 2 } else { 1 };
        let mut times = Vec::new();
        for _ in 0..copies {
            let delay = Duration::from_millis(self.random.u64(1..=self.faults.longest_delay * 1000));
            if !self.chance(self.faults.loss) {
                times.push(self.now + delay);
            }
        }
        times
    }

    fn send(&mut self, order: &Order) {
        let recorded = self.disk.get(&order.id).expect("a request has an entry in the journal");
        assert_ne!(recorded.phase, Phase::New, "the entry shows the request: {order:?}");
        self.activations_asked |= order.step == Step::Activate;
        for at in self.arrivals() {
            self.to_provider.push((at, order.clone()));
        }
    }

    fn reply(&mut self, order: &Order, outcome: Outcome) {
        let reference = self.paths.get(&order.id).map(|path| path.reference.clone());
        let answer = Answer { id: order.id.clone(), number: Some(order.number), reference, outcome };
        for at in self.arrivals() {
            self.to_client.push((at, answer.clone()));
        }
    }

    /// The provider's own rules: holds end, activated paths come up, and all end with their time.
    fn provider_passes_time(&mut self) {
        for path in self.paths.values_mut() {
            if path.hold_ends.is_some_and(|at| self.now >= at) {
                (path.state, path.hold_ends) = (State::Gone, None);
            }
            path.held_end = path.held_end.filter(|(_, dropped)| self.now < *dropped);
            if self.now >= path.ends {
                (path.state, path.hold_ends, path.next) = (State::Gone, None, None);
            }
            if let Some((_, state)) = path.next.take_if(|(at, _)| self.now >= *at) {
                path.state = state;
            }
            if path.comes_up.is_some_and(|at| self.now >= at) && path.state == State::Activated {
                path.state = State::Up(Binding { capacity: Some(7), ..Binding::default() });
            }
        }
    }

    fn provider_gets(&mut self, order: &Order) {
        let refused =
            self.chance(self.faults.refusal) && order.step != Step::Terminate && order.step != Step::Query;
        // A provider without leases gives all copies of a hold the same answer.
        let refused = match order.step {
            Step::Hold if self.faults.commits_itself && self.paths.contains_key(&order.id) => false,
            Step::Hold => refused || self.refused_holds.contains(&order.id),
            _ => refused,
        };
        if refused {
            if order.step == Step::Hold && self.faults.commits_itself {
                self.refused_holds.insert(order.id.clone());
            }
            return self.reply(order, Outcome::Refused("no".to_owned()));
        }
        if self.faults.commits_itself {
            return self.linear_provider_gets(order);
        }
        let comes_up = (!self.faults.never_up).then(|| self.now + SECOND * self.random.u32(0..60));
        let hold_ends = self.now + self.limits.hold;
        if let Some(path) = self.paths.get_mut(&order.id)
            && let Some(outcome) = extension(path, order, hold_ends)
        {
            return self.reply(order, outcome);
        }
        let ends = order.request.until;
        match (order.step, self.paths.get_mut(&order.id)) {
            // A repeated request is recognised by its number.
            (Step::Hold, None) => {
                let reference = format!("path-{}", self.random.u32(..));
                let (state, hold_ends) = (State::Held, Some(hold_ends));
                let (comes_up, next, held_end) = (None, None, None);
                let path = Path { state, hold_ends, comes_up, next, reference, ends, held_end };
                self.paths.insert(order.id.clone(), path);
            }
            (_, None) => return self.reply(order, Outcome::State(State::Gone)),
            (Step::Commit, Some(path)) if path.state == State::Held => {
                (path.state, path.hold_ends) = (State::Reserved, None);
            }
            (Step::Activate, Some(path)) if path.state == State::Reserved => {
                (path.state, path.comes_up) = (State::Activated, comes_up);
            }
            (Step::Release, Some(path)) if matches!(path.state, State::Activated | State::Up(_)) => {
                path.state = State::Reserved;
            }
            (Step::Abort, Some(path)) if path.state == State::Held => {
                (path.state, path.hold_ends) = (State::Gone, None);
            }
            (Step::Terminate, Some(path)) => (path.state, path.hold_ends) = (State::Gone, None),
            _ => {}
        }
        let state = self.paths[&order.id].state.clone();
        self.reply(order, Outcome::State(state));
    }

    /// The provider without commits, with the answers that its requester makes of them.
    fn linear_provider_gets(&mut self, order: &Order) {
        let soon = self.now + SECOND * self.random.u32(0..60);
        let (never_up, much_later) = (self.faults.never_up, self.now + SECOND * 200);
        match (order.step, self.paths.get_mut(&order.id)) {
            (Step::Hold, None) => {
                let (reference, next) =
                    (format!("path-{}", self.random.u32(..)), Some((soon, State::Reserved)));
                let (state, hold_ends, comes_up, held_end) = (State::Checking, None, None, None);
                // Its reservations do not end by themselves.
                let ends = Duration::MAX;
                let path = Path { state, hold_ends, comes_up, next, reference, ends, held_end };
                self.paths.insert(order.id.clone(), path);
            }
            (_, None) => return self.reply(order, Outcome::State(State::Gone)),
            (Step::Activate, Some(path)) if path.state == State::Reserved => {
                path.state = State::Activated;
                match never_up {
                    true => path.next = Some((much_later, State::Failed("not up".to_owned()))),
                    false => path.comes_up = Some(soon),
                }
            }
            (Step::Release, Some(path)) if matches!(path.state, State::Up(_)) => path.state = State::Reserved,
            (Step::Abort, Some(_)) => return self.reply(order, Outcome::State(State::Reserved)),
            (Step::Terminate, Some(path)) => {
                match path.state {
                    State::Up(_) => path.state = State::Reserved,
                    State::Reserved | State::Failed(_) => path.state = State::Gone,
                    State::Gone => return self.reply(order, Outcome::State(State::Gone)),
                    _ => {}
                }
                return self.reply(order, Outcome::Accepted);
            }
            _ => {}
        }
        let state = self.paths[&order.id].state.clone();
        self.reply(order, Outcome::State(state));
    }

    fn extended(&mut self, id: &Id, until: Duration) {
        let path = &self.paths[id];
        assert!(path.state == State::Gone || path.ends >= until, "the provider has extended it: {path:?}");
        assert!(until > self.known_end || self.known_end == Duration::MAX);
        self.known_end = until;
    }

    /// Runs a process until it is over, crashes after so many actions, or so much time has passed.
    pub(crate) fn run(
        &mut self,
        life: &mut Life,
        mut actions_left: u32,
        until: Duration,
        ends_at: Duration,
    ) -> Run {
        let mut run = Run::default();
        let mut asked_to_end = false;
        loop {
            while let Some(action) = life.poll() {
                if actions_left == 0 {
                    run.crashed = true;
                    self.to_client.clear();
                    return run;
                }
                actions_left -= 1;
                match action {
                    Action::Record(entry) if entry.phase == Phase::Ended => drop(self.disk.remove(&entry.id)),
                    Action::Record(entry) => drop(self.disk.insert(entry.id.clone(), entry)),
                    Action::Send(order) => self.send(&order),
                    Action::Notice(Notice::Up(binding)) => {
                        assert_eq!(binding.capacity, Some(7), "the binding is the provider's");
                        assert!(self.activations_asked, "a path is up only after it was activated");
                        run.up = true;
                    }
                    Action::Notice(Notice::Extended(until)) => {
                        run.extensions += 1;
                        let id = life.entry().id.clone();
                        self.extended(&id, until);
                    }
                    Action::Notice(Notice::NotExtended(_)) => run.refused += 1,
                    Action::Notice(Notice::Down(_) | Notice::Failed(_)) => run.up = false,
                    Action::Notice(Notice::Left) => run.left = true,
                    Action::Notice(_) => {}
                }
            }
            run.over = life.is_over();
            // A path is not in use after the end that the program knows.
            assert!(!run.up || asked_to_end || self.now < life.entry().request.until + SECOND, "{life:?}");
            if run.over || self.now >= until {
                return run;
            }
            if self.now >= ends_at && !asked_to_end {
                asked_to_end = true;
                life.set_goal(Goal::End, self.now);
                continue;
            }
            let next = [life.timeout(), (!asked_to_end).then_some(ends_at)];
            let arrivals =
                self.to_provider.iter().map(|(at, _)| *at).chain(self.to_client.iter().map(|(at, _)| *at));
            let next = arrivals.chain(next.into_iter().flatten()).min().unwrap_or(until);
            self.now = self.now.max(next).min(until);
            self.deliver();
            for answer in self.due() {
                life.answer(&answer, self.now);
            }
            life.tick(self.now);
        }
    }

    fn deliver(&mut self) {
        self.provider_passes_time();
        let (due, later) =
            std::mem::take(&mut self.to_provider).into_iter().partition(|(at, _)| *at <= self.now);
        self.to_provider = later;
        let due: Vec<(Duration, Order)> = due;
        for (_, order) in due {
            self.provider_gets(&order);
        }
    }

    fn due(&mut self) -> Vec<Answer> {
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.to_client).into_iter().partition(|(at, _)| *at <= self.now);
        self.to_client = later;
        due.into_iter().map(|(_, answer)| answer).collect()
    }

    /// No process runs for a while.
    pub(crate) fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.to_provider.iter().map(|(at, _)| *at).min().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.deliver();
        }
        self.now = until;
        self.deliver();
        self.to_client.clear();
    }

    pub(crate) fn living(&self) -> Vec<&Id> {
        let lives = |path: &&Path| path.state != State::Gone;
        self.paths.iter().filter(|(_, path)| lives(path)).map(|(id, _)| id).collect()
    }
}

pub(crate) fn entry(now: Duration, owner: Owner) -> Entry {
    let request =
        Request { from: None, until: now + SECOND * 3600, capacity: Some(7), description: String::new() };
    Entry::new("test".to_owned(), owner, request)
}

/// The answer of a provider to an order about an extension; `None`: the order is about another
/// matter.
fn extension(path: &mut Path, order: &Order, drops: Duration) -> Option<Outcome> {
    let in_use = matches!(path.state, State::Activated | State::Up(_));
    let state = match (order.step, path.held_end) {
        (Step::Extend, None) if in_use => {
            path.held_end = Some((order.request.until, drops));
            State::Held
        }
        // A repeated request is recognised by its version.
        (Step::Extend, Some((end, _))) if end == order.request.until => State::Held,
        (Step::Extend, _) => return Some(Outcome::Refused("no extension".to_owned())),
        (Step::Commit, Some((end, _))) if end == order.request.until => {
            (path.ends, path.held_end) = (end, None);
            State::Reserved
        }
        (Step::Abort, Some(_)) => {
            path.held_end = None;
            State::Reserved
        }
        (Step::QueryExtension, Some(_)) => State::Held,
        (Step::QueryExtension, None) if path.ends == order.request.until => State::Reserved,
        (Step::QueryExtension, None) => State::Gone,
        // A commit of the extension that was carried out or dropped before.
        (Step::Commit, None) if in_use && path.ends == order.request.until => State::Reserved,
        (Step::Commit, None) if in_use => return Some(Outcome::Refused("nothing is held".to_owned())),
        _ => return None,
    };
    Some(Outcome::State(state))
}
