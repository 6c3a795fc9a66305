//! With any reports of a peer, a clock or a simulator, every tuner answers with a decision within
//! its options.

#![allow(clippy::unwrap_used)]
use proptest::prelude::*;
use ropewalk_tuning::tuner::{
    Chunk, CongestionControl, Connections, Fairness, Kind, Options, Pressure, Prior, Progress, Reason, Tuner,
    Work,
};

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => 1e-3..1e3f64,
        1 => any::<f64>(),
        1 => prop_oneof![
            Just(0.0), Just(-1.0), Just(1.0), Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY),
            Just(f64::MIN_POSITIVE), Just(f64::MAX),
        ],
    ]
}

fn chunk() -> impl Strategy<Value = Chunk> {
    let maybe = || proptest::option::of(number());
    let work =
        proptest::option::of((any::<u64>(), any::<u64>()).prop_map(|(files, bytes)| Work { files, bytes }));
    (
        (
            prop_oneof![4 => 1..200u32, 1 => any::<u32>()],
            prop_oneof![4 => 1..1_000_000_000u64, 1 => any::<u64>(), 1 => Just(0)],
            number(),
        ),
        (maybe(), maybe(), maybe(), maybe()),
        (maybe(), maybe(), maybe(), work),
    )
        .prop_map(
            |((streams, bytes, seconds), (rtt, min_rtt, loss, window), (disk, cpu, peer, work))| Chunk {
                rtt,
                min_rtt,
                loss,
                window,
                pressure: Pressure { disk, cpu, peer, window: peer, limit: cpu },
                work,
                ..Chunk::new(streams, bytes, seconds)
            },
        )
}

fn options() -> impl Strategy<Value = Options> {
    let fairness = prop_oneof![Just(Fairness::Polite), (0.01..1.0f64).prop_map(Fairness::Share)];
    let prior = proptest::option::of(
        (1..1000u32, 1.0..1e10f64, 0.0..1e9f64).prop_map(|(streams, rate, age)| Prior {
            streams,
            rate,
            min_rtt: None,
            age,
        }),
    );
    (1..64u32, 64..256u32, 0.01..100.0f64, fairness, prior, any::<bool>(), proptest::option::of(1.0..1e12f64))
        .prop_map(|(first_streams, max_streams, chunk_seconds, fairness, prior, kept, capacity)| Options {
            first_streams,
            max_streams,
            chunk_seconds,
            fairness,
            prior,
            capacity,
            rtt: capacity.map(|_| 0.05),
            window: capacity.map(|_| 65_536.0),
            connections: if kept { Connections::Kept } else { Connections::Fresh },
            congestion: vec![CongestionControl::Cubic, CongestionControl::Bbr],
            ..Options::default()
        })
}

