#![allow(clippy::unwrap_used)]
use ropewalk_tuning::tuner::{Bottleneck, Kind, Knobs, Options};

use super::super::participant::{Participant, Wanted};
use super::super::spread::Spread;
use super::*;

const RTT: Duration = Duration::from_millis(50);

fn path_tuner(streams: u32) -> Arc<PathTuner> {
    capped(streams, 24)
}

fn capped(streams: u32, cap: u32) -> Arc<PathTuner> {
    let options = Options { first_streams: streams, rtt: Some(0.05), ..Options::default() };
    let tuner = Kind::Fixed.build(&options).unwrap();
    let ends = Ends { source: Some("gsiftp://a".into()), destination: None };
    Arc::new(PathTuner::new(ends, RTT, tuner, true, 8, cap))
}

fn streams(path_tuner: &PathTuner) -> Vec<u32> {
    path_tuner.state.lock().participants.iter().map(|participant| participant.streams).collect()
}

#[test]
fn elastic_channels_share_what_fixed_ones_leave() {
    let path_tuner = path_tuner(16);
    let participants: Vec<Participant> = (0..3).map(|_| Participant::new(path_tuner.clone())).collect();
    assert_eq!(participants[0].share(true, 100, 3), 6);
    let wanted: Vec<Wanted> = (0..3).map(|_| Wanted::new(1)).collect();
    participants[0].opened(1, 100, StreamControl::Fixed);
    participants[1].opened(1, 100, StreamControl::There(wanted[1].clone()));
    assert_eq!(streams(&path_tuner), [1, 15, 0]);
    participants[2].opened(1, 4, StreamControl::There(wanted[2].clone()));
    assert_eq!(streams(&path_tuner), [1, 11, 4]);
    assert_eq!((wanted[1].news(), wanted[1].news(), wanted[2].news()), (Some(11), None, Some(4)));
    drop(participants);
    assert!(streams(&path_tuner).is_empty());
}

#[test]
fn the_first_of_many_leaves_streams_to_those_that_come() {
    let ends = Ends { source: None, destination: Some("gsiftp://a".into()) };
    let options = Options { first_streams: 64, rtt: Some(0.05), ..Options::default() };
    let tuner = Kind::Fixed.build(&options).unwrap();
    let path_tuner = Arc::new(PathTuner::new(ends, RTT, tuner, true, 8, 128).for_many(8));
    let participants: Vec<Participant> = (0..2).map(|_| Participant::new(path_tuner.clone())).collect();
    for participant in &participants {
        assert_eq!(participant.share(true, 100, 1), 8);
        participant.opened(8, 100, StreamControl::There(Wanted::new(8)));
    }
    assert_eq!(streams(&path_tuner), [8, 8]);
    // Expected workers that have not come before a decision are not needed. The streams of many
    // sessions are not what a path needs.
    let mut state = path_tuner.state.lock();
    (state.decisions, state.min_rtt) = (3, Some(0.05));
    state.reached.push((64, 1e6, Purpose::Stay));
    state.follow();
    drop(state);
    assert_eq!((streams(&path_tuner), path_tuner.prior(128)), (vec![32, 32], None));
    drop(participants);
}

#[test]
fn streams_of_several_addresses_are_within_the_limit() {
    let path_tuner = capped(8, 30);
    let participant = Participant::new(path_tuner.clone());
    let wanted = Wanted::spread(8, Spread::tuned(4));
    assert_eq!(wanted.get(), 2);
    participant.opened(8, 1000, StreamControl::There(wanted.clone()));
    assert_eq!((streams(&path_tuner), wanted.get()), (vec![8], 2));
    let decide = |streams| {
        let mut state = path_tuner.state.lock();
        state.decision.knobs.streams = streams;
        state.decisions += 1;
        state.follow();
    };
    decide(30);
    assert_eq!((streams(&path_tuner), wanted.get()), (vec![28], 7));
    // A second session leaves each host one stream.
    let other = Participant::new(path_tuner.clone());
    let few = Wanted::spread(1, Spread::tuned(4));
    other.opened(4, 1, StreamControl::There(few.clone()));
    assert_eq!((streams(&path_tuner), wanted.get(), few.get()), (vec![24, 4], 6, 1));
}

