//! The results of a path that the next run remembers.

use super::*;

#[test]
fn a_cap_is_not_remembered_as_what_a_path_wants() {
    let path_tuner = path_tuner(24);
    {
        let mut state = path_tuner.state.lock();
        state.decisions = 3;
        state.reached.push((24, 1e6, Purpose::Stay));
        state.min_rtt = Some(0.05);
    }
    assert_eq!(path_tuner.prior(128), None);
    assert_eq!(path_tuner.prior(24).map(|prior| prior.streams), Some(24));
}

/// The few streams that the remaining data uses are no decision, and not the number that the
/// transfer used.
#[test]
fn lane_at_the_end_of_a_run_keeps_what_was_decided() {
    let path_tuner = capped(69, 128);
    let mut processors = Processors::default();
    let now = Instant::now();
    let mut step = |ms, ends| {
        path_tuner
            .step(now + Duration::from_millis(ms), &mut processors, (None, Some(ends)), false, 1)
            .decision
    };
    let participant = Participant::new(path_tuner.clone());
    participant.opened(69, 100, StreamControl::Fixed);
    participant.moves_elsewhere();
    let mut decided = 0;
    for (ms, left) in [(0, 9 << 30), (5100, 8 << 30), (11_000, 7 << 30), (17_000, 1 << 20)] {
        path_tuner.add(1, 1 << 30);
        decided += u32::from(step(ms, left).is_some());
    }
    assert!(decided > 0);
    let streams = |streams| path_tuner.state.lock().participants[0].streams = streams;
    streams(2);
    for (ms, left) in [(18_000, 1 << 20), (40_000, 1 << 10), (80_000, 0), (160_000, 0)] {
        path_tuner.add(1, 1 << 18);
        assert_eq!(step(ms, left), None, "{ms}");
    }
    let tuned = path_tuner.tuned(&Summed::default(), false).unwrap();
    assert_eq!((tuned.streams, tuned.usual, tuned.most, tuned.decisions), (69, 69, 69, decided));
    // With the same amount of work the path or the peer permits only two streams: that is measured.
    assert!(step(161_000, 1 << 40).is_none() && path_tuner.state.lock().span.is_some());
}

/// A run may end before the last decision was measured.
#[test]
fn a_knee_that_was_not_measured_any_more_is_remembered() {
    let streams = |reason: Reason| {
        let path_tuner = path_tuner(57);
        {
            let mut state = path_tuner.state.lock();
            state.reached = vec![(48, 1e6, Purpose::Climb), (96, 1.1e6, Purpose::Climb)];
            (state.decisions, state.decision.reason) = (2, reason);
        }
        path_tuner.prior(8).map(|prior| prior.streams)
    };
    assert_eq!(streams(Reason::Knee { each: 1e6, ceiling: 5e7 }), Some(57));
    assert_eq!(streams(Reason::Growing { elasticity: 0.5 }), Some(96));
}

#[test]
fn what_is_remembered_is_where_a_transfer_stayed_and_not_what_it_tried() {
    let streams = |reached: &[Reached]| {
        let path_tuner = path_tuner(24);
        {
            let mut state = path_tuner.state.lock();
            state.reached = reached.to_vec();
            (state.decisions, state.decision.reason) = (reached.len() as u32, Reason::ProbeUp { from: 8 });
        }
        path_tuner.prior(8).map(|prior| prior.streams)
    };
    let (stay, climb, trial) = (Purpose::Stay, Purpose::Climb, Purpose::Trial);
    // In a climb without further gain, the fewest streams with about the best rate.
    assert_eq!(streams(&[(4, 1e6, climb), (12, 3e6, climb), (36, 3.1e6, climb)]), Some(12));
    assert_eq!(streams(&[(4, 1e6, climb), (12, 3e6, climb), (36, 3.3e6, climb)]), Some(36));
    assert_eq!(streams(&[(12, 3e6, climb), (20, 4e6, trial)]), Some(12));
    assert_eq!(streams(&[(36, 3.3e6, climb), (12, 3e6, stay), (20, 4e6, trial)]), Some(12));
    assert_eq!(streams(&[(20, 4e6, trial), (33, 5e6, trial)]), None);
}

/// All reasons for which a tuner stays, and the first chunk, which has not confirmed the remembered
/// number yet.
#[test]
fn a_span_is_of_a_place_of_a_climb_or_of_a_trial() {
    let purpose_after = |decisions: u32, reason: Reason, same: bool| {
        let path_tuner = path_tuner(8);
        let participant = Participant::new(path_tuner.clone());
        participant.opened(8, 100, StreamControl::Fixed);
        participant.moves_elsewhere();
        let mut processors = Processors::default();
        let now = Instant::now();
        {
            let mut state = path_tuner.state.lock();
            (state.decisions, state.decision.reason, state.same) = (decisions, reason, same);
        }
        let mut look = |ms: u64| {
            path_tuner.step(now + Duration::from_millis(ms), &mut processors, (None, None), false, 1);
        };
        look(0);
        look(60_000);
        path_tuner.add(participant.id(), 1 << 40);
        look(70_000);
        path_tuner.state.lock().reached.last().map(|reached| reached.2)
    };
    let purpose = |decisions, reason| purpose_after(decisions, reason, false);
    for reason in [
        Reason::Limited { by: Bottleneck::Disk },
        Reason::FairShare { share: 0.5 },
        Reason::Crowded { packets: 2.0 },
        Reason::WindowTooSmall { packets: 2.0 },
        Reason::Vertex { low: 4, high: 12 },
        Reason::Remembered { streams: 8 },
    ] {
        assert_eq!(purpose(3, reason), Some(Purpose::Stay), "{reason}");
    }
    assert_eq!(purpose(0, Reason::Remembered { streams: 8 }), Some(Purpose::Climb));
    assert_eq!(purpose(3, Reason::Growing { elasticity: 1.0 }), Some(Purpose::Climb));
    assert_eq!(purpose(3, Reason::ProbeUp { from: 8 }), Some(Purpose::Trial));
    // A climb may reach the largest permitted number, and stays if it was there before.
    for reason in [Reason::Capped { cap: 8 }, Reason::Granted { streams: 8 }] {
        assert_eq!(purpose(3, reason), Some(Purpose::Climb));
        assert_eq!(purpose_after(3, reason, true), Some(Purpose::Stay));
    }
}