/// Reports progress, ends the chunk, and checks the decision.
fn step(tuner: &mut dyn Tuner, options: &Options, marks: &[(f64, f64)], chunk: Option<&Chunk>) {
    for &(elapsed, rate) in marks {
        tuner.progress(&Progress { elapsed, rate });
    }
    let decision = match chunk {
        Some(chunk) => tuner.chunk(chunk),
        None => tuner.first(),
    };
    let knobs = decision.knobs;
    assert!(knobs.connections() >= 1 && knobs.connections() <= options.max_streams, "{decision:?}");
    assert!(knobs.files >= 1 && knobs.files <= options.max_files, "{decision:?}");
    assert!(knobs.pipeline >= 1 && knobs.pipeline <= options.max_pipeline, "{decision:?}");
    assert!(decision.bytes >= 1, "{decision:?}");
    assert!(!decision.reason.to_string().is_empty() && !decision.reason.name().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn tuner_with_any_samples_stays_within_options(
        options in options(),
        chunks in proptest::collection::vec((chunk(), proptest::collection::vec((number(), number()), 0..12)), 1..60),
    ) {
        for kind in Kind::ALL {
            let mut tuner = kind.build(&options).unwrap();
            step(tuner.as_mut(), &options, &[], None);
            for (chunk, marks) in &chunks {
                step(tuner.as_mut(), &options, marks, Some(chunk));
            }
        }
    }

    /// Samples that are valid individually, but do not belong to any real path.
    #[test]
    fn tuner_with_random_rates_stays_within_options(rates in proptest::collection::vec((1.0..1e9f64, 1e-4..1.0f64), 1..200)) {
        let options = Options::default();
        for kind in Kind::ALL {
            let mut tuner = kind.build(&options).unwrap();
            let mut decision = tuner.first();
            for &(rate, rtt) in &rates {
                let streams = decision.knobs.connections();
                let seconds = (decision.bytes as f64 / rate).clamp(1e-3, 1e4);
                let chunk = Chunk {
                    rtt: Some(rtt),
                    min_rtt: Some(0.5 * rtt),
                    window: Some(65_536.0),
                    loss: Some(0.01),
                    ..Chunk::new(streams, (rate * seconds) as u64, seconds)
                };
                step(tuner.as_mut(), &options, &[(1.5, rate), (3.0, rate)], Some(&chunk));
                decision = tuner.chunk(&chunk);
            }
        }
    }
}

#[test]
fn tuner_when_path_dies_keeps_its_decision() {
    for kind in Kind::ALL {
        let mut tuner = kind.build(&Options::default()).unwrap();
        let before = (0..10).fold(tuner.first(), |decision, _| {
            tuner.chunk(&Chunk::new(decision.knobs.connections(), 10_000_000, 10.0))
        });
        for _ in 0..100 {
            let decision = tuner.chunk(&Chunk::new(before.knobs.connections(), 0, 60.0));
            assert_eq!(decision.knobs, before.knobs, "{kind:?}");
            assert_eq!(decision.reason, Reason::PathDead);
        }
        let decision = tuner.chunk(&Chunk::new(before.knobs.connections(), 1000, 60.0));
        assert_eq!(decision.reason, Reason::PathReturned);
        let decision = tuner.chunk(&Chunk::new(before.knobs.connections(), 10_000_000, 10.0));
        assert!(decision.knobs.connections() <= 128);
    }
}

#[test]
fn tuner_when_clock_jumps_ignores_samples() {
    for kind in Kind::ALL {
        let mut tuner = kind.build(&Options::default()).unwrap();
        let first = tuner.first();
        for seconds in [-3600.0, 0.0, 1e7, f64::NAN] {
            let decision = tuner.chunk(&Chunk::new(4, 1_000_000, seconds));
            assert_eq!(decision.knobs, first.knobs, "{kind:?}");
            assert!(matches!(decision.reason, Reason::Ignored(_)));
        }
        for elapsed in [5.0, 3.0, -1.0, 1e12, f64::NAN] {
            tuner.progress(&Progress { elapsed, rate: 1e6 });
        }
    }
}

/// Connections whose first byte takes longer than the duration of a chunk.
#[test]
fn pilot_when_connections_start_late_waits() {
    for connections in [Connections::Fresh, Connections::Kept] {
        let options = Options { connections, ..Options::default() };
        let mut tuner = Kind::Pilot.build(&options).unwrap();
        let mut decision = tuner.first();
        let (mut now, mut moved) = (0.0, 0.0);
        while now < 600.0 {
            let (mut elapsed, mut bytes) = (0.0, 0.0);
            while bytes < decision.bytes as f64 && elapsed < 300.0 {
                elapsed += 1.5;
                let rate = if elapsed > 6.0 { 1e7 } else { 0.0 };
                bytes += 1.5 * rate;
                if tuner.progress(&Progress { elapsed, rate }).is_some() {
                    break;
                }
            }
            (now, moved) = (now + elapsed, moved + bytes);
            let streams = decision.knobs.connections();
            decision = tuner.chunk(&Chunk { rtt: Some(3.0), ..Chunk::new(streams, bytes as u64, elapsed) });
        }
        assert!(moved > 0.4 * 6e9, "{connections:?}: {moved:e} bytes");
    }
}