#[test]
fn default_of_a_round_trip_is_of_each_address() {
    let begun = |first, cap, addresses| {
        let options = Options { first_streams: first, rtt: Some(0.05), ..Options::default() };
        let tuner = Kind::Fixed.build(&options).unwrap();
        let ends = Ends { source: None, destination: Some("gsiftp://a".into()) };
        let path_tuner = PathTuner::new(ends, RTT, tuner, true, 8, cap).with_first_of_each_address();
        let path_tuner = Arc::new(path_tuner);
        let participant = Participant::new(path_tuner.clone());
        let wanted = Wanted::spread(first, Spread::tuned(addresses));
        participant.opened(first, 1000, StreamControl::There(wanted.clone()));
        let first = streams(&path_tuner)[0];
        // The tuner's own decisions are of all addresses.
        let mut state = path_tuner.state.lock();
        state.decisions += 1;
        (first, wanted.get(), state.target())
    };
    assert_eq!(begun(8, 128, 1), (8, 8, 8));
    assert_eq!(begun(8, 128, 3), (24, 8, 8));
    assert_eq!(begun(8, 16, 4), (16, 4, 8));
    assert_eq!(begun(16, 128, 32), (64, 2, 16));
}

#[test]
fn a_channel_that_is_used_again_takes_part() {
    let path_tuner = path_tuner(16);
    let participant = Participant::new(path_tuner.clone());
    // Made for six MiB; the next file can use more.
    let wanted = Wanted::new(6);
    participant.opened(6, 6, StreamControl::There(wanted.clone()));
    assert_eq!((streams(&path_tuner), wanted.news()), (vec![6], None));
    participant.used_again(6, 1000, StreamControl::There(wanted.clone()));
    assert_eq!((streams(&path_tuner), wanted.news()), (vec![16], Some(16)));
    participant.used_again(6, 2, StreamControl::There(wanted.clone()));
    assert_eq!(streams(&path_tuner), [16]);
    drop(participant);
    // Another pipeline of the same worker reuses the channel.
    let participant = Participant::new(path_tuner.clone());
    let wanted = Wanted::new(5);
    participant.used_again(6, 1000, StreamControl::There(wanted.clone()));
    assert_eq!((streams(&path_tuner), wanted.news()), (vec![16], Some(16)));
}

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

#[test]
fn fixed_channels_come_until_there_are_enough_and_then_leave() {
    let path_tuner = path_tuner(12);
    let participants: Vec<Participant> = (0..4).map(|_| Participant::new(path_tuner.clone())).collect();
    // Four workers for twelve streams, and four more that are being hired.
    assert_eq!(participants[0].share(false, 100, 8), 2);
    assert_eq!(participants[0].share(false, 100, 4), 3);
    for participant in &participants[..3] {
        participant.opened(3, 100, StreamControl::Fixed);
    }
    assert_eq!(participants[3].share(false, 100, 4), 3);
    assert_eq!(participants[3].share(false, 2, 4), 2);
    let now = Instant::now();
    // One is just opening its channel.
    assert_eq!(path_tuner.state.lock().missing(4, now, RTT), 2);
    assert!(!participants[0].is_surplus());
    participants[3].opened(8, 100, StreamControl::Fixed);
    assert_eq!(path_tuner.state.lock().missing(4, now, RTT), 0);
    // Seventeen are not a clear surplus.
    assert!(!participants[0].is_surplus());
    participants[2].opened(8, 100, StreamControl::Fixed);
    // Twenty-two: one can leave, but not a second one at the same time.
    assert!(participants[0].is_surplus() && participants[0].is_surplus());
    assert!(!participants[1].is_surplus());
    drop(participants);
}

