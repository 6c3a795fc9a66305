//! Client and server sessions, connected by passing the bytes between them.

#![allow(clippy::unwrap_used)]

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use common::Host;
use ropewalk_protocol::client::{Event, Limits, Session, SubmitError, Ticket, answer};
use ropewalk_protocol::command::{ChecksumAlgorithm, Command, Password, Placement, Restart};
use ropewalk_protocol::error_class::ErrorClass;
use ropewalk_protocol::feature::Features;
use ropewalk_protocol::marker::{LimitedBy, Marker, PathMarker};
use ropewalk_protocol::opts::{Options, RetrOptions};
use ropewalk_protocol::queue::QueuePlace;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::{self, Action, Failure, Mode, Operation, Outcome, SessionConfig};
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::streams::StreamsAnswer;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Pair {
    client: Session,
    host: Host,
    /// Whether to complete operations at once.
    prompt: bool,
    aborted: bool,
    /// The number in the last SITE STREAMS.
    streams: u32,
}

impl Pair {
    fn new() -> Self {
        let host = Host::new(SessionConfig::default());
        let mut client = Session::new(Limits::default());
        client.input(&host.session.banner().to_bytes()).unwrap();
        Self { client, host, prompt: true, aborted: false, streams: 0 }
    }

    fn logged_in() -> Self {
        let mut pair = Self::new();
        assert_eq!(pair.run(&Command::User("alice".into())).code(), 331);
        assert_eq!(pair.run(&Command::Pass(Password::new("secret"))).code(), 230);
        pair
    }

    fn features(&mut self) -> Features {
        Features::new(self.run(&Command::Feat).body())
    }

    /// Moves bytes in both directions until neither side has more to send.
    fn pump(&mut self) {
        loop {
            if let Some(bytes) = self.client.poll_transmit() {
                self.host.session.input(&bytes);
            }
            match self.host.session.poll() {
                Some(Action::Send(reply)) => self.client.input(&reply.to_bytes()).unwrap(),
                Some(Action::Perform(operation)) if self.prompt => {
                    self.host.session.completed((self.host.answer)(&operation));
                }
                Some(Action::Perform(operation)) => self.host.operation = Some(operation),
                Some(Action::Abort) => self.aborted = true,
                Some(Action::Protect) => {}
                Some(Action::Streams(n)) => self.streams = n,
                Some(Action::Close) | None => return,
            }
        }
    }

    /// Submits a command and returns its last reply.
    fn run(&mut self, command: &Command) -> Reply {
        let wanted = self.client.submit(command).unwrap();
        self.pump();
        while let Some(event) = self.client.poll_event() {
            match event {
                Event::Finished { ticket, reply } if ticket == wanted => return reply,
                _ => {}
            }
        }
        panic!("no reply to {command:?}");
    }

