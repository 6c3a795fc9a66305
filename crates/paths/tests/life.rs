//! The life of a reservation against a provider in virtual time, whose messages are lost, late,
//! repeated and reordered, with crashes at any step.

#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use ropewalk_paths::{
    Action, Answer, Binding, Entry, Goal, Id, Life, Limits, Notice, Order, Outcome, Owner, Phase, Request,
    State, Step,
};

const SECOND: Duration = Duration::from_secs(1);

/// A path at the provider.
#[derive(Clone, Debug)]
struct Path {
    state: State,
    /// When an uncommitted hold is dropped.
    hold_ends: Option<Duration>,
    /// When the activated path is usable.
    comes_up: Option<Duration>,
    /// The next state of a provider without commits, and when it has that state.
    next: Option<(Duration, State)>,
    reference: String,
}

/// Misbehaviour of the network and of the provider.
#[derive(Clone, Copy, Debug)]
struct Faults {
    loss: u32,
    repeat: u32,
    longest_delay: u64,
    refusal: u32,
    never_up: bool,
    /// The provider is one as the NSI Aggregator Proxy: it commits by itself, no reservation ends
    /// by itself, and an active path is terminated only after a release.
    commits_itself: bool,
}

struct World {
    random: fastrand::Rng,
    faults: Faults,
    limits: Limits,
    now: Duration,
    paths: HashMap<Id, Path>,
    to_provider: Vec<(Duration, Order)>,
    to_client: Vec<(Duration, Answer)>,
    /// The journal.
    disk: HashMap<Id, Entry>,
    activations_asked: bool,
    /// Holds that a provider without leases has refused.
    refused_holds: HashSet<Id>,
}

/// The events of one process.
#[derive(Debug, Default)]
struct Run {
    up: bool,
    over: bool,
    crashed: bool,
    left: bool,
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
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
        match (order.step, self.paths.get_mut(&order.id)) {
            // A repeated request is recognised by its number.
            (Step::Hold, None) => {
                let reference = format!("path-{}", self.random.u32(..));
                let (state, hold_ends) = (State::Held, Some(hold_ends));
                let path = Path { state, hold_ends, comes_up: None, next: None, reference };
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
                let path = Path { state: State::Checking, hold_ends: None, comes_up: None, next, reference };
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

    /// Runs a process until it is over, crashes after so many actions, or so much time has passed.
    fn run(&mut self, life: &mut Life, mut actions_left: u32, until: Duration, ends_at: Duration) -> Run {
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
                    Action::Notice(Notice::Down(_) | Notice::Failed(_)) => run.up = false,
                    Action::Notice(Notice::Left) => run.left = true,
                    Action::Notice(_) => {}
                }
            }
            run.over = life.is_over();
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
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.to_provider.iter().map(|(at, _)| *at).min().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.deliver();
        }
        self.now = until;
        self.deliver();
        self.to_client.clear();
    }

    fn living(&self) -> Vec<&Id> {
        let lives = |path: &&Path| path.state != State::Gone;
        self.paths.iter().filter(|(_, path)| lives(path)).map(|(id, _)| id).collect()
    }
}

fn entry(now: Duration, owner: Owner) -> Entry {
    let request =
        Request { from: None, until: now + SECOND * 3600, capacity: Some(7), description: String::new() };
    Entry::new("test".to_owned(), owner, request)
}