/// The number of files in flight follows the tuner: sessions come for it, and leave again, but not
/// below the untuned number.
#[test]
fn files_in_flight_follow_the_tuner() {
    let path_tuner = path_tuner(24);
    let decide =
        |files| path_tuner.state.lock().decision.knobs = Knobs { streams: 24 / files, files, pipeline: 3 };
    let participants: Vec<Participant> = (0..8).map(|_| Participant::new(path_tuner.clone())).collect();
    for participant in &participants {
        participant.opened(3, 100, StreamControl::There(Wanted::new(3)));
    }
    let work = |files| Some(Work { files, bytes: files << 20 });
    let missing = |workers, files| path_tuner.state.lock().missing_files(workers, work(files));
    decide(12);
    assert_eq!((missing(8, 1000), missing(62, 1000), missing(64, 1000)), (4, 2, 0));
    // So few files are not worth a log-in.
    assert_eq!((missing(8, 47), missing(8, 30)), (3, 0));
    path_tuner.state.lock().coming.push(Instant::now());
    assert_eq!(missing(9, 1000), 3);
    assert!(!participants[0].is_surplus());
    let further: Vec<Participant> = (0..4).map(|_| Participant::new(path_tuner.clone())).collect();
    for participant in &further {
        participant.opened(1, 100, StreamControl::There(Wanted::new(1)));
    }
    assert_eq!(missing(12, 1000), 0);
    assert!(!participants[0].is_surplus());
    // Eight is the usual number, and half as many more may stay, because decisions alternate.
    decide(2);
    assert!(!participants[0].is_surplus());
    let one_more = Participant::new(path_tuner.clone());
    one_more.opened(1, 100, StreamControl::There(Wanted::new(1)));
    assert!(participants[0].is_surplus() && !participants[1].is_surplus());
    // Ranges of one file have as many sessions as streams.
    decide(1);
    assert!(!participants[5].is_surplus());
}

/// A session that was hired for its streams does not leave because there are few files.
#[test]
fn sessions_that_are_needed_for_their_streams_stay() {
    let path_tuner = capped(64, 128);
    path_tuner.state.lock().decision.knobs = Knobs { streams: 8, files: 8, pipeline: 2 };
    let join = |count| (0..count).map(|_| Participant::new(path_tuner.clone())).collect::<Vec<_>>();
    let open = |participants: &[Participant]| {
        for participant in participants {
            // For a file of five MiB.
            participant.opened(5, 5, StreamControl::There(Wanted::new(5)));
        }
    };
    let participants = join(8);
    open(&participants);
    let missing = path_tuner.state.lock().missing(8, Instant::now(), RTT);
    assert_eq!(missing, 5);
    let further = join(missing);
    open(&further);
    assert_eq!(path_tuner.state.lock().missing(13, Instant::now(), RTT), 0);
    assert!(!participants.iter().chain(&further).any(Participant::is_surplus));
}

/// A run that ends sooner than a log-in hires no worker; one of unknown duration does.
#[test]
fn nobody_comes_to_a_run_that_is_nearly_over() {
    let hired = |ends: Option<u64>| {
        let path_tuner = path_tuner(12);
        let mut processors = Processors::default();
        let now = Instant::now();
        let participant = Participant::new(path_tuner.clone());
        participant.opened(2, 100, StreamControl::Fixed);
        participant.moves_elsewhere();
        let mut step = |ms: u64| {
            let work = Some(Work { files: 100, bytes: 1000 });
            path_tuner.step(now + Duration::from_millis(ms), &mut processors, (work, ends), true, 1)
        };
        // So few streams are still expected.
        step(0);
        step(60_000);
        path_tuner.add(1, 1 << 40);
        let step = step(70_000);
        assert!(step.decision.is_some());
        step.hire
    };
    // A fifth of these bytes moves during a log-in.
    assert_eq!((hired(Some(1 << 37)), hired(Some(1 << 38))), (0, 10));
    assert_eq!((hired(Some(0)), hired(None)), (10, 10));
}

#[test]
fn commands_ahead_follow_the_tuner() {
    let path_tuner = path_tuner(24);
    let participant = Participant::new(path_tuner.clone());
    assert_eq!((participant.ahead(0).rate, participant.ahead(0).pipeline), (None, None));
    {
        let mut state = path_tuner.state.lock();
        state.decisions = 1;
        state.decision.knobs.pipeline = 7;
        state.reached.push((24, 24e6, Purpose::Stay));
    }
    assert_eq!((participant.ahead(3).rate, participant.ahead(3).pipeline), (Some(3e6), Some(7)));
    // Later streams count, not those with which the channel was made.
    participant.opened(24, 100, StreamControl::There(Wanted::new(24)));
    let other = Participant::new(path_tuner.clone());
    other.opened(1, 100, StreamControl::There(Wanted::new(1)));
    assert_eq!(participant.ahead(24).rate, Some(12e6));
    let now = Instant::now();
    for seconds in [0, 3] {
        path_tuner.state.lock().participants[0].own.add(
            now + Duration::from_secs(seconds),
            6_000_000,
            Duration::ZERO,
        );
    }
    assert_eq!(participant.ahead(24).rate, Some(2e6));
}

