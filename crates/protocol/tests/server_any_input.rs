//! With any input, and any results of operations, a session keeps the order of its replies and its
//! limits of memory.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Host, good};
use proptest::prelude::*;
use ropewalk_protocol::error_class::ErrorClass;
use ropewalk_protocol::marker::{LimitedBy, PathMarker};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Action, Event, Failure, Operation, Outcome, Phase, Session, SessionConfig};

const LINES: [&str; 53] = [
    "ABOR",
    "ABUF 5",
    "ALLO 5",
    "APPE f",
    "CDUP",
    "CKSM MD5 0 -1 f",
    "CWD /x",
    "DELE f",
    "EPSV",
    "EPSV ALL",
    "ERET P 1 2 f",
    "ESTO A 5 f",
    "FEAT",
    "HELP",
    "LIST",
    "MDTM f",
    "MFMT 20200101000000 f",
    "MKD d",
    "MLSC",
    "MLSD d",
    "MLST",
    "MODE E",
    "MODE S",
    "NLST -a",
    "NOOP",
    "OPTS PASV AllowDelayed=1;",
    "OPTS PASV AllowDelayed=0;",
    "OPTS RETR Parallelism=4,4,4;Checksum=CRC32;",
    "OPTS RETR Congestion=bbr;",
    "OPTS RETR PathInfo=1;markers=1;",
    "PASS x",
    "PASV",
    "PORT 127,0,0,1,4,4",
    "REST 5-10",
    "RETR f",
    "RNFR f",
    "RNTO g",
    "SITE CHROOT /d",
    "SITE FAULT NOOP",
    "SITE RANGES f",
    "SITE STORATTR modify=20200101000000;",
    "SITE STREAMS 4",
    "SITE streams x",
    "SITE SYMLINKFROM f",
    "SITE SYMLINKTO g",
    "SIZE f",
    "SPAS",
    "STAT f",
    "STOR f",
    "TREV PERF 1",
    "TYPE L 8",
    "USER x",
    "XYZZY",
];

/// The result with which the host ends an operation.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Good,
    /// An outcome that may belong to another kind of operation.
    Odd,
    Errno(i32),
    Refused,
    Class,
    Broken,
    Aborted,
}

fn any_ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        4 => Just(Ending::Good),
        1 => Just(Ending::Odd),
        2 => (0..140i32).prop_map(Ending::Errno),
        1 => Just(Ending::Refused),
        1 => Just(Ending::Class),
        1 => Just(Ending::Broken),
        1 => Just(Ending::Aborted),
    ]
}

fn result(ending: Ending, operation: &Operation) -> Result<Outcome, Failure> {
    match ending {
        Ending::Good => good(operation),
        Ending::Odd => Ok(Outcome::Size(1)),
        Ending::Errno(errno) => Err(Failure::System { errno, action: "open".to_owned() }),
        Ending::Refused => Err(Failure::Refused { code: 7, text: "a\r\nb".to_owned() }),
        Ending::Class => Err(Failure::Class { class: ErrorClass::TooBusy, lines: Vec::new() }),
        Ending::Broken => Err(Failure::DataBroken(String::new())),
        Ending::Aborted => Err(Failure::Aborted),
    }
}

/// One step of a random schedule.
#[derive(Clone, Debug)]
enum Step {
    /// This number of bytes of the input arrives.
    Input(usize),
    Complete(Ending),
    Event(u8),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..40usize).prop_map(Step::Input),
        3 => any_ending().prop_map(Step::Complete),
        1 => (0..7u8).prop_map(Step::Event),
    ]
}

fn event(kind: u8) -> Event {
    match kind {
        0 => Event::Begun { reused: false },
        1 => Event::Perf { timestamp: 1, stripe: 0, stripes: 1, bytes: u64::MAX },
        2 => Event::Received(RangeSet::from_range(0..u64::MAX)),
        3 => Event::Checksummed { timestamp: u64::MAX, bytes: 0 },
        4 => Event::Entries(vec![common::entry()]),
        5 => Event::Path(PathMarker {
            rtt: Duration::MAX,
            min_rtt: Duration::ZERO,
            retransmitted: u64::MAX,
            sent: 0,
            congestion_window: 0,
            streams: 0,
            limited: LimitedBy::Application,
        }),
        _ => Event::Listening(vec!["127.0.0.1:5".parse().unwrap()]),
    }
}

