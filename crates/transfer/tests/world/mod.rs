//! Servers and data channels in memory, whose every step is chosen by a test.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ropewalk_protocol::client::{self, Event, Limits};
use ropewalk_protocol::command::{Command, Password};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::{self, Action, Direction, Failure, Operation, Outcome, SessionConfig};

/// Files by path.
pub(crate) type Store = BTreeMap<String, Vec<u8>>;

/// A failure of the next operation of some kind on this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// STOR or RETR is refused before it takes data.
    Refused,
    /// The data connections break in the middle of a transfer.
    Broken,
    /// CKSM, SIZE, RNFR or RNTO is refused.
    Late,
}

/// Data connections in MODE E between a sender and a receiver: contents of files, in the order in
/// which they were sent. Nothing in them says to which file they belong.
#[derive(Debug, Default)]
pub(crate) struct Channel {
    pub(crate) contents: VecDeque<Vec<u8>>,
    /// The sender has closed them: the receiver still gets what they hold.
    pub(crate) closed: bool,
    /// The receiver has closed them.
    pub(crate) broken: bool,
}

/// A control connection with its server.
pub(crate) struct Link {
    client: client::Session,
    server: server::Session,
    to_server: Vec<u8>,
    to_client: VecDeque<Reply>,
    running: Option<Operation>,
}

/// The files, data and faults of a server.
pub(crate) struct Site<'s> {
    pub(crate) store: &'s mut Store,
    pub(crate) channel: &'s mut Channel,
    /// Faults to come, by the name of the file that they hit.
    pub(crate) faults: &'s mut Vec<(String, Fault)>,
}

impl Site<'_> {
    fn fault(&mut self, path: &str, kinds: &[Fault]) -> Option<Fault> {
        let hit = |(name, fault): &(String, Fault)| path.contains(name.as_str()) && kinds.contains(fault);
        let at = self.faults.iter().position(hit)?;
        Some(self.faults.remove(at).1)
    }
}

impl Link {
    /// Logged in, with a data channel in MODE E.
    pub(crate) fn new(sends: bool) -> Self {
        let server = server::Session::new(Arc::new(SessionConfig::default()));
        let mut client = client::Session::new(Limits::default());
        client.input(&server.banner().to_bytes()).unwrap();
        let mut link =
            Self { client, server, to_server: Vec::new(), to_client: VecDeque::new(), running: None };
        let setup = [
            Command::User("u".into()),
            Command::Pass(Password::new("p")),
            Command::parse(b"TYPE I").unwrap(),
            Command::parse(b"MODE E").unwrap(),
            Command::parse(if sends { b"PORT 127,0,0,1,7,208" } else { b"PASV" }).unwrap(),
        ];
        let (mut store, mut data, mut none) = (Store::new(), Channel::default(), Vec::new());
        for command in &setup {
            link.submit(command);
            let mut site = Site { store: &mut store, channel: &mut data, faults: &mut none };
            while link.step(&mut site) {}
            link.deliver_all();
            while link.reply().is_some() {}
        }
        link
    }

    pub(crate) fn submit(&mut self, command: &Command) {
        self.client.submit(command).unwrap();
        self.to_server.extend(self.client.poll_transmit().unwrap_or_default());
    }

    /// One step of the server. Returns whether it did anything.
    pub(crate) fn step(&mut self, site: &mut Site<'_>) -> bool {
        if let Some(operation) = self.running.take() {
            return match self.perform(&operation, site) {
                Some(result) => {
                    self.server.completed(result);
                    true
                }
                None => {
                    self.running = Some(operation);
                    false
                }
            };
        }
        if !self.to_server.is_empty() {
            let bytes = std::mem::take(&mut self.to_server);
            self.server.input(&bytes);
        }
        match self.server.poll() {
            Some(Action::Send(reply)) => {
                self.to_client.push_back(reply);
                true
            }
            Some(Action::Perform(operation)) => {
                self.running = Some(operation);
                true
            }
            Some(_) => true,
            None => false,
        }
    }