#[test]
fn workers_that_log_in_are_counted() {
    let path_tuner = path_tuner(12);
    let participant = Participant::new(path_tuner.clone());
    participant.opened(4, 100, StreamControl::Fixed);
    let now = Instant::now();
    let later = |seconds| now + Duration::from_secs(seconds);
    assert_eq!(path_tuner.state.lock().missing(1, now, RTT), 8);
    path_tuner.state.lock().coming.extend([now; 8]);
    assert_eq!(path_tuner.state.lock().missing(9, later(2), RTT), 0);
    // They join, and open their channels one by one.
    let participants: Vec<Participant> = (0..8).map(|_| Participant::new(path_tuner.clone())).collect();
    assert!(path_tuner.state.lock().coming.is_empty());
    assert_eq!(path_tuner.state.lock().missing(9, later(3), RTT), 0);
    participants[0].opened(1, 100, StreamControl::Fixed);
    assert_eq!(path_tuner.state.lock().missing(9, later(3), RTT), 0);
    drop(participants);
    assert_eq!(path_tuner.state.lock().missing(1, later(3), RTT), 8);
    // Workers that never come are not expected forever.
    path_tuner.state.lock().coming.extend([now; 8]);
    assert_eq!(path_tuner.state.lock().missing(9, later(3), RTT), 0);
    assert_eq!(path_tuner.state.lock().missing(9, later(13), RTT), 8);
}

#[test]
fn a_session_is_expected_to_carry_the_share_of_its_streams() {
    let path_tuner = path_tuner(24);
    let participant = Participant::new(path_tuner.clone());
    assert_eq!(participant.pace(1).rate, UNKNOWN_RATE);
    path_tuner.state.lock().reached.push((24, 24e6, Purpose::Stay));
    assert_eq!(
        (participant.pace(8).rate, participant.pace(1).rate, participant.pace(0).rate),
        (8e6, 1e6, 3e6)
    );
    // Or the session's own measured rate, with as many streams as it has.
    participant.opened(8, 100, StreamControl::Fixed);
    let now = Instant::now();
    for seconds in [0, 3] {
        path_tuner.state.lock().participants[0].own.add(
            now + Duration::from_secs(seconds),
            6_000_000,
            Duration::ZERO,
        );
    }
    assert_eq!((participant.pace(8).rate, participant.pace(1).rate), (2e6, 1e6));
    participant.opened(8, 100, StreamControl::Fixed);
    assert_eq!(participant.pace(8).rate, 8e6);
}

#[test]
fn never_more_connections_than_the_cap() {
    let path_tuner = path_tuner(20);
    let participants: Vec<Participant> = (0..4).map(|_| Participant::new(path_tuner.clone())).collect();
    for participant in &participants[..3] {
        participant.opened(8, 100, StreamControl::Fixed);
    }
    // Twenty-four is the cap; that the path needs twenty is no reason to leave.
    assert!(!participants[0].is_surplus());
    participants[3].opened(1, 100, StreamControl::Fixed);
    assert!(participants[3].is_surplus() && !participants[0].is_surplus());
}

#[test]
fn what_servers_tell_of_a_path_between_them_is_heard() {
    let path_tuner = path_tuner(4);
    let participant = Participant::new(path_tuner.clone());
    participant.moves_elsewhere();
    participant.opened(4, 100, StreamControl::There(Wanted::new(4)));
    assert_eq!(path_tuner.state.lock().totals(Instant::now(), RTT, 0).streams, 4);
    let marker = |sent, retransmitted| PathMarker {
        rtt: Duration::from_millis(60),
        min_rtt: RTT,
        retransmitted,
        sent,
        congestion_window: 1 << 20,
        streams: 3,
        limited: ropewalk_protocol::marker::LimitedBy::Application,
    };
    participant.hears(marker(1000, 10));
    let totals = path_tuner.state.lock().totals(Instant::now(), RTT, 0);
    assert_eq!((totals.streams, totals.sent, totals.resent), (3, 1000, 10));
    assert_eq!((totals.markers, totals.idle, totals.min_rtt), (1, 1, Some(0.05)));
    // The counters of the next transfer start from zero.
    participant.heard_out();
    let totals = path_tuner.state.lock().totals(Instant::now(), RTT, 0);
    assert_eq!((totals.streams, totals.sent), (4, 1000));
    participant.hears(marker(500, 0));
    let totals = path_tuner.state.lock().totals(Instant::now(), RTT, 0);
    assert_eq!((totals.sent, totals.resent), (1500, 10));
}

