//! The client's side of a control connection for tests, one step at a time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::{Initiator, Session, Step, decode_token, encode_token};

const LIMIT: Duration = Duration::from_secs(60);

/// A control connection. It panics if the server deviates from the protocol.
pub struct Control {
    stream: BufReader<TcpStream>,
    session: Option<Session>,
    /// The arguments of ADAT that were sent.
    pub sent: Vec<String>,
}

impl Control {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut control = Self { stream: BufReader::new(stream), session: None, sent: Vec::new() };
        assert!(control.reply().starts_with("220"));
        control
    }

    /// Reads a line without unprotecting it; empty if the server has closed the connection.
    pub fn raw_line(&mut self) -> String {
        let mut line = Vec::new();
        // A connection reset counts as an end, too.
        let _ = self.stream.read_until(b'\n', &mut line);
        String::from_utf8(line).unwrap()
    }

    fn line(&mut self) -> String {
        let line = self.raw_line();
        assert!(!line.is_empty(), "the server hung up");
        match &mut self.session {
            Some(session) => String::from_utf8(session.open_reply(line.as_bytes()).unwrap()).unwrap(),
            None => line,
        }
    }

    pub fn reply(&mut self) -> String {
        let first = self.line();
        let end = format!("{} ", &first[..3]);
        let mut all = first.clone();
        if first.as_bytes()[3] == b'-' {
            loop {
                let line = self.line();
                all.push_str(&line);
                if line.starts_with(&end) {
                    break;
                }
            }
        }
        all
    }

    /// Sends bytes unprotected.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    pub fn send(&mut self, command: &str) {
        let line = format!("{command}\r\n");
        let mut out = Vec::new();
        match &mut self.session {
            Some(session) => session.seal_command(line.as_bytes(), &mut out).unwrap(),
            None => out.extend_from_slice(line.as_bytes()),
        }
        self.send_raw(&out);
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.reply()
    }

    /// Runs AUTH and ADAT to the end. The error is the server's reply if the server refuses, or the
    /// error of the initiator if this side refuses.
    ///
    /// # Errors
    /// The same errors as [`Control::authenticate_with`].
    pub fn authenticate(&mut self, initiator: Initiator) -> Result<(), String> {
        self.authenticate_with(initiator, "")
    }

    /// Like [`Control::authenticate`]; `behind` is sent in clear immediately after the last token.
    ///
    /// # Errors
    /// The server or the initiator refuses.
    pub fn authenticate_with(&mut self, mut initiator: Initiator, behind: &str) -> Result<(), String> {
        assert!(self.ask("AUTH GSSAPI").starts_with("334"));
        let mut token = Vec::new();
        loop {
            let (out, session) = match initiator.step(&token).map_err(|error| error.to_string())? {
                Step::Continue(out) => (out, None),
                Step::Done(out, session) => (out, Some(*session)),
            };
            let text = encode_token(&out);
            let behind = if session.is_some() { behind } else { "" };
            self.send_raw(format!("ADAT {text}\r\n{behind}").as_bytes());
            self.sent.push(text);
            let answer = self.reply();
            match session {
                Some(session) if answer.starts_with("235") => {
                    self.session = Some(session);
                    return Ok(());
                }
                None if answer.starts_with("335 ") => token = decode_token(&answer[4..]).unwrap(),
                _ => return Err(answer),
            }
        }
    }

    /// Logs in with the account of the gridmap.
    pub fn log_in(&mut self) {
        assert!(self.ask("USER :globus-mapping:").starts_with("331"));
        let answer = self.ask("PASS dummy");
        assert!(answer.starts_with("230"), "{answer}");
    }

    /// Sends PASV and returns the address of the server's listener.
    pub fn passive(&mut self) -> SocketAddr {
        let answer = self.ask("PASV");
        assert!(answer.starts_with("227"), "{answer}");
        let numbers: Vec<u16> = answer[answer.find('(').unwrap() + 1..answer.find(')').unwrap()]
            .split(',')
            .map(|number| number.parse().unwrap())
            .collect();
        SocketAddr::from(([127, 0, 0, 1], numbers[4] << 8 | numbers[5]))
    }

    /// The security context, for tests that protect messages themselves.
    pub fn session(&mut self) -> Option<&mut Session> {
        self.session.as_mut()
    }
}

/// Performs a handshake on a connection as its initiator. Returns `None` if the peer closes the
/// connection.
///
/// # Panics
/// The initiator refuses the peer.
pub fn secure(stream: &mut TcpStream, mut initiator: Initiator) -> Option<Session> {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut buffer = vec![0; 16 << 10];
    let mut count = 0;
    loop {
        match initiator.step(&buffer[..count]).unwrap() {
            Step::Continue(out) => stream.write_all(&out).ok()?,
            Step::Done(out, session) => {
                stream.write_all(&out).ok()?;
                return Some(*session);
            }
        }
        count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
    }
}
