//! A server that queues commands and executes them in order, as GCT's server does. Like GCT's, it
//! ends a session after the client has closed its side of the connection. A deaf session instead
//! executes the remaining commands, at the worst moment: just after another session has stored a
//! file.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::{Condvar, Mutex};

use crate::control::host_port;
use crate::mode_e::EOD;

const PATIENCE: Duration = Duration::from_secs(5);

/// How the server handles a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Do,
    /// Send this reply, then wait until the client gives up.
    Refuse(&'static str),
    /// Wait until the client gives up, as if no data arrived.
    Hang,
    /// Like `Hang`, but neither ABOR nor the end of the client's side ends the session.
    Deaf,
    /// Close the connection without a reply.
    Close,
}

/// Decides how to handle a command, given its verb and its path.
pub type Script = dyn Fn(&str, &str) -> What + Send + Sync;

#[derive(Debug)]
pub struct QueueServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    /// The commands read in all sessions, executed or not.
    read: Vec<String>,
    stored: u32,
    /// Number of sessions without a client that still have commands to execute.
    orphans: u32,
    over: bool,
}

/// Waits for commands at the server and changes its files.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Shared>);

impl Watch {
    /// Waits until `count` commands with this verb have been read.
    pub fn heard(&self, verb: &str, count: usize) {
        self.0.wait(|state| state.read.iter().filter(|line| line.starts_with(verb)).count() >= count);
    }
}

impl Watch {
    /// Renames a file, as another user of the server could.
    pub fn rename(&self, from: &str, to: &str) -> bool {
        self.0.rename(from, to)
    }

    /// Like [`Self::rename`], for the part file of `name`, whatever its tag.
    pub fn rename_part(&self, name: &str, to: &str) -> bool {
        let begins = format!("/.{name}~");
        let part = self.0.state.lock().files.keys().find(|path| path.starts_with(&begins)).cloned();
        part.is_some_and(|part| self.0.rename(&part, to))
    }
}

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_all();
        result
    }

    fn rename(&self, from: &str, to: &str) -> bool {
        self.change(|state| match state.files.remove(from) {
            Some(content) => {
                state.files.insert(to.to_owned(), content);
                true
            }
            None => false,
        })
    }

    fn wait(&self, until: impl Fn(&State) -> bool) {
        self.changed.wait_while_for(&mut self.state.lock(), |state| !until(state), PATIENCE);
    }
}

/// The state of the client of one session.
#[derive(Debug, Default)]
struct Client {
    /// Whether the client sent ABOR or QUIT or is gone, and whether its connection has ended.
    given_up: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Client {
    fn note(&self, aborted: bool, gone: bool) {
        let mut state = self.given_up.lock();
        *state = (state.0 || aborted || gone, state.1 || gone);
        self.changed.notify_all();
    }

    /// Waits until the client gives up; if `deaf`, until its connection has ended.
    fn gives_up(&self, deaf: bool) {
        let mut state = self.given_up.lock();
        self.changed.wait_while_for(&mut state, |(up, gone)| !*gone && (deaf || !*up), PATIENCE);
    }

    fn is_gone(&self) -> bool {
        self.given_up.lock().1
    }
}

impl QueueServer {
    /// Starts the server. With `data`, uploads arrive over data connections in MODE E; otherwise
    /// every transfer ends at once.
    pub fn start(data: bool, script: Arc<Script>) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let server = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if server.state.lock().over {
                    break;
                }
                let (shared, script) = (server.clone(), script.clone());
                thread::spawn(move || session(client, data, &shared, &*script));
            }
        });
        Ok(Self { address, shared })
    }

    pub fn url(&self, path: &str) -> String {
        format!("ftp://{}{path}", self.address)
    }

    pub fn watch(&self) -> Watch {
        Watch(self.shared.clone())
    }

    pub fn put(&self, path: &str, content: &[u8]) {
        self.shared.change(|state| state.files.insert(path.to_owned(), content.to_vec()));
    }

    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.shared.state.lock().files.clone()
    }

    /// Returns the commands read so far in all sessions.
    pub fn read(&self) -> Vec<String> {
        self.shared.state.lock().read.clone()
    }
}

impl Drop for QueueServer {
    fn drop(&mut self) {
        self.shared.change(|state| state.over = true);
        let _ = TcpStream::connect(self.address);
    }
}

const FEATURES: &str = "211-Features\r\n REST STREAM\r\n PARALLEL\r\n ESTO\r\n  CKSM ADLER32:10;\r\n MLST Type*;Size*;\r\n211 End.";

struct Session<'s> {
    control: TcpStream,
    shared: &'s Shared,
    client: Arc<Client>,
    script: &'s Script,
    listener: Option<TcpListener>,
    data: Option<TcpStream>,
    takes_data: bool,
    renamed: Option<String>,
    deaf: bool,
    orphan: bool,
}

fn session(stream: TcpStream, takes_data: bool, shared: &Arc<Shared>, script: &Script) -> Result<()> {
    let control = stream.try_clone()?;
    let client = Arc::new(Client::default());
    let (queue, commands) = mpsc::channel();
    let (reader, watched) = (client.clone(), shared.clone());
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(std::result::Result::ok) {
            reader.note(line.starts_with("ABOR") || line.starts_with("QUIT"), false);
            watched.change(|state| state.read.push(line.clone()));
            if queue.send(line).is_err() {
                break;
            }
        }
        reader.note(false, true);
    });
    let mut session = Session {
        control,
        shared,
        client,
        script,
        listener: None,
        data: None,
        takes_data,
        renamed: None,
        deaf: false,
        orphan: false,
    };
    session.say("220 ready.")?;
    let result = session.run(&commands);
    if session.orphan {
        shared.change(|state| state.orphans -= 1);
    }
    let _ = session.control.shutdown(std::net::Shutdown::Both);
    result
}