#[test]
fn streams_come_at_once_and_leave_one_by_one() {
    let path_tuner = path_tuner(4);
    let participant = Participant::new(path_tuner.clone());
    participant.opened(4, 100, StreamControl::There(Wanted::new(4)));
    let now = Instant::now();
    let at = |halves: u32| now + Duration::from_millis(500) * halves;
    let decide = |streams, reason| {
        let mut state = path_tuner.state.lock();
        state.decision.knobs.streams = streams;
        state.decision.reason = reason;
        state.follow();
    };
    decide(40, Reason::Start);
    assert_eq!(streams(&path_tuner), [40]);
    decide(10, Reason::Holding);
    let mut seen = Vec::new();
    for halves in 1..=4 {
        path_tuner.state.lock().descend(at(halves), Duration::from_millis(50));
        path_tuner.state.lock().descend(at(halves), Duration::from_millis(50));
        seen.push(streams(&path_tuner)[0]);
    }
    assert_eq!(seen, [38, 36, 34, 32]);
    decide(10, Reason::Yielding { queueing: 0.1, loss: 0.0 });
    assert_eq!(streams(&path_tuner), [10]);
    // A requested share is given up at once; a measured one is not.
    for (reason, left) in [(Reason::FairShare { share: 0.5 }, 40), (Reason::StatedShare { share: 0.5 }, 10)] {
        decide(40, Reason::Start);
        decide(10, reason);
        assert_eq!(streams(&path_tuner), [left], "{reason}");
    }
    drop(participant);
}

#[test]
fn streams_of_a_sender_that_tells_no_losses_get_over_slow_start_before_they_are_measured() {
    let begins = |stream_control: StreamControl, wait: u32| {
        let path_tuner = path_tuner(4);
        let participant = Participant::new(path_tuner.clone());
        participant.opened(4, 100, stream_control);
        participant.moves_elsewhere();
        let decided = Instant::now();
        {
            let mut state = path_tuner.state.lock();
            (state.decisions, state.decided) = (1, decided);
        }
        let mut processors = Processors::default();
        for at in [Duration::ZERO, wait * RTT] {
            path_tuner.step(decided + at, &mut processors, (None, None), false, 1);
        }
        path_tuner.state.lock().span.is_some()
    };
    assert!(begins(StreamControl::There(Wanted::new(4)), 0));
    assert!(!begins(StreamControl::Fixed, SLOW_START_ROUND_TRIPS - 1));
    assert!(begins(StreamControl::Fixed, SLOW_START_ROUND_TRIPS));
}

#[test]
fn the_last_worker_stays() {
    let path_tuner = path_tuner(1);
    let participants: Vec<Participant> = (0..2).map(|_| Participant::new(path_tuner.clone())).collect();
    participants[0].opened(8, 100, StreamControl::Fixed);
    assert!(!participants[0].is_surplus());
    participants[1].opened(8, 100, StreamControl::Fixed);
    assert!(participants[1].is_surplus() && !participants[0].is_surplus());
}

