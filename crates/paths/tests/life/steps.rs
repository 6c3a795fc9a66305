//! Single steps of a life.

use std::time::Duration;

use ropewalk_paths::{
    Action, Answer, Binding, Goal, Id, Life, Limits, Notice, Order, Outcome, Owner, Phase, State, Step,
};

use crate::extended_entry;
use crate::world::{SECOND, entry};

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
fn reserved_path_is_a_persons_only_from_the_record_of_that_on() {
    let now = Duration::from_secs(1_800_000_000);
    let mut life = Life::new(entry(now, Owner::Transfer), Limits::default(), Goal::Reserved, now);
    let hold = orders(&mut life)[0].number;
    answer(&mut life, Some(hold), State::Held, now);
    let commit = orders(&mut life)[0].number;
    answer(&mut life, Some(commit), State::Reserved, now);
    let recorded = |life: &mut Life| {
        let actions: Vec<Action> = std::iter::from_fn(|| life.poll()).collect();
        let record = |action| if let Action::Record(entry) = action { Some(entry) } else { None };
        actions.into_iter().rev().find_map(record)
    };
    let before = recorded(&mut life).unwrap();
    assert_eq!((before.phase, before.owner), (Phase::Reserved, Owner::Transfer));
    life.hand_over();
    let after = recorded(&mut life).unwrap();
    assert_eq!((after.phase, after.owner), (Phase::Reserved, Owner::Person));
}

#[test]
fn request_without_a_record_is_not_sent() {
    let (mut life, now) = begun(None);
    assert!(matches!(life.poll(), Some(Action::Record(_))));
    life.unrecorded("no space".to_owned(), now);
    assert_eq!(orders(&mut life), []);
    assert!(life.is_over());
}

/// Brings the life up. Drops its other actions.
fn up(life: &mut Life, now: Duration) {
    let activate = activating(life, now);
    answer(life, Some(activate), State::Up(Binding::default()), now);
    while life.poll().is_some() {}
}

#[test]
fn refused_extension_is_reported_once_and_the_path_is_used_until_its_end() {
    let now = Duration::from_secs(1_800_000_000);
    let mut life = Life::new(extended_entry(now, 1000), Limits::default(), Goal::Up, now);
    up(&mut life, now);
    // Hold and answer take 180 s at most.
    life.tick(now + SECOND * 819);
    assert!(orders(&mut life).iter().all(|order| order.step == Step::Query));
    let due = now + SECOND * 820;
    life.tick(due);
    let actions: Vec<Action> = std::iter::from_fn(|| life.poll()).collect();
    let Action::Record(recorded) = &actions[0] else { panic!("{actions:?}") };
    assert_eq!(recorded.extending, Some(now + SECOND * 2000));
    let Action::Send(extend) = &actions[1] else { panic!("{actions:?}") };
    assert_eq!((extend.step, extend.request.until), (Step::Extend, now + SECOND * 2000));
    let (id, reference) = (life.entry().id.clone(), Some("path-1".to_owned()));
    let outcome = Outcome::Refused("busy".to_owned());
    life.answer(&Answer { id, number: Some(extend.number), reference, outcome }, due);
    let actions: Vec<Action> = std::iter::from_fn(|| life.poll()).collect();
    assert!(actions.contains(&Action::Notice(Notice::NotExtended("busy".to_owned()))), "{actions:?}");
    assert_eq!((life.entry().phase, life.entry().extending), (Phase::Up, None));
    for second in 821..1000 {
        life.tick(now + SECOND * second);
        assert!(orders(&mut life).iter().all(|order| order.step == Step::Query), "it is not asked again");
    }
    life.tick(now + SECOND * 1000);
    assert_ne!(life.entry().phase, Phase::Up);
}

#[test]
fn extension_without_an_answer_is_dropped_at_the_provider() {
    let now = Duration::from_secs(1_800_000_000);
    let mut life = Life::new(extended_entry(now, 1000), Limits::default(), Goal::Up, now);
    up(&mut life, now);
    let mut steps = Vec::new();
    for second in 820..960 {
        life.tick(now + SECOND * second);
        let own =
            |step: &Step| matches!(step, Step::Extend | Step::QueryExtension | Step::Abort | Step::Commit);
        steps.extend(orders(&mut life).iter().map(|order| order.step).filter(own));
    }
    assert_eq!(steps.iter().filter(|step| **step == Step::Extend).count(), 1, "it is sent once: {steps:?}");
    assert_eq!((steps.last(), life.entry().phase), (Some(&Step::Abort), Phase::Up));
    assert!(steps.contains(&Step::QueryExtension));
}
