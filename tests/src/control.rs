//! A bare control connection for tests that send arbitrary commands and inspect the replies.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

const PATIENCE: Duration = Duration::from_secs(20);

/// A reply; `text` holds its lines, joined by `\n`.
#[derive(Clone, Debug)]
pub struct Reply {
    pub code: u16,
    pub text: String,
}

#[derive(Debug)]
pub struct Control {
    reader: BufReader<TcpStream>,
    peer: SocketAddr,
}

impl Control {
    /// Connects and reads the greeting.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let mut control = Self::connect_silently(address)?;
        let greeting = control.reply()?;
        ensure!(greeting.code == 220, "greeting: {greeting:?}");
        Ok(control)
    }

    pub fn connect_silently(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)
            .with_context(|| format!("connecting to {address}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::with_capacity(512, stream), peer: address })
    }

    /// Connects, logs in as `anonymous`, and sets TYPE I.
    pub fn log_in(address: SocketAddr) -> Result<Self> {
        let mut control = Self::connect(address)?;
        let user = control.command("USER anonymous")?;
        if user.code == 331 {
            control.expect("PASS test@", 230)?;
        } else {
            ensure!(user.code == 230, "USER anonymous: {user:?}");
        }
        control.expect("TYPE I", 200)?;
        Ok(control)
    }

    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.reader.get_mut().write_all(bytes)?)
    }

    pub fn send(&mut self, line: impl AsRef<[u8]>) -> Result<()> {
        let mut bytes = line.as_ref().to_vec();
        bytes.extend_from_slice(b"\r\n");
        self.send_raw(&bytes)
    }

    /// Returns the next reply, which may be preliminary (1xx).
    pub fn reply(&mut self) -> Result<Reply> {
        let mut line = self.line()?;
        let code: u16 =
            line.get(..3).and_then(|c| c.parse().ok()).with_context(|| format!("not a reply: {line:?}"))?;
        let mut text = line.clone();
        let last = format!("{code} ");
        if line.as_bytes().get(3) == Some(&b'-') {
            while !line.starts_with(&last) {
                line = self.line()?;
                text.push('\n');
                text.push_str(&line);
            }
        }
        Ok(Reply { code, text })
    }

    /// Returns the next reply that is not preliminary.
    pub fn final_reply(&mut self) -> Result<Reply> {
        loop {
            let reply = self.reply()?;
            if reply.code >= 200 {
                return Ok(reply);
            }
        }
    }

    pub fn command(&mut self, line: impl AsRef<[u8]>) -> Result<Reply> {
        self.send(line)?;
        self.final_reply()
    }

    /// Sends a command and fails unless its final reply has `code`.
    pub fn expect(&mut self, line: impl AsRef<[u8]>, code: u16) -> Result<Reply> {
        let line = line.as_ref();
        let reply = self.command(line)?;
        ensure!(
            reply.code == code,
            "{:?} was answered by {reply:?}, not {code}",
            String::from_utf8_lossy(line)
        );
        Ok(reply)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        let read = self.reader.read_until(b'\n', &mut line).context("waiting for a reply")?;
        ensure!(read > 0, "the control connection was closed");
        Ok(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Returns true if the server closes the connection before the read timeout.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.reader.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }

    /// Sends `PASV` and returns the address from the reply.
    pub fn passive(&mut self) -> Result<SocketAddr> {
        let reply = self.expect("PASV", 227)?;
        parse_host_port(&reply.text).with_context(|| format!("no address in {reply:?}"))
    }

    /// Sends `PASV` and connects to the address from the reply.
    pub fn open_data(&mut self) -> Result<TcpStream> {
        let address = self.passive()?;
        connect_data(address)
    }

    /// Listens on a loopback port and announces it with `PORT`.
    pub fn listen_for_data(&mut self) -> Result<TcpListener> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        self.expect(format!("PORT 127,0,0,1,{},{}", port >> 8, port & 255), 200)?;
        Ok(listener)
    }

    /// Sends `RETR` in stream mode and returns the data and the final reply.
    pub fn retrieve(&mut self, path: &str) -> Result<(Vec<u8>, Reply)> {
        let address = self.passive()?;
        self.send(format!("RETR {path}"))?;
        let mut data = connect_data(address)?;
        let first = self.reply()?;
        if first.code >= 400 {
            return Ok((Vec::new(), first));
        }
        let mut all = Vec::new();
        data.read_to_end(&mut all)?;
        Ok((all, self.final_reply()?))
    }

    /// Sends `STOR` in stream mode and returns the final reply.
    pub fn store(&mut self, path: &str, content: &[u8]) -> Result<Reply> {
        let address = self.passive()?;
        self.send(format!("STOR {path}"))?;
        let mut data = connect_data(address)?;
        let first = self.reply()?;
        if first.code >= 400 {
            return Ok(first);
        }
        data.write_all(content)?;
        drop(data);
        self.final_reply()
    }

    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
}

/// Opens a data connection with timeouts.
pub fn connect_data(address: SocketAddr) -> Result<TcpStream> {
    let data = TcpStream::connect_timeout(&address, PATIENCE)
        .with_context(|| format!("data connection to {address}"))?;
    data.set_read_timeout(Some(PATIENCE))?;
    data.set_write_timeout(Some(PATIENCE))?;
    Ok(data)
}

/// Returns the first `h,h,h,h,p,p` in `text` as an address.
pub fn parse_host_port(text: &str) -> Option<SocketAddr> {
    for word in text.split(|c: char| !c.is_ascii_digit() && c != ',') {
        let numbers: Option<Vec<u8>> = word.split(',').map(|n| n.parse().ok()).collect();
        if let Some([a, b, c, d, high, low]) = numbers.as_deref() {
            return Some(SocketAddr::from(([*a, *b, *c, *d], u16::from(*high) << 8 | u16::from(*low))));
        }
    }
    None
}

/// Returns an IPv4 address as `h,h,h,h,p,p`.
pub fn host_port(address: SocketAddr) -> Result<String> {
    let SocketAddr::V4(address) = address else { bail!("{address} is not IPv4") };
    let [a, b, c, d] = address.ip().octets();
    Ok(format!("{a},{b},{c},{d},{},{}", address.port() >> 8, address.port() & 255))
}
