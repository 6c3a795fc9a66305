//! Servers and data channels in memory, whose every step is chosen by a test.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ropewalk_protocol::client::{self, Event, Limits};
use ropewalk_protocol::command::{Command, Password};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::{self, Action, Direction, Failure, Operation, Outcome, SessionConfig};
use ropewalk_protocol::upload::{UploadId, UploadRequest, UploadStep};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Files by path.
pub(crate) type Store = BTreeMap<String, Vec<u8>>;

/// Uploads that sessions of a server have begun (SITE UPLOAD), by the path of the file.
pub(crate) type Uploads = BTreeMap<String, Upload>;

pub(crate) struct Upload {
    id: UploadId,
    /// Differs between uploads to one path.
    number: u32,
    content: Vec<u8>,
    /// A transfer writes to it, or waits for data.
    in_use: bool,
}

/// A failure of the next operation of some kind on this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// STOR or RETR is refused before it takes data.
    Refused,
    /// The data connections break in the middle of a transfer.
    Broken,
    /// SITE UPLOAD BEGIN is refused.
    NotBegun,
    /// CKSM, SIZE, RNFR, RNTO or SITE UPLOAD COMMIT is refused.
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
    /// The numbers of the uploads that the session has begun.
    begun: BTreeMap<UploadId, u32>,
}

/// The files, data and faults of a server.
pub(crate) struct Site<'s> {
    pub(crate) store: &'s mut Store,
    pub(crate) uploads: &'s mut Uploads,
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

    /// A transfer to a file, or into an upload, has ended, and leaves this content.
    fn write(&mut self, path: &str, upload: Option<u32>, content: Option<Vec<u8>>) {
        let Some(number) = upload else {
            self.store.extend(content.map(|content| (path.to_owned(), content)));
            return;
        };
        if let Some(upload) = self.uploads.get_mut(path).filter(|upload| upload.number == number) {
            upload.in_use = false;
            if let Some(content) = content {
                upload.content = content;
            }
        }
    }
}

impl Link {
    /// Logged in, with a data channel in MODE E.
    pub(crate) fn new(sends: bool) -> Self {
        let config = SessionConfig { replaces: true, ..SessionConfig::default() };
        let server = server::Session::new(Arc::new(config));
        let mut client = client::Session::new(Limits::default());
        client.input(&server.banner().to_bytes()).unwrap();
        let mut link = Self {
            client,
            server,
            to_server: Vec::new(),
            to_client: VecDeque::new(),
            running: None,
            begun: BTreeMap::new(),
        };
        let setup = [
            Command::User("u".into()),
            Command::Pass(Password::new("p")),
            Command::parse(b"TYPE I").unwrap(),
            Command::parse(b"MODE E").unwrap(),
            Command::parse(if sends { b"PORT 127,0,0,1,7,208" } else { b"PASV" }).unwrap(),
        ];
        let (mut store, mut data, mut none) = (Store::new(), Channel::default(), Vec::new());
        let mut uploads = Uploads::new();
        for command in &setup {
            link.submit(command);
            let mut site =
                Site { store: &mut store, uploads: &mut uploads, channel: &mut data, faults: &mut none };
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
                let number = transfer.upload.as_ref().map(|id| self.begun[id]);
                if let Some(number) = number {
                    match site.uploads.get_mut(&path).filter(|upload| upload.number == number) {
                        Some(upload) => upload.in_use = true,
                        None => return Some(Err(ended())),
                    }
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
                    let over = site.channel.closed || site.channel.broken;
                    if over {
                        site.write(&path, number, None);
                    }
                    return if over { Some(broken) } else { None };
                };
                self.server.event(server::Event::Begun { reused: true });
                if site.channel.broken || site.fault(&path, &[Fault::Broken]).is_some() {
                    site.channel.broken = true;
                    site.channel.contents.clear();
                    let half = content[..content.len() / 2].to_vec();
                    site.write(&path, number, Some(half));
                    return Some(broken);
                }
                site.write(&path, number, Some(content));
                done
            }
            Operation::Upload(request) => self.upload(request, site),
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

    fn upload(&mut self, request: &UploadRequest, site: &mut Site<'_>) -> Result<Outcome, Failure> {
        let UploadRequest { id, path, step } = request;
        let path = String::from_utf8(path.as_bytes().to_vec()).unwrap();
        if let UploadStep::Begin(_) = step {
            if site.fault(&path, &[Fault::NotBegun]).is_some() {
                return Err(Failure::Busy("not now".to_owned()));
            }
            let number = match site.uploads.get(&path) {
                Some(upload) if upload.id == *id => upload.number,
                Some(upload) if upload.in_use => {
                    return Err(Failure::Busy("another upload writes the file".to_owned()));
                }
                _ => {
                    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                    let upload = Upload { id: id.clone(), number, content: Vec::new(), in_use: false };
                    site.uploads.insert(path.clone(), upload);
                    number
                }
            };
            self.begun.insert(id.clone(), number);
            return Ok(Outcome::UploadBegun { bytes: 0, started_over: None });
        }
        let number = self.begun[id];
        let upload = site.uploads.get(&path).filter(|upload| upload.number == number).ok_or_else(ended)?;
        let UploadStep::Commit(parameters) = step else { return Ok(Outcome::Done) };
        if upload.in_use {
            return Err(Failure::Busy("a transfer writes to the upload".to_owned()));
        }
        let size = upload.content.len() as u64;
        if parameters.size.is_some_and(|wanted| wanted != size) {
            return Err(Failure::Refused { code: 554, text: "bytes are missing".to_owned() });
        }
        if site.fault(&path, &[Fault::Late]).is_some() {
            return Err(late());
        }
        let content = site.uploads.remove(&path).unwrap().content;
        if let Some((_, expected)) = &parameters.checksum
            && *expected != sum_of(&content)
        {
            let (computed, expected) = (sum_of(&content), expected.to_string());
            return Err(Failure::ChecksumMismatch { computed, expected });
        }
        site.store.insert(path, content);
        self.begun.remove(id);
        Ok(Outcome::Size(size))
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

fn late() -> Failure {
    Failure::Class {
        class: ropewalk_protocol::error_class::ErrorClass::InternalError,
        lines: vec!["not now".to_owned()],
    }
}

fn ended() -> Failure {
    Failure::Refused { code: 503, text: "the upload has ended".to_owned() }
}

/// A sum of some content.
pub(crate) fn sum_of(content: &[u8]) -> String {
    let sum = content.iter().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    format!("{sum:016x}")
}
