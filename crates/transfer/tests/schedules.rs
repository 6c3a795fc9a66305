//! Pipelines against server sessions in virtual time: every order of steps, refusals and lost
//! sessions.
//!
//! The data channel of the model is the worst one that MODE E has: contents arrive in the order in
//! which they were sent, and nothing says to which file they belong.

#![allow(clippy::unwrap_used, clippy::panic)]

mod world;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use ropewalk_protocol::command::{ChecksumAlgorithm, Command, Placement};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::upload::{UploadCommand, UploadId, UploadParameters};
use ropewalk_transfer::{
    Arrival, Behind, Checks, Failure, File, Left, Moved, Outcome, Pipeline, Purpose, Route, Side, Sides,
    Slot, Submission,
};
use world::{Channel, Fault, Link, Store, Uploads, sum_of};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Error {
    Refused(Purpose),
    /// The part that had arrived is not there any more.
    Vanished,
    Mismatch,
    /// A session that was left still writes to the upload.
    Busy,
    /// The data connections broke: one of the files in flight is blamed.
    ChannelLost,
    SessionLost,
}

impl Failure for Error {
    fn invalidates_data(&self) -> bool {
        matches!(self, Self::Vanished | Self::Mismatch)
    }

    fn breaks_session(&self) -> bool {
        *self == Self::SessionLost
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    None,
    Size,
    Checksum,
}

struct Item {
    name: String,
    /// The part file, or the ID of the upload.
    part: String,
    is_upload: bool,
    content: Vec<u8>,
    check: Check,
}

impl File for Item {
    type Error = Error;

    fn has_failed(&self) -> bool {
        false
    }

    fn is_in_place(&self) -> bool {
        false
    }

    fn arrived(&self, _: &Arrival<'_>) -> Result<bool, Error> {
        Ok(true)
    }

    fn compare(&self, reported: &Sides<Option<String>>) -> Result<(), Error> {
        let expected = match self.check {
            Check::Checksum => sum_of(&self.content),
            _ => self.content.len().to_string(),
        };
        let differs = [&reported.source, &reported.destination].into_iter().flatten().any(|r| *r != expected);
        if differs { Err(Error::Mismatch) } else { Ok(()) }
    }

    fn is_source(&self, _: &Reply) -> Result<(), Error> {
        Ok(())
    }

    fn replaces(&self, _: &Reply) {}

    fn refused(&self, side: Side, purpose: Purpose, reply: Reply) -> Error {
        let missing = reply.to_string().contains("No such file");
        match reply.code() {
            _ if missing && side == Side::Destination => Error::Vanished,
            503 if purpose == Purpose::Transfer || purpose == Purpose::Commit => Error::Vanished,
            451 if purpose == Purpose::Begin || purpose == Purpose::Commit => Error::Busy,
            550 if purpose == Purpose::Commit => Error::Mismatch,
            425 | 426 => Error::ChannelLost,
            _ => Error::Refused(purpose),
        }
    }
}

struct Ends(Route);

impl ropewalk_transfer::Site<Item, ()> for Ends {
    fn checks(&self, slot: &Slot<Item, ()>) -> Checks {
        let mut checks = Checks::default();
        let sum = |path: &str| Command::Cksm {
            algorithm: ChecksumAlgorithm::Md5,
            offset: 0,
            length: None,
            path: path.into(),
        };
        match slot.file.check {
            Check::None => {}
            Check::Size if self.0 == Route::Download => {}
            Check::Size if slot.file.is_upload => {}
            Check::Size => checks.size = Some(Command::Size(slot.file.part.as_str().into())),
            Check::Checksum => {
                let (source, destination) = (self.0.has(Side::Source), self.0.has(Side::Destination));
                checks.checksums.source = source.then(|| sum(&slot.file.name));
                let destination = destination && !slot.file.is_upload;
                checks.checksums.destination = destination.then(|| sum(&slot.file.part));
            }
        }
        checks
    }

