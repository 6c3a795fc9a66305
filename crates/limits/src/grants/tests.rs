#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};

use proptest::prelude::*;

use super::*;
use crate::division::{Division, FlowId, FlowSpec, LimitSpec};

/// Virtual time advances by this, in seconds.
const STEP: f64 = 0.005;

/// A front end with one division, its clock, and the flows of its users.
struct FrontEnd {
    division: RefCell<Division>,
    now: Cell<f64>,
}

impl FrontEnd {
    fn new() -> Self {
        Self { division: RefCell::default(), now: Cell::new(0.0) }
    }

    fn now(&self) -> Duration {
        Duration::from_secs_f64(self.now.get())
    }

    fn join(&self, user: &str, weight: u32, rate: Option<u64>) -> FlowId {
        let limits = vec![LimitSpec { name: "all".into(), rate }];
        let (group, user) = (user.to_owned(), user.to_owned());
        let spec = FlowSpec { group, group_weight: weight, user, user_weight: 1, limits, guarantee: None };
        self.division.borrow_mut().join(&spec, self.now())
    }
}

impl Purse for (&FrontEnd, FlowId) {
    fn share(&self) -> Option<u64> {
        self.0.division.borrow_mut().share(self.1, self.0.now())
    }

    fn charge(&self, bytes: u64) -> Option<Mark> {
        self.0.division.borrow_mut().charge(self.1, bytes, self.0.now())
    }

    fn due(&self, mark: Mark) -> Option<Duration> {
        let due = self.0.division.borrow_mut().due(mark, self.0.now())?;
        Some(due.saturating_sub(self.0.now()))
    }

    fn refund(&self, bytes: u64) {
        self.0.division.borrow_mut().refund(self.1, bytes, self.0.now());
    }
}

/// The way of messages: each takes a time, and may be lost or come twice.
struct Way<T> {
    under_way: Vec<(f64, T)>,
    seed: u64,
    /// In seconds.
    delay: f64,
    /// Of a hundred messages, so many are lost, and so many come a second time, later.
    lost: u64,
    twice: u64,
}

impl<T: Copy> Way<T> {
    fn new(delay: f64, lost: u64, twice: u64, seed: u64) -> Self {
        Self { under_way: Vec::new(), seed, delay, lost, twice }
    }

    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % 100
    }

    fn send(&mut self, now: f64, message: T) {
        if self.random() >= self.lost {
            self.under_way.push((now + self.delay, message));
        }
        if self.random() < self.twice {
            let late = self.random() as f64 * 0.01;
            self.under_way.push((now + self.delay + late, message));
        }
    }

    fn arrived(&mut self, now: f64) -> Vec<T> {
        let (arrived, under_way) = self.under_way.iter().partition(|(at, _)| *at <= now);
        self.under_way = under_way;
        arrived.into_iter().map(|(_, message): (f64, T)| message).collect()
    }
}

/// A node with one transfer, and its account at the front end.
struct Node {
    flow: FlowId,
    account: Account,
    allowance: Allowance,
    grants: Way<Grant>,
    reports: Way<Spent>,
    /// The rate of its own network, in bytes per second.
    capacity: f64,
    moved: u64,
    alive: bool,
    looked: f64,
}

impl Node {
    fn new(front_end: &FrontEnd, flow: FlowId, capacity: f64) -> Self {
        let (mut account, mut allowance) = (Account::new(), Allowance::new());
        allowance.grant(&account.begin(&(front_end, flow)));
        Self {
            flow,
            account,
            allowance,
            grants: Way::new(0.001, 0, 0, 1),
            reports: Way::new(0.001, 0, 0, 2),
            capacity,
            moved: 0,
            alive: true,
            looked: 0.0,
        }
    }

    fn over(mut self, delay: f64, lost: u64, twice: u64, seed: u64) -> Self {
        self.grants = Way::new(delay, lost, twice, seed);
        self.reports = Way::new(delay, lost, twice, !seed);
        self
    }

    fn step(&mut self, front_end: &FrontEnd) {
        if !self.alive {
            return;
        }
        let now = front_end.now.get();
        let purse = (front_end, self.flow);
        for report in self.reports.arrived(now) {
            self.account.report(&report, &purse);
        }
        if let (Some(grant), _) = self.account.settle(&purse) {
            self.grants.send(now, grant);
        }
        for grant in self.grants.arrived(now) {
            self.allowance.grant(&grant);
        }
        let mut left = (self.capacity * STEP) as u64;
        while left > 0
            && let Some(taken) = self.allowance.take(left)
        {
            // A peer that takes less than it could.
            let moved = taken - taken / 3;
            self.allowance.moved(taken, moved);
            self.moved += moved;
            left -= taken;
            if let Some(total) = self.allowance.total {
                assert!(self.allowance.spent <= total, "it has moved more than it was granted");
            }
        }
        if let Some(report) = self.allowance.report() {
            self.reports.send(now, report);
        }
        if now - self.looked >= 0.2 {
            self.looked = now;
            if let Some(report) = self.allowance.look() {
                self.reports.send(now, report);
            }
        }
    }
}

