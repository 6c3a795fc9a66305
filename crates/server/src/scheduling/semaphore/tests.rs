use std::ops::Deref;

use super::*;

const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

/// Permits without reservations.
struct Addressed<T>(FairSemaphore<T>);

impl<T> Deref for Addressed<T> {
    type Target = FairSemaphore<T>;

    fn deref(&self) -> &FairSemaphore<T> {
        &self.0
    }
}

impl<T> Addressed<T> {
    fn new(most: usize) -> Self {
        Self(FairSemaphore::new(most))
    }

    fn try_acquire(&self, address: IpAddr) -> bool {
        self.0.try_acquire(&claim(address, None)).is_some()
    }

    fn wait(&self, address: IpAddr, one: T) -> Option<T> {
        self.0.wait(&claim(address, None), one).map(|granted| granted.one)
    }

    fn wait_again(&self, address: IpAddr, one: T) -> Option<T> {
        self.0.wait_again(&claim(address, None), one).map(|granted| granted.one)
    }

    fn admit(&self) -> Vec<T> {
        self.0.admit().into_iter().map(|granted| granted.one).collect()
    }

    fn release(&self, address: IpAddr) -> Option<T> {
        self.0.release(&Holder::Address(address)).map(|granted| granted.one)
    }

    fn make_way(&self, address: IpAddr, rate: u64) -> Slow<T> {
        self.0.make_way(address, &Holder::Address(address), rate)
    }

    fn regain(&self, one: &Arc<Yielded>) -> bool {
        self.0.regain(one).is_some()
    }
}

fn claim(address: IpAddr, reservation: Option<&str>) -> Claim {
    Claim { address, reservation: reservation.map(Into::into) }
}

fn reserved(token: &str) -> Holder {
    Holder::Reservation(token.into())
}

fn slots<const N: usize>(slots: [(&str, usize); N]) -> HashMap<Arc<str>, usize> {
    slots.into_iter().map(|(token, slots)| (token.into(), slots)).collect()
}

fn ones<T>(granted: impl IntoIterator<Item = Granted<T>>) -> Vec<(T, Holder)> {
    granted.into_iter().map(|granted| (granted.one, granted.holder)).collect()
}

#[test]
fn reservation_gets_its_permits_at_once_while_others_wait() {
    let permits = FairSemaphore::new(4);
    assert!(permits.set_reserved(slots([("r", 2)])).is_empty());
    let other = claim(OTHER, None);
    assert!(permits.try_acquire(&other).is_some() && permits.try_acquire(&other).is_some());
    assert_eq!(permits.try_acquire(&other), None);
    assert!(permits.wait(&other, 'a').is_none());
    for _ in 0..2 {
        assert_eq!(permits.try_acquire(&claim(ONE, Some("r"))), Some(reserved("r")));
    }
    // The third waits as any other, and a token that is not in force means nothing.
    assert_eq!(permits.try_acquire(&claim(ONE, Some("r"))), None);
    assert_eq!(permits.try_acquire(&claim(ONE, Some("s"))), None);
    assert!(permits.wait(&claim(ONE, Some("r")), 'b').is_none());
    // A permit of the reservation is for its own only, although another has waited longer.
    assert_eq!(ones(permits.release(&reserved("r"))), [('b', reserved("r"))]);
    assert!(permits.release(&reserved("r")).is_none());
    assert_eq!(ones(permits.release(&Holder::Address(OTHER))), [('a', Holder::Address(OTHER))]);
    assert_eq!(permits.counts(), (3, 0));
}

#[test]
fn reservation_that_begins_gets_the_next_permits_before_the_queue() {
    let permits = FairSemaphore::new(2);
    let (one, other) = (claim(ONE, None), claim(OTHER, None));
    assert!(permits.try_acquire(&one).is_some() && permits.try_acquire(&other).is_some());
    assert!(permits.wait(&one, 'a').is_none() && permits.wait(&claim(OTHER, Some("r")), 'r').is_none());
    assert!(permits.set_reserved(slots([("r", 1)])).is_empty());
    let mut told = Vec::new();
    permits.tell_waiting(|one, position, _| told.push((*one, position)));
    assert_eq!(told, [('r', 1), ('a', 2)]);
    assert_eq!(ones(permits.release(&Holder::Address(ONE))), [('r', reserved("r"))]);
    assert_eq!(ones(permits.release(&Holder::Address(OTHER))), [('a', Holder::Address(ONE))]);
    assert!(permits.wait(&one, 'b').is_none());
    // Its permit stays free for it while it is in force, and goes to others afterwards.
    assert!(permits.release(&reserved("r")).is_none());
    assert_eq!(ones(permits.set_reserved(HashMap::new())), [('b', Holder::Address(ONE))]);
}

