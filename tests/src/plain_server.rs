//! An FTP server without GridFTP extensions whose single directory and its listing are defined by
//! the test.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Result;
use parking_lot::Mutex;

use crate::control::host_port;

/// The files of the server and its deviations from usual behaviour.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// The files that exist, whether listed or not. Uploads are added here.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Names of existing, empty directories.
    pub directories: Vec<String>,
    /// The server supports MLST and MLSD; otherwise only LIST.
    pub facts: bool,
    /// The lines of the listing; `None`: one line for each existing file.
    pub listing: Option<Vec<String>>,
    /// The reply after a listing; empty: 226.
    pub listed: String,
    /// File names are case-insensitive.
    pub folds: bool,
    /// The reply to PASV, with `@` in place of the address; empty: the usual reply.
    pub passive: String,
}

#[derive(Debug)]
pub struct PlainServer {
    address: SocketAddr,
    offer: Arc<Mutex<Offer>>,
    over: Arc<AtomicBool>,
}

impl PlainServer {
    pub fn start(offer: Offer) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let (offer, over) = (Arc::new(Mutex::new(offer)), Arc::new(AtomicBool::new(false)));
        let (offered, ended) = (offer.clone(), over.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if ended.load(Ordering::SeqCst) {
                    break;
                }
                let offer = offered.clone();
                thread::spawn(move || session(client, &offer));
            }
        });
        Ok(Self { address, offer, over })
    }

    pub fn url(&self) -> String {
        format!("ftp://{}/", self.address)
    }

    /// Returns the names of the files that exist now.
    pub fn names(&self) -> Vec<String> {
        self.offer.lock().files.keys().cloned().collect()
    }
}

impl Drop for PlainServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn session(client: TcpStream, offer: &Mutex<Offer>) -> Result<()> {
    let mut control = client.try_clone()?;
    let mut say = move |reply: String| control.write_all(format!("{reply}\r\n").as_bytes());
    let mut data: Option<TcpListener> = None;
    let mut renamed = String::new();
    say("220 ready.".to_owned())?;
    for line in BufReader::new(client).lines() {
        let line = line?;
        let (verb, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let name = argument.trim_start_matches("-a ").trim_start_matches('/');
        let there = |offer: &Offer| offer.files.get(name).cloned();
        let reply = match verb {
            "USER" => "331 Password required.".to_owned(),
            "PASS" => "230 Logged in.".to_owned(),
            "FEAT" => {
                let facts = if offer.lock().facts { " MLST type*;size*;modify*;\r\n" } else { "" };
                format!("211-Features\r\n SIZE\r\n MDTM\r\n REST STREAM\r\n{facts}211 End.")
            }
            "TYPE" | "OPTS" | "NOOP" => "200 Ok.".to_owned(),
            "PWD" => "257 \"/\"".to_owned(),
            "CWD" if name.is_empty() || offer.lock().directories.iter().any(|there| there == name) => {
                "250 Ok.".to_owned()
            }
            "MLST" if !offer.lock().facts => "500 Unknown command.".to_owned(),
            "MLST" if name.is_empty() => "250-Status\r\n type=dir; /\r\n250 End.".to_owned(),
            "MLST" => match there(&offer.lock()) {
                Some(file) => format!("250-Status\r\n {}{argument}\r\n250 End.", facts(&file)),
                None => "550 No such file.".to_owned(),
            },
            "SIZE" => match there(&offer.lock()) {
                Some(file) => format!("213 {}", file.len()),
                None => "550 No such file.".to_owned(),
            },
            "MDTM" if there(&offer.lock()).is_some() => "213 20010203040506".to_owned(),
            "PASV" => {
                let listener = TcpListener::bind(("127.0.0.1", 0))?;
                let at = host_port(listener.local_addr()?)?;
                data = Some(listener);
                let passive = offer.lock().passive.clone();
                if passive.is_empty() {
                    format!("227 Entering Passive Mode ({at})")
                } else {
                    passive.replace('@', &at)
                }
            }
            "LIST" if offer.lock().directories.iter().any(|there| there == name) => {
                send(&mut say, data.take(), b"")?;
                "226 Done.".to_owned()
            }
            "MLSD" | "LIST" if name.is_empty() && (verb == "LIST" || offer.lock().facts) => {
                let (lines, listed) = {
                    let offer = offer.lock();
                    (listing(&offer), offer.listed.clone())
                };
                send(&mut say, data.take(), lines.as_bytes())?;
                if listed.is_empty() { "226 Done.".to_owned() } else { listed }
            }
            "RETR" => match offer.lock().files.get(name).cloned() {
                Some(file) => {
                    send(&mut say, data.take(), &file)?;
                    "226 Done.".to_owned()
                }
                None => "550 No such file.".to_owned(),
            },
            "STOR" => {
                let mut file = Vec::new();
                say("150 Here.".to_owned())?;
                if let Some(listener) = data.take() {
                    std::io::copy(&mut listener.accept()?.0, &mut file)?;
                }
                put(&mut offer.lock(), name, file);
                "226 Done.".to_owned()
            }
            "RNFR" => {
                name.clone_into(&mut renamed);
                "350 Go on.".to_owned()
            }
            "RNTO" => {
                let mut offer = offer.lock();
                let file = offer.files.remove(&renamed).unwrap_or_default();
                put(&mut offer, name, file);
                "250 Ok.".to_owned()
            }
            "DELE" if offer.lock().files.remove(name).is_some() => "250 Ok.".to_owned(),
            "CWD" | "MDTM" | "DELE" | "MKD" | "RMD" | "MLSD" | "LIST" => {
                "550 No such file or directory.".to_owned()
            }
            "QUIT" => {
                say("221 Goodbye.".to_owned())?;
                return Ok(());
            }
            _ => "500 Unknown command.".to_owned(),
        };
        say(reply)?;
    }
    Ok(())
}

fn facts(file: &[u8]) -> String {
    format!("type=file;size={};modify=20010203040506; ", file.len())
}

fn listing(offer: &Offer) -> String {
    let lines: Vec<String> = match &offer.listing {
        Some(lines) => lines.clone(),
        None if offer.facts => offer.files.iter().map(|(name, file)| facts(file) + name).collect(),
        None => {
            let line = |(name, file): (&String, &Vec<u8>)| {
                format!("-rw-r--r-- 1 o g {} Feb  3  2001 {name}", file.len())
            };
            offer.files.iter().map(line).collect()
        }
    };
    lines.into_iter().map(|line| line + "\r\n").collect()
}

fn put(offer: &mut Offer, name: &str, file: Vec<u8>) {
    let same = |there: &&String| offer.folds && there.eq_ignore_ascii_case(name);
    let name = offer.files.keys().find(same).cloned().unwrap_or_else(|| name.to_owned());
    offer.files.insert(name, file);
}

fn send(
    say: &mut impl FnMut(String) -> std::io::Result<()>,
    data: Option<TcpListener>,
    bytes: &[u8],
) -> Result<()> {
    say("150 Here.".to_owned())?;
    if let Some(listener) = data {
        listener.accept()?.0.write_all(bytes)?;
    }
    Ok(())
}