/// Runs until `end`, and checks at all times that the limit holds for all nodes together.
fn run(front_end: &FrontEnd, nodes: &mut [Node], rate: Option<u64>, end: f64) {
    let (began, before) = (front_end.now.get(), nodes.iter().map(|node| node.moved).sum::<u64>());
    while front_end.now.get() < end {
        front_end.now.set(front_end.now.get() + STEP);
        for node in &mut *nodes {
            node.step(front_end);
        }
        if let Some(rate) = rate {
            let moved = nodes.iter().map(|node| node.moved).sum::<u64>() - before;
            // The limit saves bytes, and nodes hold grants at the beginning of this run.
            let most = rate as f64 * (front_end.now.get() - began + 0.1 + 0.3);
            assert!(moved as f64 <= most, "{moved} bytes, at most {most}");
        }
    }
}

fn moved(nodes: &[Node]) -> Vec<f64> {
    nodes.iter().map(|node| node.moved as f64).collect()
}

#[test]
fn nodes_that_take_everything_use_the_limit_and_divide_it_by_weights() {
    for delay in [0.0, 0.001, 0.02] {
        let front_end = FrontEnd::new();
        let rate = 10_000_000;
        let mut nodes = [("ada", 1), ("bob", 3)].map(|(user, weight)| {
            let flow = front_end.join(user, weight, Some(rate));
            Node::new(&front_end, flow, 1e9).over(delay, 0, 0, 7)
        });
        run(&front_end, &mut nodes, Some(rate), 10.0);
        let moved = moved(&nodes);
        let sum = moved.iter().sum::<f64>();
        assert!((0.97e8..1.02e8).contains(&sum), "{sum} over ways of {delay} s");
        assert!((2.8..3.2).contains(&(moved[1] / moved[0])), "{moved:?}");
    }
}

#[test]
fn share_that_a_slow_node_leaves_goes_to_the_other() {
    let front_end = FrontEnd::new();
    let rate = 10_000_000;
    let mut nodes = [1e6, 1e9].map(|capacity| {
        let flow = front_end.join(&capacity.to_string(), 1, Some(rate));
        Node::new(&front_end, flow, capacity)
    });
    run(&front_end, &mut nodes, Some(rate), 10.0);
    let moved = moved(&nodes);
    assert!(moved[1] > 8.5e7 + (1e6 * 10.0 - moved[0]), "{moved:?}");
}

#[test]
fn node_that_dies_gives_what_it_was_not_granted_to_the_other() {
    let front_end = FrontEnd::new();
    let rate = 10_000_000;
    // Both transfers are of one user, who owes for both.
    let mut nodes = [(); 2].map(|()| Node::new(&front_end, front_end.join("ada", 1, Some(rate)), 1e9));
    run(&front_end, &mut nodes, Some(rate), 2.0);
    nodes[0].alive = false;
    let flow = nodes[0].flow;
    nodes[0].account.close(&(&front_end, flow));
    front_end.division.borrow_mut().leave(flow, front_end.now());
    let before = nodes[1].moved;
    run(&front_end, &mut nodes, Some(rate), 4.0);
    let moved = (nodes[1].moved - before) as f64;
    assert!(moved > 1.9e7, "{moved} bytes in 2 s");
    assert!(nodes[0].account.pending.is_empty() && nodes[0].account.charged == nodes[0].account.granted);
}

#[test]
fn transfer_that_ends_or_stalls_returns_what_it_has_not_used() {
    let front_end = FrontEnd::new();
    let rate = 10_000_000;
    let mut nodes = [Node::new(&front_end, front_end.join("ada", 1, Some(rate)), 1e9)];
    run(&front_end, &mut nodes, Some(rate), 1.0);
    // The peer reads no more.
    nodes[0].capacity = 0.0;
    run(&front_end, &mut nodes, Some(rate), 3.0);
    let node = &mut nodes[0];
    assert_eq!(node.allowance.left(), Some(0));
    assert!(node.allowance.returned > 0 && node.account.returned == node.allowance.returned);
    assert_eq!((node.account.granted, node.account.wants), (node.account.spent, false));
    // It continues, and ends at once.
    node.capacity = 1e9;
    let before = node.moved;
    run(&front_end, &mut nodes, Some(rate), 5.0);
    assert!(nodes[0].moved - before > 19_000_000);
    nodes[0].capacity = 0.0;
    let report = nodes[0].allowance.end().unwrap();
    assert_eq!((report.wants, nodes[0].allowance.left()), (false, Some(0)));
    assert_eq!(nodes[0].allowance.end(), None);
    assert_eq!(nodes[0].allowance.report(), None);
}