    /// `None` while the operation waits for data.
    fn perform(&mut self, operation: &Operation, site: &mut Site<'_>) -> Option<Result<Outcome, Failure>> {
        let late = || Failure::Class {
            class: ropewalk_protocol::error_class::ErrorClass::InternalError,
            lines: vec!["not now".to_owned()],
        };
        let text = |path: &VirtualPath| String::from_utf8(path.as_bytes().to_vec()).unwrap();
        let missing = || Failure::System { errno: 2, action: "stat".to_owned() };
        Some(match operation {
            Operation::Login { .. } => {
                Ok(Outcome::LoggedIn { local_user: "u".to_owned(), home: VirtualPath::root(), message: None })
            }
            Operation::Listen(_) => Ok(Outcome::Addresses(vec!["127.0.0.1:2000".parse().unwrap()])),
            Operation::Transfer(transfer) => {
                let path = text(&transfer.path);
                if site.fault(&path, &[Fault::Refused]).is_some() {
                    return Some(Err(Failure::Busy("not now".to_owned())));
                }
                let broken = Err(Failure::DataBroken("broken".to_owned()));
                let done = Ok(Outcome::Transferred { checksum: None });
                if transfer.direction == Direction::Retrieve {
                    let Some(content) = site.store.get(&path) else { return Some(Err(missing())) };
                    if site.channel.broken {
                        return Some(broken);
                    }
                    site.channel.contents.push_back(content.clone());
                    self.server.event(server::Event::Begun { reused: true });
                    return Some(done);
                }
                let Some(content) = site.channel.contents.pop_front() else {
                    return if site.channel.closed || site.channel.broken { Some(broken) } else { None };
                };
                self.server.event(server::Event::Begun { reused: true });
                if site.channel.broken || site.fault(&path, &[Fault::Broken]).is_some() {
                    site.channel.broken = true;
                    site.channel.contents.clear();
                    let half = content[..content.len() / 2].to_vec();
                    site.store.insert(path, half);
                    return Some(broken);
                }
                site.store.insert(path, content);
                done
            }
            Operation::Size(path) | Operation::Checksum { path, .. }
                if site.fault(&text(path), &[Fault::Late]).is_some() =>
            {
                Err(late())
            }
            Operation::Size(path) => {
                site.store.get(&text(path)).map(|c| Outcome::Size(c.len() as u64)).ok_or_else(missing)
            }
            Operation::Checksum { path, .. } => {
                let sum = |content: &Vec<u8>| Outcome::Checksum(sum_of(content));
                site.store.get(&text(path)).map(sum).ok_or_else(missing)
            }
            Operation::Stat { path, .. } => {
                use ropewalk_protocol::facts::{Entry, EntryKind};
                let entry = |c: &Vec<u8>| {
                    let mut entry = Entry::new("f", EntryKind::File);
                    entry.size = Some(c.len() as u64);
                    Outcome::Entry { entry: Box::new(entry), now: 0 }
                };
                site.store.get(&text(path)).map(entry).ok_or_else(missing)
            }
            Operation::Rename { from, to } => {
                if site.fault(&text(from), &[Fault::Late]).is_some() {
                    return Some(Err(late()));
                }
                match site.store.remove(&text(from)) {
                    Some(content) => {
                        site.store.insert(text(to), content);
                        Ok(Outcome::Done)
                    }
                    None => Err(missing()),
                }
            }
            Operation::Delete(path) => {
                site.store.remove(&text(path)).map(|_| Outcome::Done).ok_or_else(missing)
            }
            _ => Ok(Outcome::Done),
        })
    }

    /// Passes one reply to the client's end of the connection.
    pub(crate) fn deliver(&mut self) {
        if let Some(reply) = self.to_client.pop_front() {
            self.client.input(&reply.to_bytes()).unwrap();
        }
    }

    pub(crate) fn deliver_all(&mut self) {
        while !self.to_client.is_empty() {
            self.deliver();
        }
    }

    /// The next reply that the client has; `true` for a preliminary one.
    pub(crate) fn reply(&mut self) -> Option<(bool, Reply)> {
        loop {
            match self.client.poll_event()? {
                Event::Finished { reply, .. } => return Some((false, reply)),
                Event::Preliminary { reply, .. } => return Some((true, reply)),
                _ => {}
            }
        }
    }
}

/// A sum of some content.
pub(crate) fn sum_of(content: &[u8]) -> String {
    let sum = content.iter().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    format!("{sum:016x}")
}
