//! How streams and files in flight are divided among workers, and who comes and leaves for them.

use super::*;

/// The first participant measures its own rate, 2 MB/s.
fn moves_six_megabytes_in_three_seconds(path_tuner: &PathTuner) {
    let now = Instant::now();
    for seconds in [0, 3] {
        let at = now + Duration::from_secs(seconds);
        path_tuner.state.lock().participants[0].own.add(at, 6_000_000, Duration::ZERO);
    }
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
    moves_six_megabytes_in_three_seconds(&path_tuner);
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
    moves_six_megabytes_in_three_seconds(&path_tuner);
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
fn the_last_worker_stays() {
    let path_tuner = path_tuner(1);
    let participants: Vec<Participant> = (0..2).map(|_| Participant::new(path_tuner.clone())).collect();
    participants[0].opened(8, 100, StreamControl::Fixed);
    assert!(!participants[0].is_surplus());
    participants[1].opened(8, 100, StreamControl::Fixed);
    assert!(participants[1].is_surplus() && !participants[0].is_surplus());
}