/// A session with all its output.
struct World {
    session: Session,
    running: Option<Operation>,
    /// Final replies, in order.
    finals: Vec<String>,
    /// Number of answers to SITE STREAMS.
    streams: usize,
    closed: bool,
}

impl World {
    fn new(logged_in: bool) -> Self {
        let config = SessionConfig { faults: true, ..SessionConfig::default() };
        let session =
            if logged_in { Host::logged_in_with(config).session } else { Session::new(Arc::new(config)) };
        Self { session, running: None, finals: Vec::new(), streams: 0, closed: false }
    }

    fn poll(&mut self) {
        while let Some(action) = self.session.poll() {
            assert!(!self.closed, "nothing comes after the end");
            match action {
                Action::Send(reply) => {
                    let bytes = reply.to_bytes();
                    assert!(bytes.ends_with(b"\r\n") && (100..600).contains(&reply.code()));
                    self.streams += usize::from(reply.code() == 114);
                    if !reply.is_preliminary() {
                        self.finals.push(reply.to_string());
                    }
                }
                Action::Perform(operation) => {
                    assert!(self.running.replace(operation).is_none(), "one operation at a time");
                }
                Action::Abort => assert!(self.running.is_some(), "there is something to break off"),
                Action::Streams(n) => assert!((1..=1024).contains(&n)),
                Action::Protect => {}
                Action::Close => self.closed = true,
            }
        }
        assert!(self.session.queued() <= 1001);
    }

    fn step(&mut self, step: Step, input: &mut &[u8]) {
        match step {
            Step::Input(n) => {
                let (now, later) = input.split_at(n.min(input.len()));
                self.session.input(now);
                *input = later;
            }
            Step::Complete(ending) => {
                if let Some(operation) = self.running.take() {
                    self.session.completed(result(ending, &operation));
                }
            }
            Step::Event(kind) => self.session.event(event(kind)),
        }
        self.poll();
    }

    /// Passes all remaining input, and ends every operation.
    fn finish(&mut self, input: &mut &[u8]) {
        self.step(Step::Input(input.len()), input);
        while self.running.is_some() {
            self.step(Step::Complete(Ending::Good), input);
        }
        assert!(self.closed == (self.session.phase() == Phase::Closed));
        assert!(self.closed || self.session.queued() == 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn session_with_any_schedule_answers_in_order(
        lines in prop::collection::vec(prop::option::weighted(0.7, prop::sample::select(LINES.to_vec())), 0..40),
        steps in prop::collection::vec(any_step(), 0..80),
        logged_in in any::<bool>(),
    ) {
        // Lines whose reply identifies them are mixed in.
        let lines: Vec<String> = lines
            .iter()
            .enumerate()
            .map(|(i, line)| line.map_or_else(|| format!("HELP T{i}"), str::to_owned))
            .collect();
        let bytes: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\r\n").into_bytes()).collect();
        let mut input = &bytes[..];
        let mut world = World::new(logged_in);
        for step in steps {
            world.step(step, &mut input);
        }
        world.finish(&mut input);
        prop_assert!(!world.closed);
        // SITE STREAMS is out of band: it is answered, but not in the order of the other commands.
        let (streams, lines): (Vec<String>, Vec<String>) =
            lines.into_iter().partition(|line| line.to_ascii_uppercase().starts_with("SITE STREAMS"));
        prop_assert_eq!(world.streams, streams.len());
        prop_assert_eq!(world.finals.len(), lines.len());
        for (line, reply) in lines.iter().zip(&world.finals) {
            if let Some(tag) = line.strip_prefix("HELP T") {
                prop_assert_eq!(reply, &format!("502 Unknown command 'T{tag}'."));
            }
            if line == "ABOR" {
                prop_assert_eq!(reply, "226 Abort successful");
            }
        }
    }

    #[test]
    fn session_on_any_bytes_keeps_its_limits(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..30),
                Just(b"\r\n".to_vec()),
                prop::sample::select(LINES.to_vec()).prop_map(|line| format!("{line}\r\n").into_bytes()),
                prop::sample::select(LINES.to_vec()).prop_map(|line| line.as_bytes().to_vec()),
            ],
            0..40,
        ),
        steps in prop::collection::vec(any_step(), 0..80),
        logged_in in any::<bool>(),
    ) {
        let bytes = pieces.concat();
        let mut input = &bytes[..];
        let mut world = World::new(logged_in);
        for step in steps {
            world.step(step, &mut input);
        }
        world.finish(&mut input);
    }
}
