//! An FTP server for tests that behaves correctly up to the first command that moves or sums a
//! file, and then runs a script of the test.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, bail};
use parking_lot::Mutex;

use crate::control::{host_port, parse_host_port};

/// How the server reaches the data connection of a transfer.
#[derive(Debug)]
pub enum Data {
    /// The command needs none.
    None,
    Connect(SocketAddr),
    Listen(TcpListener),
}

impl Data {
    /// Opens one data connection.
    pub fn open(&self) -> Result<TcpStream> {
        match self {
            Self::None => bail!("no data connection"),
            Self::Connect(address) => Ok(TcpStream::connect(address)?),
            Self::Listen(listener) => Ok(listener.accept()?.0),
        }
    }
}

/// Runs at each transfer command, and at CKSM. Its arguments are the verb, the source of data
/// connections, and the control connection for replies.
pub type Script = dyn Fn(&str, &Data, &mut TcpStream) -> Result<()> + Send + Sync;

#[derive(Debug)]
pub struct FakeServer {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    commands: Arc<Mutex<Vec<String>>>,
}

impl FakeServer {
    /// Starts a server that reports `size` bytes for every file.
    pub fn start(size: u64, script: Arc<Script>) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let over = Arc::new(AtomicBool::new(false));
        let ended = over.clone();
        let commands = Arc::new(Mutex::new(Vec::new()));
        let record = commands.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if ended.load(Ordering::SeqCst) {
                    break;
                }
                let (script, record) = (script.clone(), record.clone());
                thread::spawn(move || session(client, size, &*script, &record));
            }
        });
        Ok(Self { address, over, commands })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the commands of all sessions so far.
    pub fn commands(&self) -> Vec<String> {
        self.commands.lock().clone()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

const FEATURES: &str = "211-Extensions supported\r\n SIZE\r\n MDTM\r\n REST STREAM\r\n PARALLEL\r\n ERET\r\n ESTO\r\n \
                        MLST Type*;Size*;Modify*;\r\n211 End.\r\n";

fn session(client: TcpStream, size: u64, script: &Script, commands: &Mutex<Vec<String>>) -> Result<()> {
    let mut control = client.try_clone()?;
    let mut lines = BufReader::new(client);
    let mut data = None;
    control.write_all(b"220 ready.\r\n")?;
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        let text = line.trim_end().to_owned();
        line.clear();
        commands.lock().push(text.clone());
        let (verb, argument) = text.split_once(' ').unwrap_or((&text, ""));
        let verb = verb.to_ascii_uppercase();
        let reply = match verb.as_str() {
            "USER" => "331 Password required.\r\n".to_owned(),
            "PASS" => "230 Logged in.\r\n".to_owned(),
            "FEAT" => FEATURES.to_owned(),
            "SIZE" => format!("213 {size}\r\n"),
            "MDTM" => "213 20260101000000\r\n".to_owned(),
            "MLST" => format!(
                "250-status\r\n Type=file;Size={size};Modify=20260101000000; {argument}\r\n250 End.\r\n"
            ),
            "REST" => "350 Send STORE or RETR to initiate transfer.\r\n".to_owned(),
            "PASV" => {
                let listener = TcpListener::bind(("127.0.0.1", 0))?;
                let at = host_port(listener.local_addr()?)?;
                data = Some(Data::Listen(listener));
                format!("227 Entering Passive Mode ({at})\r\n")
            }
            "PORT" => {
                data = parse_host_port(argument).map(Data::Connect);
                "200 PORT Command successful.\r\n".to_owned()
            }
            "MODE" | "TYPE" | "OPTS" | "NOOP" | "ALLO" | "PBSZ" => "200 Ok.\r\n".to_owned(),
            "RETR" | "STOR" | "ERET" | "ESTO" | "APPE" => match &data {
                Some(data) => {
                    script(&verb, data, &mut control)?;
                    continue;
                }
                None => "425 No data connection.\r\n".to_owned(),
            },
            "CKSM" => {
                script(&verb, &Data::None, &mut control)?;
                continue;
            }
            "QUIT" => {
                control.write_all(b"221 Goodbye.\r\n")?;
                return Ok(());
            }
            _ => "500 Command not supported.\r\n".to_owned(),
        };
        control.write_all(reply.as_bytes())?;
    }
    Ok(())
}