fn faults() -> impl Strategy<Value = Faults> {
    let never_up = prop::bool::weighted(0.2);
    (0..40u32, 0..40u32, 1..20u64, 0..15u32, never_up, any::<bool>()).prop_map(
        |(loss, repeat, longest_delay, refusal, never_up, commits_itself)| Faults {
            loss,
            repeat,
            longest_delay,
            refusal,
            never_up,
            commits_itself,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// After any crash, the next processes remove every path. Each of them may crash as well.
    #[test]
    fn path_without_a_process_is_removed_after_its_lease(
        seed: u64, faults in faults(), crashes in prop::collection::vec(0..30u32, 0..4), use_for in 0..600u32,
    ) {
        let mut world = World::new(seed, faults);
        let entry = entry(world.now, Owner::Transfer);
        let mut life = Life::new(entry, world.limits, Goal::Up, world.now);
        let mut crashes = crashes.into_iter();
        let ends_at = world.now + SECOND * use_for;
        let limit = world.now + SECOND * 3000;
        let run = world.run(&mut life, crashes.next().unwrap_or(u32::MAX), limit, ends_at);
        prop_assert!(run.over || run.crashed, "a process with a goal ends: {:?}", life);
        // A hold that no entry knows ends by itself; everything else is in the journal.
        for id in world.living() {
            prop_assert!(world.disk.contains_key(id) || world.paths[id].hold_ends.is_some());
        }
        let mut rounds = 0;
        while !world.disk.is_empty() {
            rounds += 1;
            prop_assert!(rounds < 200, "every entry is removed in the end");
            world.wait(world.limits.hold);
            for entry in world.disk.values().cloned().collect::<Vec<_>>() {
                let mut life = Life::recover(entry, world.limits, Goal::End, world.now);
                let limit = world.now + SECOND * 3000;
                let run = world.run(&mut life, crashes.next().unwrap_or(u32::MAX), limit, world.now);
                prop_assert!(!run.up);
                prop_assert!(run.over || run.crashed);
            }
        }
        world.wait(world.limits.hold + SECOND * 40);
        prop_assert!(world.living().is_empty(), "{:?}", world.paths);
    }

    /// Without faults, the path is up within the provider's own time, and is gone at the end.
    #[test]
    fn path_comes_up_if_nothing_fails(seed: u64, commits_itself: bool) {
        let faults =
            Faults { loss: 0, repeat: 0, longest_delay: 1, refusal: 0, never_up: false, commits_itself };
        let mut world = World::new(seed, faults);
        let mut life = Life::new(entry(world.now, Owner::Transfer), world.limits, Goal::Up, world.now);
        let later = world.now + SECOND * 150;
        let run = world.run(&mut life, u32::MAX, later, later + SECOND);
        prop_assert!(run.up && !run.over);
        life.set_goal(Goal::End, world.now);
        let run = world.run(&mut life, u32::MAX, later + SECOND * 100, later);
        prop_assert!(run.over && !run.left && world.living().is_empty() && world.disk.is_empty());
    }
}

/// A life up to its first order.
fn begun(from: Option<u64>) -> (Life, Duration) {
    let now = Duration::from_secs(1_800_000_000);
    let mut entry = entry(now, Owner::Person);
    entry.request.from = from.map(|seconds| now + SECOND * seconds as u32);
    (Life::new(entry, Limits::default(), Goal::Up, now), now)
}

fn orders(life: &mut Life) -> Vec<Order> {
    let actions: Vec<Action> = std::iter::from_fn(|| life.poll()).collect();
    actions
        .into_iter()
        .filter_map(|action| if let Action::Send(order) = action { Some(order) } else { None })
        .collect()
}

fn answer(life: &mut Life, number: Option<u64>, state: State, now: Duration) {
    let (id, reference) = (life.entry().id.clone(), Some("path-1".to_owned()));
    life.answer(&Answer { id, number, reference, outcome: Outcome::State(state) }, now);
}

/// Brings the life to the activation. Returns the number of that order.
fn activating(life: &mut Life, now: Duration) -> u64 {
    let hold = orders(life)[0].number;
    answer(life, Some(hold), State::Held, now);
    let commit = orders(life)[0].number;
    answer(life, Some(commit), State::Reserved, now);
    let activate = orders(life);
    assert_eq!(activate[0].step, Step::Activate);
    activate[0].number
}

#[test]
fn answer_of_another_reservation_changes_nothing() {
    let (mut life, now) = begun(None);
    let hold = orders(&mut life)[0].number;
    let foreign = Answer {
        id: Id::random(),
        number: Some(hold),
        reference: Some("foreign".to_owned()),
        outcome: Outcome::State(State::Held),
    };
    life.answer(&foreign, now);
    assert_eq!(life.entry().reference, None);
    assert!(life.poll().is_none());
}

#[test]
fn notification_is_not_believed_but_causes_a_query() {
    let (mut life, now) = begun(None);
    activating(&mut life, now);
    let now = now + SECOND * 2;
    answer(&mut life, None, State::Up(Binding::default()), now);
    assert_ne!(life.entry().phase, Phase::Up);
    let query = orders(&mut life);
    assert_eq!(query[0].step, Step::Query);
    answer(&mut life, Some(query[0].number), State::Up(Binding::default()), now);
    assert_eq!(life.entry().phase, Phase::Up);
}

#[test]
fn answer_from_before_the_activation_does_not_make_a_path_up() {
    let (mut life, now) = begun(None);
    let activate = activating(&mut life, now);
    for number in 1..activate {
        answer(&mut life, Some(number), State::Up(Binding::default()), now);
    }
    assert_eq!(life.entry().phase, Phase::Activating);
}

#[test]
fn path_is_activated_when_its_time_begins_and_not_before() {
    let (mut life, now) = begun(Some(600));
    let hold = orders(&mut life)[0].number;
    answer(&mut life, Some(hold), State::Held, now);
    let commit = orders(&mut life)[0].number;
    answer(&mut life, Some(commit), State::Reserved, now);
    assert_eq!(orders(&mut life), []);
    assert_eq!(life.timeout(), Some(now + SECOND * 600));
    life.tick(now + SECOND * 599);
    assert_eq!(orders(&mut life), []);
    life.tick(now + SECOND * 600);
    assert_eq!(orders(&mut life)[0].step, Step::Activate);
}

#[test]
fn path_whose_time_is_over_is_reported_down_and_removed() {
    let (mut life, now) = begun(None);
    let activate = activating(&mut life, now);
    answer(&mut life, Some(activate), State::Up(Binding::default()), now);
    while life.poll().is_some() {}
    life.tick(now + SECOND * 3600);
    let actions: Vec<Action> = std::iter::from_fn(|| life.poll()).collect();
    let down =
        |action: &Action| matches!(action, Action::Notice(Notice::Down(why)) if why.contains("time is over"));
    assert!(actions.iter().any(down), "{actions:?}");
    let release = |action: &Action| matches!(action, Action::Send(order) if order.step == Step::Release);
    assert!(actions.iter().any(release), "{actions:?}");
}

#[test]
fn reserved_path_is_adopted_and_any_other_is_removed() {
    let now = Duration::from_secs(1_800_000_000);
    let mut entry = entry(now, Owner::Transfer);
    (entry.reference, entry.phase) = (Some("path-1".to_owned()), Phase::Reserved);
    let mut adopted = Life::recover(entry.clone(), Limits::default(), Goal::Up, now);
    assert_eq!(orders(&mut adopted)[0].step, Step::Activate);
    for phase in [Phase::Committing, Phase::Activating, Phase::Up, Phase::Releasing, Phase::Aborting] {
        entry.phase = phase;
        let mut removed = Life::recover(entry.clone(), Limits::default(), Goal::Up, now);
        assert_eq!(orders(&mut removed)[0].step, Step::Terminate, "{phase}");
    }
    (entry.owner, entry.phase) = (Owner::Person, Phase::Up);
    let mut kept = Life::recover(entry.clone(), Limits::default(), Goal::Reserved, now);
    let release = orders(&mut kept);
    assert_eq!(release[0].step, Step::Release);
    answer(&mut kept, Some(release[0].number), State::Reserved, now);
    assert_eq!(kept.entry().phase, Phase::Reserved);
    entry.owner = Owner::Transfer;
    (entry.reference, entry.phase) = (None, Phase::Holding);
    let mut removed = Life::recover(entry, Limits::default(), Goal::Up, now);
    assert_eq!(orders(&mut removed)[0].step, Step::Query);
}

#[test]
fn request_without_a_record_is_not_sent() {
    let (mut life, now) = begun(None);
    assert!(matches!(life.poll(), Some(Action::Record(_))));
    life.unrecorded("no space".to_owned(), now);
    assert_eq!(orders(&mut life), []);
    assert!(life.is_over());
}