    fn naming(&self, file: &Item) -> Vec<(Purpose, Command)> {
        if self.0 == Route::Download {
            return Vec::new();
        }
        if file.is_upload {
            let sum = (file.check == Check::Checksum).then(|| sum_of(&file.content));
            let parameters = UploadParameters {
                size: Some(file.content.len() as u64),
                checksum: sum.map(|sum| (ChecksumAlgorithm::Md5, sum.into())),
                ..UploadParameters::default()
            };
            return vec![(Purpose::Commit, upload(UploadCommand::Commit { id: id(&file.part), parameters }))];
        }
        vec![
            (Purpose::RenameFrom, Command::Rnfr(file.part.as_str().into())),
            (Purpose::RenameTo, Command::Rnto(file.name.as_str().into())),
        ]
    }
}

fn id(text: &str) -> UploadId {
    UploadId::new(text.as_bytes()).unwrap()
}

fn upload(command: UploadCommand) -> Command {
    Command::Site(SiteCommand::Upload(command))
}

/// A run of the client with its servers.
struct Run {
    route: Route,
    /// The client uploads by SITE UPLOAD.
    uploads: bool,
    check: Check,
    depth: usize,
    sources: Store,
    destination: Store,
    begun: Sides<Uploads>,
    queue: VecDeque<(String, String)>,
    done: BTreeSet<String>,
    links: Sides<Option<Link>>,
    channel: Channel,
    pipeline: Pipeline<Item, ()>,
    /// Sessions that the client has left and whose servers may not be through with their commands.
    left: Vec<(Link, Channel)>,
    faults: Sides<Vec<(String, Fault)>>,
    injected: BTreeSet<String>,
    blamed: Vec<(String, Error)>,
    sent: BTreeMap<String, u32>,
    lost: u32,
    tag: u32,
}

impl Run {
    fn new(
        (route, uploads): (Route, bool),
        check: Check,
        depth: usize,
        files: usize,
        faults: Sides<Vec<(usize, Fault)>>,
    ) -> Self {
        let name = |n: usize| format!("/f{n}.");
        let sources: Store = (0..files).map(|n| (name(n), vec![n as u8 + 1; 40])).collect();
        let part = |name: &String| if uploads { name[1..].to_owned() } else { format!("{name}part") };
        let queue = sources.keys().map(|name| (name.clone(), part(name))).collect();
        let named = |faults: Vec<(usize, Fault)>| -> Vec<(String, Fault)> {
            faults.into_iter().map(|(n, fault)| (name(n % files), fault)).collect()
        };
        let faults = Sides { source: named(faults.source), destination: named(faults.destination) };
        let injected =
            faults.source.iter().chain(&faults.destination).map(|(name, _)| name.clone()).collect();
        let mut run = Self {
            route,
            uploads,
            check,
            depth,
            sources,
            destination: Store::new(),
            begun: Sides::default(),
            queue,
            done: BTreeSet::new(),
            links: Sides::default(),
            channel: Channel::default(),
            pipeline: Pipeline::new(route),
            left: Vec::new(),
            faults,
            injected,
            blamed: Vec::new(),
            sent: BTreeMap::new(),
            lost: 0,
            tag: 0,
        };
        run.connect();
        run
    }

    fn connect(&mut self) {
        self.channel = Channel::default();
        self.pipeline = Pipeline::new(self.route);
        for side in [Side::Source, Side::Destination] {
            self.links[side] = self.route.has(side).then(|| Link::new(side == Side::Source));
        }
    }

    fn is_over(&self) -> bool {
        self.queue.is_empty() && self.pipeline.is_empty()
    }

    /// No file has its name before it is complete and right.
    fn check_names(&self) {
        for (name, content) in self.destination.iter().filter(|(name, _)| !name.contains("part")) {
            assert!(self.sources[name] == *content, "{name} has the bytes {:?}", content.first());
        }
    }