    fn finished(&mut self) -> Vec<(Ticket, u16)> {
        std::iter::from_fn(|| self.client.poll_event())
            .filter_map(|event| match event {
                Event::Finished { ticket, reply } => Some((ticket, reply.code())),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn client_reads_features_of_server() {
    let features = Pair::logged_in().features();
    assert!(features.ranges && features.passive_sender && features.inline_checksum && features.facts);
    assert!(features.knows(ChecksumAlgorithm::Crc32c) && features.delayed_passive && features.partial);
}

#[test]
fn client_reads_answers_of_server() {
    let mut pair = Pair::logged_in();
    let home = answer::path(&pair.run(&Command::Pwd));
    assert_eq!(home.unwrap(), "/home/alice");
    assert_eq!(answer::size(&pair.run(&Command::Size("f".into()))), Some(4096));
    assert_eq!(answer::modified(&pair.run(&Command::Mdtm("f".into()))), Some(1_795_298_223));
    let sum = Command::Cksm { algorithm: ChecksumAlgorithm::Md5, offset: 0, length: None, path: "f".into() };
    let sum = answer::checksum(&pair.run(&sum));
    assert_eq!(sum.unwrap(), "6f5902ac237024bdd0c176cb93063dc4");
    let entry = answer::entry(&pair.run(&Command::Mlst(Some("d/f x".into())))).unwrap();
    assert_eq!((entry.name, entry.size), ("d/f x".into(), Some(12)));
    let ranges = answer::ranges(&pair.run(&Command::Site(SiteCommand::Ranges("f".into())))).unwrap();
    assert_eq!(ranges.to_string(), "0-1048576,2097152-3145728");
    for command in [Command::Pasv, Command::Epsv(None)] {
        let address = answer::address(&pair.run(&command), PEER).unwrap();
        assert_eq!(address.ip(), PEER, "{command:?}");
    }
    pair.host.answer = common::missing;
    let reply = pair.run(&Command::Size("f".into()));
    assert_eq!(ErrorClass::of(&reply), Some(ErrorClass::PathNotFound), "{reply}");
}

#[test]
fn restarted_upload_reports_markers_and_checksum() {
    let mut pair = Pair::logged_in();
    pair.run(&Command::Mode(Mode::ExtendedBlock));
    let sum = RetrOptions { checksum: Some(Some(ChecksumAlgorithm::Crc32c)), ..RetrOptions::default() };
    assert_eq!(pair.run(&Command::Opts(Options::Retr(sum))).code(), 200);
    pair.run(&Command::Pasv);
    let present: RangeSet = [0..10, 20..30].into_iter().collect();
    assert_eq!(pair.run(&Command::Rest(Restart::Ranges(present.clone()))).code(), 350);
    pair.prompt = false;
    let esto = Command::Esto { place: Placement::Adjusted(100), path: "a b".into() };
    let stor = pair.client.submit(&esto).unwrap();
    pair.pump();
    let Some(Operation::Transfer(transfer)) = pair.host.operation.take() else {
        panic!("no transfer");
    };
    assert_eq!(
        (transfer.present, transfer.adjust, transfer.path.as_bytes()),
        (present, Some(100), &b"/home/alice/a b"[..])
    );
    assert_eq!(transfer.inline_checksum, Some(ChecksumAlgorithm::Crc32c));
    let received: RangeSet = [10..20, 30..40].into_iter().collect();
    let session = &mut pair.host.session;
    session.event(server::Event::Begun { reused: false });
    session.event(server::Event::Perf { timestamp: 15, stripe: 0, stripes: 1, bytes: 20 });
    session.event(server::Event::Received(received.clone()));
    let checksum = Some((ChecksumAlgorithm::Crc32c, "0a1b2c3d".to_owned()));
    session.completed(Ok(Outcome::Transferred { checksum: checksum.clone() }));
    pair.pump();
    let (mut ranges, mut perf, mut sum) = (RangeSet::new(), 0, None);
    while let Some(event) = pair.client.poll_event() {
        match event {
            Event::Marker { ticket, marker: Marker::Range(set) } if ticket == stor => ranges.union(&set),
            Event::Marker { marker: Marker::Perf(marker), .. } => perf = perf.max(marker.bytes),
            Event::Finished { ticket, reply } if ticket == stor => sum = answer::inline_checksum(&reply),
            _ => {}
        }
    }
    assert_eq!((ranges, perf, sum), (received, 20, checksum));
}

#[test]
fn abort_during_pipeline_assigns_all_replies() {
    let mut pair = Pair::logged_in();
    pair.run(&Command::Pasv);
    pair.prompt = false;
    let running = pair.client.submit(&Command::Retr("a".into())).unwrap();
    let size = pair.client.submit(&Command::Size("a".into())).unwrap();
    let waiting = pair.client.submit(&Command::Retr("b".into())).unwrap();
    pair.pump();
    assert!(matches!(pair.host.operation.take(), Some(Operation::Transfer(_))));
    let abort = pair.client.abort().unwrap();
    let pwd = pair.client.submit(&Command::Pwd).unwrap();
    pair.pump();
    assert!(pair.aborted);
    pair.prompt = true;
    pair.host.session.completed(Err(Failure::Aborted));
    pair.pump();
    let finished = pair.finished();
    assert_eq!(finished, [(running, 426), (size, 213), (waiting, 426), (abort, 226), (pwd, 257)]);
    assert_eq!(pair.client.outstanding(), 0);
}

#[test]
fn set_streams_while_commands_wait_is_answered_at_once() {
    let mut pair = Pair::logged_in();
    let features = pair.features();
    assert!(features.streams && features.path_markers && !features.congestion);
    pair.run(&Command::Mode(Mode::ExtendedBlock));
    let info = RetrOptions { path_info: Some(true), markers: Some(1), ..RetrOptions::default() };
    assert_eq!(pair.run(&Command::Opts(Options::Retr(info))).code(), 200);
    pair.run(&Command::Pasv);
    pair.prompt = false;
    let running = pair.client.submit(&Command::Retr("a".into())).unwrap();
    let size = pair.client.submit(&Command::Size("a".into())).unwrap();
    pair.pump();
    assert!(matches!(pair.host.operation.take(), Some(Operation::Transfer(t)) if t.path_info));
    pair.client.set_streams(8).unwrap();
    pair.pump();
    assert_eq!(pair.streams, 8);
    assert_eq!(pair.client.poll_event(), Some(Event::Streams(StreamsAnswer::Set(8))));
    let path = PathMarker {
        rtt: Duration::from_millis(40),
        min_rtt: Duration::from_millis(39),
        retransmitted: 1,
        sent: 2,
        congestion_window: 3,
        streams: 8,
        limited: LimitedBy::ReceiveWindow,
    };
    pair.host.session.event(server::Event::Path(path));
    pair.pump();
    let marker = Marker::Path(path);
    assert_eq!(pair.client.poll_event(), Some(Event::Marker { ticket: running, marker }));
    pair.prompt = true;
    pair.host.session.completed(Ok(Outcome::Transferred { checksum: None }));
    pair.pump();
    assert_eq!(pair.finished(), [(running, 226), (size, 213)]);
    // No transfer is running. The number is set before the next channel, which uses it from the
    // beginning.
    pair.client.set_streams(3).unwrap();
    pair.pump();
    assert_eq!(pair.client.poll_event(), Some(Event::Streams(StreamsAnswer::Set(3))));
    pair.prompt = false;
    pair.client.submit(&Command::Pasv).unwrap();
    pair.pump();
    assert!(matches!(pair.host.operation.take(), Some(Operation::Listen(l)) if l.channel.parallelism == 3));
    assert_eq!(pair.client.submit(&Command::Site(SiteCommand::Streams(5))), Err(SubmitError::OutOfBand));
}

/// SITE STREAMS does not wait in the queue and is answered at once, but a client need not read the
/// answers.
#[test]
fn set_streams_without_reading_answers_ends_session() {
    let mut pair = Pair::logged_in();
    pair.run(&Command::Mode(Mode::ExtendedBlock));
    pair.run(&Command::Pasv);
    pair.prompt = false;
    pair.client.submit(&Command::Retr("a".into())).unwrap();
    pair.pump();
    let session = &mut pair.host.session;
    for _ in 0..10_000 {
        session.input(b"SITE STREAMS 4\r\n");
    }
    let actions = std::iter::from_fn(|| session.poll()).count();
    assert!((100..5_000).contains(&actions), "{actions}");
}

#[test]
fn place_in_a_queue_is_a_part_of_the_reply_that_the_beginning_or_the_end_completes() {
    let mut pair = Pair::logged_in();
    pair.prompt = false;
    let start = |pair: &mut Pair| {
        pair.prompt = true;
        pair.run(&Command::Pasv);
        pair.prompt = false;
        let running = pair.client.submit(&Command::Retr("a".into())).unwrap();
        pair.pump();
        for position in [2, 1] {
            let place = QueuePlace { position, waiting: 5 };
            let line = pair.host.session.tell_place(place).unwrap();
            pair.client.input(&line.to_bytes()).unwrap();
            assert_eq!(pair.client.poll_event(), Some(Event::Queued { ticket: running, place }));
        }
        running
    };
    let told = "Waiting at the server: position ";
    let reply =
        |last: &str| Reply::coded(150, [format!("{told}2 of 5."), format!("{told}1 of 5."), last.into()]);
    // Over connections of the last transfer, too, all lines have one code.
    for (reused, last) in
        [(false, "Beginning transfer."), (true, "Beginning transfer; reusing existing data connection.")]
    {
        let ticket = start(&mut pair);
        pair.host.session.event(server::Event::Begun { reused });
        pair.pump();
        assert_eq!(pair.client.poll_event(), Some(Event::Preliminary { ticket, reply: reply(last) }));
        // It has begun: there is no place any more.
        assert_eq!(pair.host.session.tell_place(QueuePlace { position: 1, waiting: 1 }), None);
        pair.host.session.completed(Ok(Outcome::Transferred { checksum: None }));
        pair.pump();
        assert_eq!(pair.finished(), [(ticket, 226)]);
    }
    let ticket = start(&mut pair);
    pair.host.session.completed(Err(Failure::Busy("The server ends.".into())));
    pair.pump();
    let ended = reply("The wait has ended.");
    assert_eq!(pair.client.poll_event(), Some(Event::Preliminary { ticket, reply: ended }));
    assert_eq!(pair.finished().len(), 1);
    assert_eq!(pair.host.session.end_queue(), None);
}