impl Session<'_> {
    fn run(&mut self, commands: &mpsc::Receiver<String>) -> Result<()> {
        for line in commands {
            if self.client.is_gone() && !self.deaf {
                return self.say("421 Service not available.");
            }
            if self.client.is_gone() && !self.orphan {
                self.orphan = true;
                let before = self.shared.change(|state| {
                    state.orphans += 1;
                    state.stored
                });
                self.shared.wait(|state| state.stored > before);
            }
            let (verb, path) = line.split_once(' ').unwrap_or((&line, ""));
            let what = (self.script)(verb, path);
            match what {
                What::Do if verb == "QUIT" => return self.say("221 Goodbye."),
                What::Do => self.command(verb, path)?,
                What::Refuse(reply) => {
                    self.say(reply)?;
                    self.client.gives_up(false);
                }
                What::Hang | What::Deaf => {
                    self.deaf |= what == What::Deaf;
                    self.say("150 waiting.")?;
                    self.client.gives_up(what == What::Deaf);
                    self.say("426 broken off.")?;
                }
                What::Close => return Ok(()),
            }
        }
        Ok(())
    }

    /// Sends a reply; a failed write is no error if the client is gone.
    fn say(&mut self, reply: &str) -> Result<()> {
        match self.control.write_all(format!("{reply}\r\n").as_bytes()) {
            Err(_) if self.client.is_gone() => Ok(()),
            written => Ok(written?),
        }
    }

    fn command(&mut self, verb: &str, path: &str) -> Result<()> {
        let known = self.shared.state.lock().files.get(path).map(Vec::len);
        match verb {
            "USER" => self.say("331 Password required."),
            "PASS" => self.say("230 Logged in."),
            "FEAT" => self.say(FEATURES),
            "MLST" => match known {
                Some(size) => self.say(&format!("250-status\r\n Type=file;Size={size}; {path}\r\n250 End.")),
                None => self.say("550 No such file or directory."),
            },
            "PASV" => {
                let listener = TcpListener::bind(("127.0.0.1", 0))?;
                let at = host_port(listener.local_addr()?)?;
                (self.listener, self.data) = (Some(listener), None);
                self.say(&format!("227 Entering Passive Mode ({at})"))
            }
            "CKSM" => {
                let sum = path.rsplit(' ').next().and_then(|path| self.sum(path));
                self.say(
                    &sum.map_or("550 No such file or directory.".to_owned(), |sum| format!("213 {sum:08x}")),
                )
            }
            "RETR" if known.is_none() => self.say("550 No such file or directory."),
            "RETR" => self.say("150 begins.\r\n226 done."),
            "STOR" => self.store(path),
            "RNFR" => {
                // GCT's server also checks for the file only at RNTO.
                self.renamed = Some(path.to_owned());
                self.say("350 and to what?")
            }
            "RNTO" => {
                let from = self.renamed.take().unwrap_or_default();
                self.say(match self.shared.rename(&from, path) {
                    true => "250 renamed.",
                    false => "500-Command failed. : System error in rename:\r\n500 No such file or directory",
                })
            }
            "DELE" => {
                let gone = self.shared.change(|state| state.files.remove(path));
                self.say(if gone.is_some() { "250 gone." } else { "550 No such file or directory." })
            }
            "ABOR" => self.say("226 broken off."),
            "MODE" | "TYPE" | "OPTS" | "NOOP" | "ALLO" | "PORT" | "MKD" => self.say("200 Ok."),
            _ => self.say("500 Command not supported."),
        }
    }

    fn sum(&self, path: &str) -> Option<u32> {
        let content = self.shared.state.lock().files.get(path)?.clone();
        let (a, b) = content.iter().fold((1, 0), |(a, b): (u32, u32), byte| {
            let a = (a + u32::from(*byte)) % 65521;
            (a, (a + b) % 65521)
        });
        Some(b << 16 | a)
    }

    fn store(&mut self, path: &str) -> Result<()> {
        self.say("150 begins.")?;
        let content = if self.takes_data { self.receive() } else { Ok(b"moved".to_vec()) };
        let Ok(content) = content else {
            self.data = None;
            return self.say("426 the data connection broke.");
        };
        self.shared.change(|state| {
            state.files.insert(path.to_owned(), content);
            state.stored += 1;
        });
        if !self.orphan {
            self.shared.wait(|state| state.orphans == 0);
        }
        self.say("226 done.")
    }

    /// Receives one file from a single MODE E stream.
    fn receive(&mut self) -> Result<Vec<u8>> {
        if self.data.is_none() {
            let listener = self.listener.take().context("no data connection")?;
            listener.set_nonblocking(true)?;
            let began = Instant::now();
            self.data = loop {
                match listener.accept() {
                    Ok((data, _)) => break Some(data),
                    Err(_) if self.client.is_gone() || began.elapsed() > PATIENCE => bail!("nobody came"),
                    Err(_) => thread::yield_now(),
                }
            };
        }
        let data = self.data.as_mut().context("no data connection")?;
        data.set_nonblocking(false)?;
        let mut content = Vec::new();
        loop {
            let mut header = [0; 17];
            data.read_exact(&mut header)?;
            let field = |at: usize| header[at..at + 8].iter().fold(0_u64, |n, b| n << 8 | u64::from(*b));
            let (count, offset) = (usize::try_from(field(1))?, usize::try_from(field(9))?);
            if count > 0 {
                content.resize(content.len().max(offset + count), 0);
                data.read_exact(&mut content[offset..offset + count])?;
            }
            if header[0] & EOD != 0 {
                return Ok(content);
            }
        }
    }
}