    fn send_commands(&mut self) {
        while let Some(outgoing) = self.pipeline.next_command() {
            self.links[outgoing.side].as_mut().unwrap().submit(&outgoing.command);
        }
    }

    fn submit(&mut self) {
        if self.pipeline.len() >= self.depth || self.pipeline.is_entangled() {
            return;
        }
        let Some((name, part)) = self.queue.pop_front() else { return };
        let content = self.sources[&name].clone();
        *self.sent.entry(name.clone()).or_default() += 1;
        let retrieve = vec![(Purpose::Transfer, Command::Retr(name.as_str().into()))];
        let store = if self.uploads {
            let begin = UploadCommand::Begin {
                id: id(&part),
                parameters: UploadParameters::default(),
                path: name.as_str().into(),
            };
            let (place, path) = (Placement::Upload(0), part.as_str().into());
            vec![(Purpose::Begin, upload(begin)), (Purpose::Transfer, Command::Esto { place, path })]
        } else {
            vec![(Purpose::Transfer, Command::Stor(part.as_str().into()))]
        };
        let has = |side, commands: Vec<_>| if self.route.has(side) { commands } else { Vec::new() };
        let commands =
            Sides { source: has(Side::Source, retrieve), destination: has(Side::Destination, store) };
        let range = 0..content.len() as u64;
        self.pipeline.submit(Submission {
            data: RangeSet::from_range(range.clone()),
            file: Arc::new(Item { name, part, is_upload: self.uploads, content, check: self.check }),
            range,
            origin: 0,
            own: (),
            commands,
        });
        self.send_commands();
    }

    /// Data that passes through the client.
    fn transfer(&mut self) {
        let Some(id) = self.pipeline.next_to_move().filter(|_| self.route.moves_here()) else { return };
        let slot = self.pipeline.slot(id).unwrap();
        match self.route {
            // The outcome of the file that was refused decides.
            Route::Upload if self.channel.broken && self.pipeline.is_behind_refusal(id) => {}
            Route::Upload if self.channel.broken => {
                self.pipeline.fail(id, Error::ChannelLost);
                self.abandon(None, true);
            }
            Route::Upload => {
                self.channel.contents.push_back(slot.file.content.clone());
                self.pipeline.moved(id, Moved { ranges: None, sums: None });
            }
            _ if slot.has_begun(Side::Source) => {
                let Some(content) = self.channel.contents.pop_front() else { return };
                assert!(content == slot.file.content, "data of another file was received");
                self.destination.insert(slot.file.part.clone(), content);
                self.pipeline.moved(id, Moved { ranges: None, sums: None });
            }
            _ => {}
        }
    }

    fn step(&mut self, side: Side) -> bool {
        let Some(link) = &mut self.links[side] else { return false };
        let store = if side == Side::Source { &mut self.sources } else { &mut self.destination };
        let faults = &mut self.faults[side];
        let uploads = &mut self.begun[side];
        link.step(&mut world::Site { store, uploads, channel: &mut self.channel, faults })
    }

    fn step_left(&mut self, at: usize) -> bool {
        let count = self.left.len();
        let Some((link, channel)) = self.left.get_mut(at % count.max(1)) else { return false };
        let mut none = Vec::new();
        let uploads = &mut self.begun.destination;
        link.step(&mut world::Site { store: &mut self.destination, uploads, channel, faults: &mut none })
    }

    fn deliver(&mut self, side: Side) {
        let Some(link) = &mut self.links[side] else { return };
        link.deliver();
        while let Some((preliminary, reply)) = link.reply() {
            if preliminary {
                self.pipeline.preliminary(side);
            } else {
                self.pipeline.reply(side, reply);
            }
        }
    }

