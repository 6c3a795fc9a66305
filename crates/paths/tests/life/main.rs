//! The life of a reservation against a provider in virtual time, whose messages are lost, late,
//! repeated and reordered, with crashes at any step.

#![allow(clippy::unwrap_used)]

mod steps;
mod world;

use std::time::Duration;

use proptest::prelude::*;
use ropewalk_paths::{Entry, Goal, Life, Owner};
use world::{Faults, SECOND, World, entry};

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

/// An entry whose path is reserved for so long at first, and extended by the same.
fn extended_entry(now: Duration, seconds: u32) -> Entry {
    let mut entry = entry(now, Owner::Transfer);
    entry.request.until = now + SECOND * seconds;
    entry.extend_by = Some(SECOND * seconds);
    entry
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// After any crash, the next processes remove every path. Each of them may crash as well.
    #[test]
    fn path_without_a_process_is_removed_after_its_lease(
        seed: u64, faults in faults(), crashes in prop::collection::vec(0..30u32, 0..4), use_for in 0..600u32,
        time in prop::option::of(150..500u32),
    ) {
        let mut world = World::new(seed, faults);
        let entry = match time {
            Some(time) => extended_entry(world.now, time),
            None => entry(world.now, Owner::Transfer),
        };
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

proptest! {
    // Each case is hours of virtual time.
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Without faults, a path is extended in time for as long as it is used, and is never down.
    #[test]
    fn path_in_use_is_extended_before_its_end(seed: u64, time in 300..2000u32, uses in 1..5u32) {
        let (repeat, commits_itself) = (0, false);
        let faults = Faults { loss: 0, repeat, longest_delay: 1, refusal: 0, never_up: false, commits_itself };
        let mut world = World::new(seed, faults);
        let mut life = Life::new(extended_entry(world.now, time), world.limits, Goal::Up, world.now);
        let later = world.now + SECOND * time * uses + SECOND * 100;
        let run = world.run(&mut life, u32::MAX, later, later + SECOND);
        prop_assert!(run.up && !run.over && run.refused == 0, "{:?} {:?}", run, life);
        prop_assert!(run.extensions >= uses, "{:?}", run);
        prop_assert!(life.entry().request.until > later && life.entry().extending.is_none());
        life.set_goal(Goal::End, world.now);
        let run = world.run(&mut life, u32::MAX, later + SECOND * 100, later);
        prop_assert!(run.over && !run.left && world.living().is_empty() && world.disk.is_empty());
    }

    /// With faults, each extension is confirmed, reported as refused, or under way, and a path
    /// whose time is over is not up.
    #[test]
    fn extension_is_confirmed_or_reported(seed: u64, faults in faults(), time in 300..900u32) {
        let mut world = World::new(seed, Faults { commits_itself: false, ..faults });
        let mut life = Life::new(extended_entry(world.now, time), world.limits, Goal::Up, world.now);
        let later = world.now + SECOND * 2500;
        let run = world.run(&mut life, u32::MAX, later, later + SECOND);
        prop_assert!(run.refused <= 1, "{:?}", run);
        prop_assert!(!run.up || life.entry().request.until > world.now);
    }
}
