//! Measurements of a path: only while data moves, and only of its own streams.

use super::*;

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