    fn settle(&mut self, gone: bool) {
        loop {
            let outcome = self.pipeline.poll(&Ends(self.route));
            self.send_commands();
            match outcome {
                None => return,
                Some(Outcome::Finished(slot)) => self.finished(&slot),
                Some(Outcome::Failed(slot)) => {
                    let alone = slot.fails_alone();
                    self.failed(slot);
                    if !alone && self.route == Route::Upload {
                        // The server may be waiting for data, or have discarded some.
                        return self.abandon_channel(gone);
                    }
                }
                Some(Outcome::Desynchronized(id)) => {
                    self.complete(id);
                    return self.abandon(None, gone);
                }
            }
        }
    }

    /// As the driver of uploads: the session stays, with a new data channel.
    fn abandon_channel(&mut self, gone: bool) {
        self.abandon(None, gone);
    }

    fn complete(&mut self, refused: u64) {
        self.channel.closed = true;
        loop {
            let outcome = self.pipeline.poll_before(refused, &Ends(self.route));
            self.send_commands();
            match outcome {
                Some(Outcome::Finished(slot)) => self.finished(&slot),
                Some(Outcome::Failed(slot)) => self.failed(slot),
                Some(Outcome::Desynchronized(_)) => return,
                None if !self.pipeline.awaits_before(refused) => return,
                None => {
                    let before = self.pipeline.slots().map(Slot::due).sum::<u32>();
                    while self.step(Side::Destination) {}
                    self.deliver(Side::Destination);
                    if self.pipeline.slots().map(Slot::due).sum::<u32>() == before
                        && !self.step(Side::Destination)
                    {
                        return;
                    }
                }
            }
        }
    }

    fn finished(&mut self, slot: &Slot<Item, ()>) {
        let file = &slot.file;
        if self.route == Route::Download {
            let part = self.destination.remove(&file.part).unwrap();
            self.destination.insert(file.name.clone(), part);
        }
        assert_eq!(self.destination.get(&file.name), Some(&file.content), "{} is done", file.name);
        self.done.insert(file.name.clone());
    }

    fn failed(&mut self, slot: Slot<Item, ()>) {
        let error = slot.error.clone().unwrap();
        self.blamed.push((slot.file.name.clone(), error));
        self.queue.push_back((slot.file.name.clone(), slot.file.part.clone()));
    }

    /// The sessions are closed. `gone`: the client waits until the destination is through with its
    /// commands.
    fn abandon(&mut self, error: Option<Error>, gone: bool) {
        self.lost += 1;
        self.channel.closed = true;
        if self.route == Route::Download {
            self.channel.broken = true;
        }
        if gone {
            while self.step(Side::Destination) {}
        }
        let pipeline = std::mem::replace(&mut self.pipeline, Pipeline::new(self.route));
        let lost = pipeline.lost(error, None);
        if let Some(link) = self.links.destination.take() {
            self.left.push((link, std::mem::take(&mut self.channel)));
        }
        for lost in lost {
            let name = lost.slot.file.name.clone();
            self.tag += 1;
            let apart =
                if self.uploads { format!("u{}", self.tag) } else { format!("{name}{}part", self.tag) };
            let part = match lost.left {
                Left::Nothing => continue,
                Left::Confirmation if !gone => apart,
                Left::Range if lost.behind != Behind::Confirmed && !gone => apart,
                _ => lost.slot.file.part.clone(),
            };
            if let Some(error) = lost.error {
                self.blamed.push((name.clone(), error));
            }
            self.queue.push_back((name, part));
        }
        self.connect();
    }

    fn act(&mut self, choice: u8) {
        match choice % 16 {
            0 | 1 => self.submit(),
            2 | 3 => self.transfer(),
            4..=6 => _ = self.step(Side::Destination),
            7 | 8 => _ = self.step(Side::Source),
            9 | 10 => self.deliver(Side::Destination),
            11 => self.deliver(Side::Source),
            12 | 13 => self.settle(choice & 16 == 0),
            14 => _ = self.step_left(usize::from(choice >> 4)),
            // Lost control connections are rare.
            _ if choice >= 240 => self.abandon(Some(Error::SessionLost), false),
            _ => {}
        }
        self.check_names();
    }