#[test]
fn permit_of_a_reservation_that_has_ended_is_an_ordinary_one() {
    let permits = FairSemaphore::new(1);
    assert!(permits.set_reserved(slots([("r", 1)])).is_empty());
    assert!(permits.try_acquire(&claim(ONE, Some("r"))).is_some());
    assert!(permits.wait(&claim(OTHER, None), 'a').is_none());
    // While it is in force, a slow operation keeps its permit.
    assert!(matches!(permits.make_way(ONE, &reserved("r"), 0), Slow::Keeps));
    assert!(permits.set_reserved(HashMap::new()).is_empty());
    let (slow, next) = yielded(permits.make_way(ONE, &reserved("r"), 0));
    assert_eq!((next, permits.counts()), ('a', (1, 0)));
    assert!(permits.release(&Holder::Address(OTHER)).is_none());
    assert_eq!(permits.regain(&slow), Some(Holder::Address(ONE)));
}

#[test]
fn reservations_never_exceed_the_permits() {
    let permits = FairSemaphore::<char>::new(3);
    assert!(permits.set_reserved(slots([("r", 2), ("s", 2)])).is_empty());
    let tokens = ["r", "s", "r", "s", "r"].map(|token| permits.try_acquire(&claim(ONE, Some(token))));
    assert_eq!(tokens.iter().flatten().count(), 3);
    assert!(permits.try_acquire(&claim(OTHER, None)).is_none());
    permits.set_short(true);
    assert!(permits.release(&reserved("r")).is_none());
    assert_eq!(permits.try_acquire(&claim(ONE, Some("r"))), None);
}

#[test]
fn semaphore_with_waiting_operations_grants_permits_in_order() {
    let permits = Addressed::new(2);
    assert!(permits.try_acquire(ONE) && permits.try_acquire(ONE) && !permits.try_acquire(ONE));
    assert_eq!((permits.wait(ONE, 'a'), permits.wait(ONE, 'b')), (None, None));
    assert!(permits.has_waiting());
    assert_eq!((permits.release(ONE), permits.release(ONE)), (Some('a'), Some('b')));
    assert_eq!(permits.release(ONE), None);
    assert_eq!(permits.wait(ONE, 'c'), Some('c'));
    assert!(!permits.try_acquire(ONE));
    assert_eq!((permits.release(ONE), permits.release(ONE)), (None, None));
    assert!(permits.try_acquire(ONE) && permits.try_acquire(ONE) && !permits.try_acquire(ONE));
}

#[test]
fn semaphore_with_waiting_addresses_alternates_between_them() {
    let permits = Addressed::new(1);
    assert!(permits.try_acquire(ONE));
    for n in 0..10 {
        assert_eq!(permits.wait(ONE, n), None);
    }
    assert_eq!(permits.wait(OTHER, 10), None);
    assert_eq!(permits.release(ONE), Some(0));
    assert_eq!(permits.release(ONE), Some(10));
    assert_eq!(permits.remove_waiting(|n| n % 2 == 0).len(), 4);
    assert_eq!(permits.release(OTHER), Some(1));
}

fn yielded(slow: Slow<char>) -> (Arc<Yielded>, char) {
    match slow {
        Slow::Yields(one, Some(next)) => (one, next.one),
        Slow::Yields(_, None) => panic!("no operation gets the permit"),
        Slow::Keeps => panic!("it stays"),
        Slow::Ends => panic!("it ends"),
    }
}

#[test]
fn semaphore_when_others_wait_takes_permit_of_slow_operation() {
    let permits = Addressed::new(1);
    assert!(permits.try_acquire(ONE));
    assert!(matches!(permits.make_way(ONE, 0), Slow::Keeps));
    assert_eq!(permits.wait(OTHER, 'a'), None);
    let (slow, next) = yielded(permits.make_way(ONE, 0));
    assert_eq!(next, 'a');
    assert!(!permits.try_acquire(ONE) && !permits.regain(&slow));
    assert_eq!(permits.release(OTHER), None);
    // The operation is fast again, and holds the permit.
    assert!(permits.regain(&slow) && !permits.try_acquire(OTHER));
    assert_eq!(permits.wait(OTHER, 'b'), None);
    let (slow, _) = yielded(permits.make_way(ONE, 0));
    permits.end_yielded(&slow);
    assert_eq!(permits.release(OTHER), None);
    assert!(permits.try_acquire(ONE));
}

#[test]
fn semaphore_with_too_many_slow_operations_ends_slowest_of_busiest_address() {
    let permits = Addressed::new(4);
    let (third, fourth) = (IpAddr::from([10, 0, 0, 3]), IpAddr::from([10, 0, 0, 4]));
    assert!(
        permits.try_acquire(ONE)
            && permits.try_acquire(ONE)
            && permits.try_acquire(ONE)
            && permits.try_acquire(OTHER)
    );
    for _ in 0..4 {
        assert_eq!(permits.wait(third, 'x'), None);
    }
    let (slow, _) = yielded(permits.make_way(ONE, 1000));
    let (slower, _) = yielded(permits.make_way(ONE, 999));
    let (slowest, _) = yielded(permits.make_way(OTHER, 0));
    // The third address has enough permits: no waiting operation would gain.
    assert!(matches!(permits.make_way(ONE, 0), Slow::Keeps));
    assert_eq!(permits.wait(fourth, 'y'), None);
    let (last, next) = yielded(permits.make_way(ONE, LEAST - 1));
    assert_eq!(next, 'y');
    let ending = || [&slow, &slower, &slowest, &last].map(|one| one.must_end());
    assert!(matches!(permits.make_way(fourth, 0), Slow::Keeps));
    assert_eq!(ending(), [false; 4]);
    for _ in 0..4 {
        assert_eq!(permits.wait(fourth, 'z'), None);
    }
    assert!(matches!(permits.make_way(third, 0), Slow::Keeps));
    assert_eq!(ending(), [false, true, false, false]);
    slow.set_rate(LEAST);
    assert!(matches!(permits.make_way(ONE, 5000), Slow::Ends));
    permits.end_yielded(&slower);
    // The operations that end already make room for the waiting ones.
    let (_next, x) = yielded(permits.make_way(third, 0));
    assert_eq!((x, permits.remove_waiting(|_| true).len()), ('x', 4));
    assert!(matches!(permits.make_way(third, 0), Slow::Keeps));
}