#[test]
fn measures_only_while_data_moves() {
    let path_tuner = path_tuner(2);
    let mut processors = Processors::default();
    let now = Instant::now();
    let at = |ms: u64| now + Duration::from_millis(ms);
    let mut step = |ms| path_tuner.step(at(ms), &mut processors, (None, None), true, 1);
    assert!(step(0).decision.is_none());
    let participant = Participant::new(path_tuner.clone());
    participant.opened(2, 100, StreamControl::Fixed);
    participant.moves_elsewhere();
    assert!(step(200).decision.is_none());
    path_tuner.add(1, 1 << 40);
    let decision = step(5100).decision;
    assert!(decision.is_some_and(|(decision, rate)| decision.knobs.connections() == 2
        && (rate - (1_u64 << 40) as f64 / 5.0).abs() < 1.0));
    let tuned = path_tuner.tuned(&Summed::default(), false).unwrap();
    assert!(tuned.decisions == 1 && tuned.buffers.is_some(), "{tuned:?}");
    let tuned = path_tuner.tuned(&Summed::default(), true).unwrap();
    assert!(!tuned.buffers_matter && tuned.buffers.is_none(), "{tuned:?}");
    drop(participant);
    path_tuner.add(1, 1 << 40);
    assert!(step(9100).decision.is_none() && path_tuner.state.lock().span.is_none());
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

/// Small files are passed to the kernel at once: most samples see none in flight, although the path
/// is full.
#[test]
fn sessions_between_two_small_files_are_measured() {
    let path_tuner = path_tuner(8);
    let mut processors = Processors::default();
    let participants: Vec<Participant> = (0..8).map(|_| Participant::new(path_tuner.clone())).collect();
    for participant in &participants {
        participant.opened(1, 1, StreamControl::Fixed);
    }
    let began = Instant::now();
    let file = |participant: &Participant| {
        drop(participant.moves(Some(Arc::new(Progress::new()))));
        path_tuner.add(participant.id(), 1 << 30);
    };
    for participant in &participants {
        file(participant);
    }
    // `add` reads the clock itself; all samples are close to that time.
    let mut look =
        |ms| path_tuner.step(began + Duration::from_millis(ms), &mut processors, (None, None), true, 8);
    assert!(look(1).decision.is_none() && path_tuner.state.lock().span.is_some());
    let decision = {
        file(&participants[0]);
        path_tuner
            .state
            .lock()
            .participants
            .iter_mut()
            .for_each(|participant| participant.arrived = Some(began + Duration::from_secs(5)));
        look(5000).decision
    };
    assert!(decision.is_some_and(|(_, rate)| rate > 1e6));
    assert_eq!(path_tuner.state.lock().reached.last().map(|reached| reached.0), Some(8));
    // No more data arrives.
    look(60_000);
    assert!(path_tuner.state.lock().span.is_none());
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

#[test]
fn what_a_session_counted_stays_when_it_leaves() {
    let path_tuner = path_tuner(4);
    let participants: Vec<Participant> = (0..2).map(|_| Participant::new(path_tuner.clone())).collect();
    for (participant, sent) in participants.iter().zip([3000, 5000]) {
        participant.hears(PathMarker {
            rtt: RTT,
            min_rtt: RTT,
            retransmitted: sent / 100,
            sent,
            congestion_window: 1 << 20,
            streams: 2,
            limited: ropewalk_protocol::marker::LimitedBy::Application,
        });
    }
    path_tuner.state.lock().participants[0].storage = 2.5;
    let counted = || {
        let totals = path_tuner.state.lock().totals(Instant::now(), RTT, 0);
        (totals.sent, totals.resent, totals.markers, totals.idle, totals.storage)
    };
    let before = counted();
    assert_eq!(before, (8000, 80, 2, 2, 2.5));
    for participant in participants {
        drop(participant);
        assert_eq!(counted(), before);
    }
}

/// Streams that wait for room or for data say nothing about their own path.
#[test]
fn path_keeps_its_streams_while_another_one_limits_the_data() {
    let wanted_after = |waiting: Duration| {
        let options = Options { first_streams: 8, rtt: Some(0.05), ..Options::default() };
        let tuner = Kind::default().build(&options).unwrap();
        let ends = Ends { source: Some("gsiftp://a".into()), destination: None };
        let path_tuner = Arc::new(PathTuner::new(ends, RTT, tuner, false, 1, 128).beside_another());
        let participant = Participant::new(path_tuner.clone());
        let (wanted, progress) = (Wanted::new(8), Arc::new(Progress::new()));
        participant.opened(8, 1000, StreamControl::There(wanted.clone()));
        participant.moves_on(progress.clone());
        let (mut processors, began, mut most) = (Processors::default(), Instant::now(), 0);
        for tenth in 0..100 {
            path_tuner.add(participant.id(), 1 << 20);
            let times = [Duration::ZERO, Duration::ZERO, tenth * waiting, Duration::ZERO, Duration::ZERO];
            progress.report(&[u64::from(tenth) << 20], 8, times);
            let now = began + tenth * Duration::from_millis(100);
            path_tuner.step(now, &mut processors, (None, None), false, 1);
            most = wanted.get().max(most);
        }
        (most, path_tuner.has_decided())
    };
    // Of 0.8 seconds of eight streams.
    let (more, decided) = wanted_after(Duration::from_millis(80));
    assert!(more > 8 && decided);
    assert_eq!(wanted_after(Duration::from_millis(400)), (8, false));
}