    fn run(&mut self, choices: &[u8]) {
        for choice in choices {
            self.act(*choice);
        }
        for round in 0u32.. {
            assert!(round < 2000, "the run does not end: {} files are done", self.done.len());
            if self.is_over() {
                break;
            }
            for choice in [0, 2, 4, 7, 9, 11, 12] {
                self.act(choice);
            }
            (0..self.left.len()).for_each(|at| _ = self.step_left(at));
            self.check_names();
        }
        while (0..self.left.len()).any(|at| self.step_left(at)) {
            self.check_names();
        }
        assert_eq!(self.done.len(), self.sources.len());
        self.check_blame();
    }

    /// No file is blamed for the failure of another one, and none is sent without need.
    fn check_blame(&self) {
        let mut by_session = 0;
        for (name, error) in &self.blamed {
            match error {
                Error::SessionLost | Error::ChannelLost => by_session += 1,
                // A session that was left has given the part its name.
                Error::Vanished => assert!(!self.left.is_empty(), "the part of {name} vanished"),
                Error::Busy => {
                    assert!(!self.left.is_empty() || self.injected.contains(name), "{name} is busy");
                }
                Error::Mismatch => panic!("{name} got the bytes of another file"),
                Error::Refused(purpose) => {
                    assert!(self.injected.contains(name), "{name} is blamed: {purpose:?}");
                }
            }
        }
        assert!(
            by_session <= self.lost,
            "{by_session} files are blamed for {} sessions: {:?}",
            self.lost,
            self.blamed
        );
        for (name, sent) in &self.sent {
            let own = self.blamed.iter().filter(|(blamed, _)| blamed == name).count() as u32;
            assert!(*sent <= 1 + own + self.lost, "{name} was sent {sent} times");
        }
    }
}

fn faults() -> impl Strategy<Value = Vec<(usize, Fault)>> {
    let kind =
        prop_oneof![Just(Fault::Refused), Just(Fault::NotBegun), Just(Fault::Broken), Just(Fault::Late)];
    proptest::collection::vec((0usize..8, kind), 0..4)
}

fn check() -> impl Strategy<Value = Check> {
    prop_oneof![Just(Check::None), Just(Check::Size), Just(Check::Checksum)]
}

fn schedule(route: Route, uploads: bool) -> impl Strategy<Value = (Run, Vec<u8>)> {
    let choices = proptest::collection::vec(any::<u8>(), 0..400);
    (check(), 1usize..8, 1usize..8, faults(), faults(), choices).prop_map(
        move |(check, depth, files, source, destination, choices)| {
            (Run::new((route, uploads), check, depth, files, Sides { source, destination }), choices)
        },
    )
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { route, check, depth, faults, .. } = self;
        write!(f, "{route:?} {check:?} of {} files, depth {depth}, {faults:?}", self.sources.len())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn uploads_by_any_schedule_are_whole_or_absent((mut run, choices) in schedule(Route::Upload, false)) {
        run.run(&choices);
    }

    #[test]
    fn uploads_by_site_upload_are_whole_or_absent_by_any_schedule(
        (mut run, choices) in schedule(Route::Upload, true)
    ) {
        run.run(&choices);
    }

    #[test]
    fn third_party_transfers_by_site_upload_are_whole_or_absent_by_any_schedule(
        (mut run, choices) in schedule(Route::ThirdParty, true)
    ) {
        run.run(&choices);
    }

    #[test]
    fn downloads_by_any_schedule_are_whole_or_absent((mut run, choices) in schedule(Route::Download, false)) {
        run.run(&choices);
    }

    #[test]
    fn third_party_transfers_by_any_schedule_are_whole_or_absent(
        (mut run, choices) in schedule(Route::ThirdParty, false)
    ) {
        run.run(&choices);
    }
}