#[test]
fn semaphore_with_even_addresses_keeps_trickling_operations() {
    let permits = Addressed::new(2);
    assert!(permits.try_acquire(ONE) && permits.try_acquire(OTHER));
    let third = IpAddr::from([10, 0, 0, 3]);
    for _ in 0..4 {
        assert_eq!(permits.wait(third, 'x'), None);
    }
    let (one, _) = yielded(permits.make_way(ONE, TRICKLE));
    let (other, _) = yielded(permits.make_way(OTHER, TRICKLE));
    assert!(matches!(permits.make_way(third, TRICKLE), Slow::Keeps));
    assert!(!one.must_end() && !other.must_end());
    assert!(matches!(permits.make_way(third, TRICKLE - 1), Slow::Ends));
}

#[test]
fn semaphore_for_one_address_keeps_quarter_for_others() {
    let permits = Addressed::new(8);
    assert_eq!((0..8).filter(|_| permits.try_acquire(ONE)).count(), 6);
    assert_eq!(permits.wait(ONE, 'a'), None);
    assert!(permits.try_acquire(OTHER) && permits.try_acquire(OTHER) && !permits.try_acquire(OTHER));
    // The permit that the other address releases does not go to an address that has enough.
    assert_eq!(permits.release(OTHER), None);
    assert!(permits.try_acquire(OTHER));
    assert_eq!(permits.release(ONE), Some('a'));
    assert_eq!(permits.wait(ONE, 'b'), None);
    for _ in 0..2 {
        assert_eq!(permits.release(OTHER), None);
    }
    assert_eq!(permits.release(ONE), Some('b'));
}

#[test]
fn closed_semaphore_keeps_one_running_and_admits_the_others_a_few_at_a_time() {
    let permits = Addressed::new(16);
    assert!(permits.try_acquire(ONE) && permits.try_acquire(ONE));
    permits.set_short(true);
    assert!(!permits.try_acquire(OTHER));
    for n in 0..6 {
        assert_eq!(permits.wait(OTHER, n), None);
    }
    assert_eq!(permits.release(ONE), None);
    // Nothing runs any more.
    assert_eq!(permits.release(ONE), Some(0));
    assert_eq!(permits.counts(), (1, 5));
    permits.set_short(false);
    assert!(!permits.try_acquire(ONE), "the others have waited for longer");
    assert_eq!(permits.admit(), [1]);
    permits.set_short(true);
    assert_eq!(permits.release(OTHER), None);
    permits.set_short(false);
    assert_eq!((permits.admit(), permits.admit(), permits.admit()), (vec![2], vec![3], vec![4]));
    assert_eq!(permits.admit(), [5]);
    assert_eq!(permits.counts(), (5, 0));
    // It is open.
    assert!(permits.try_acquire(ONE) && permits.admit().is_empty());
    permits.set_short(true);
    permits.set_short(false);
    assert!(permits.try_acquire(ONE));
}

#[test]
fn closed_semaphore_without_operations_runs_the_one_that_waits() {
    let permits = Addressed::new(4);
    permits.set_short(true);
    assert_eq!(permits.wait(ONE, 'a'), Some('a'));
    assert_eq!((permits.wait(ONE, 'b'), permits.wait(OTHER, 'c')), (None, None));
    let looked_at = permits.remove_waiting(|one| *one == 'b');
    assert_eq!(permits.release(ONE), Some('c'));
    assert_eq!(permits.release(OTHER), None);
    assert_eq!(permits.wait_again(ONE, looked_at[0]), Some('b'));
}

#[test]
fn slow_operations_of_a_closed_semaphore_do_not_hold_up_others() {
    let permits = Addressed::new(4);
    assert!(permits.try_acquire(ONE) && permits.try_acquire(ONE));
    permits.set_short(true);
    assert_eq!(permits.wait(OTHER, 'a'), None);
    let Slow::Yields(first, None) = permits.make_way(ONE, 0) else { panic!("it keeps its permit") };
    let (_second, next) = yielded(permits.make_way(ONE, 0));
    assert_eq!((next, permits.counts()), ('a', (1, 0)));
    // One that is fast again holds a permit.
    assert!(permits.regain(&first));
    assert_eq!(permits.counts(), (2, 0));
}