#[test]
fn limit_that_is_changed_or_lifted_holds_for_a_running_node() {
    let front_end = FrontEnd::new();
    let mut nodes = [Node::new(&front_end, front_end.join("ada", 1, None), 1e8)];
    run(&front_end, &mut nodes, None, 1.0);
    assert!(nodes[0].moved > 60_000_000, "{}", nodes[0].moved);
    let mut set = |rate: Option<u64>, until: f64| {
        front_end.division.borrow_mut().set_rate("all", rate, front_end.now());
        let before = nodes[0].moved;
        run(&front_end, &mut nodes, rate, until);
        (nodes[0].moved - before) as f64
    };
    // The bytes that were moved before are not to be paid.
    let slow = set(Some(1_000_000), 3.0);
    assert!((1.8e6..2.5e6).contains(&slow), "{slow}");
    let faster = set(Some(10_000_000), 5.0);
    assert!((1.8e7..2.3e7).contains(&faster), "{faster}");
    assert!(set(None, 6.0) > 6e7);
    let slow = set(Some(1_000_000), 8.0);
    assert!((1.8e6..2.5e6).contains(&slow), "{slow}");
}

#[test]
fn late_grant_of_a_limit_that_was_lifted_changes_nothing() {
    let mut allowance = Allowance::new();
    let grant = |epoch, total| Grant { epoch, total, window: 1000 };
    allowance.grant(&grant(0, Some(1000)));
    allowance.grant(&grant(0, Some(500)));
    assert_eq!(allowance.left(), Some(1000));
    allowance.grant(&grant(1, None));
    allowance.grant(&grant(0, Some(2000)));
    assert!(!allowance.is_limited());
    allowance.grant(&grant(2, Some(0)));
    assert_eq!(allowance.take(10), None);
    assert!(allowance.report().unwrap().wants);
    assert_eq!(allowance.report(), None);
}

#[test]
fn bytes_that_were_read_ahead_of_a_grant_are_paid_later() {
    let front_end = FrontEnd::new();
    let flow = front_end.join("ada", 1, Some(1_000_000));
    let purse = (&front_end, flow);
    let (mut account, mut allowance) = (Account::new(), Allowance::new());
    assert_eq!(allowance.take(1), None);
    account.report(&allowance.report().unwrap(), &purse);
    front_end.now.set(10.0);
    let (grant, _) = account.settle(&purse);
    allowance.grant(&grant.unwrap());
    let taken = allowance.take(100).unwrap();
    allowance.moved(taken, 5_000_000);
    account.report(&allowance.report().unwrap(), &purse);
    let (grant, next) = account.settle(&purse);
    assert!(grant.is_none_or(|grant| grant.total.unwrap() < 5_000_000), "{grant:?}");
    assert!(next.is_some());
    account.report(&allowance.end().unwrap(), &purse);
    assert_eq!(account.charged, account.spent);
}

#[test]
fn report_of_nonsense_ends_in_a_debt_and_nothing_else() {
    let front_end = FrontEnd::new();
    let purse = (&front_end, front_end.join("ada", 1, Some(1_000_000)));
    let mut account = Account::new();
    account.begin(&purse);
    for spent in [u64::MAX, 0, u64::MAX - 1] {
        account.report(&Spent { epoch: 0, known: spent, spent, returned: spent, wants: true }, &purse);
        let (grant, _) = account.settle(&purse);
        assert!(grant.is_none_or(|grant| grant.total < Some(1 << 20)), "{grant:?}");
    }
    account.close(&purse);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn limit_holds_however_messages_come(
        count in 1_usize..5,
        delay in 0.0..0.05_f64,
        lost in prop_oneof![Just(0_u64), 1_u64..40],
        twice in 0_u64..60,
        seed: u64,
        rate in 100_000_u64..100_000_000,
    ) {
        let front_end = FrontEnd::new();
        let mut nodes: Vec<_> = (0..count)
            .map(|at| {
                let flow = front_end.join(&format!("{}", at % 2), 1 + at as u32 % 2, Some(rate));
                let seed = seed.wrapping_add(at as u64);
                Node::new(&front_end, flow, rate as f64 * 3.0).over(delay, lost, twice, seed)
            })
            .collect();
        run(&front_end, &mut nodes, Some(rate), 4.0);
        let moved: f64 = moved(&nodes).iter().sum();
        // A message that is lost is repeated after 200 ms.
        let least = rate as f64 * 4.0 * if lost == 0 { 0.9 } else { 0.15 };
        prop_assert!(moved > least, "{} of {}", moved, rate * 4);
    }
}
