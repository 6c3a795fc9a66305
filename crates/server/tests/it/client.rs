//! A client that sends exactly what the test asks for.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::Duration;

use ropewalk_transport::TcpInfo;

/// A test fails instead of waiting forever.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    /// All lines without their ends, joined with `|`.
    pub(crate) text: String,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let mut client = Self::open(address);
        client.expect(220);
        client
    }

    /// Connects from another address of this host.
    pub(crate) fn connect_from(from: IpAddr, address: SocketAddr) -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        let mut client = Self::of(socket.into());
        client.expect(220);
        client
    }

    /// Connects without reading the greeting.
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).unwrap())
    }

    fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn login(&mut self, user: &str, password: &str) {
        self.command(&format!("USER {user}"), 331);
        self.command(&format!("PASS {password}"), 230);
        self.command("TYPE I", 200);
    }

    /// TCP segments with data that have come from the server.
    pub(crate) fn segments(&self) -> u32 {
        TcpInfo::of(self.stream.get_ref().as_fd()).unwrap().data_segments_received.unwrap()
    }

    pub(crate) fn send(&mut self, line: &str) {
        self.send_bytes(format!("{line}\r\n").as_bytes());
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// `None` at the end of the connection.
    pub(crate) fn try_reply(&mut self) -> Option<Reply> {
        let mut lines = Vec::new();
        loop {
            let mut line = Vec::new();
            match self.stream.read_until(b'\n', &mut line) {
                Ok(0) => {
                    assert!(lines.is_empty(), "cut off: {lines:?}");
                    return None;
                }
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return None,
                other => drop(other.unwrap()),
            }
            assert!(line.ends_with(b"\r\n"), "{:?}", String::from_utf8_lossy(&line));
            let line = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let last = line.len() >= 4 && line.as_bytes()[3] == b' ' && line[..3].parse::<u16>().is_ok();
            lines.push(line);
            if last && lines[0][..3] == lines[lines.len() - 1][..3] {
                return Some(Reply { code: lines[0][..3].parse().unwrap(), text: lines.join("|") });
            }
        }
    }

    pub(crate) fn reply(&mut self) -> Reply {
        self.try_reply().expect("the server closed the connection")
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, code: u16) -> String {
        let reply = self.reply();
        assert_eq!(reply.code, code, "{}", reply.text);
        reply.text
    }

    #[track_caller]
    pub(crate) fn expect_end(&mut self) {
        assert_eq!(self.try_reply(), None);
    }

    #[track_caller]
    pub(crate) fn command(&mut self, line: &str, code: u16) -> String {
        self.send(line);
        let reply = self.reply();
        assert_eq!(reply.code, code, "{line}: {}", reply.text);
        reply.text
    }

    /// Ends the client's side of the control connection.
    pub(crate) fn shut(&self) {
        self.stream.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    }

    pub(crate) fn writer(&self) -> TcpStream {
        self.stream.get_ref().try_clone().unwrap()
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.stream.get_ref().local_addr().unwrap()
    }

    pub(crate) fn pasv(&mut self) -> SocketAddr {
        let text = self.command("PASV", 227);
        parse_227(&text)
    }

    /// Sends PASV, and connects.
    pub(crate) fn data(&mut self) -> TcpStream {
        let address = self.pasv();
        connect(address)
    }

    /// Sends PORT with a new listener.
    pub(crate) fn port(&mut self) -> TcpListener {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        self.command(&port_command(listener.local_addr().unwrap()), 200);
        listener
    }

    /// Downloads in stream mode.
    pub(crate) fn get(&mut self, command: &str) -> Vec<u8> {
        let mut data = self.data();
        self.command(command, 150);
        let mut bytes = Vec::new();
        data.read_to_end(&mut bytes).unwrap();
        self.expect(226);
        bytes
    }

    /// Uploads in stream mode, and returns the final reply.
    pub(crate) fn put(&mut self, command: &str, bytes: &[u8]) -> Reply {
        let mut data = self.data();
        self.command(command, 150);
        data.write_all(bytes).unwrap();
        drop(data);
        self.reply()
    }

    /// The final reply to a transfer.
    pub(crate) fn end(&mut self) -> Reply {
        loop {
            let reply = self.reply();
            if reply.code >= 200 {
                return reply;
            }
        }
    }

    /// As [`Self::put`], but the upload may be refused.
    pub(crate) fn try_put(&mut self, command: &str, bytes: &[u8]) -> Reply {
        let mut data = self.data();
        self.send(command);
        let reply = self.reply();
        if reply.code >= 200 {
            return reply;
        }
        data.write_all(bytes).unwrap();
        drop(data);
        self.reply()
    }

    /// The lines of a listing.
    pub(crate) fn list(&mut self, command: &str) -> Vec<String> {
        let bytes = self.get(command);
        let text = String::from_utf8(bytes).unwrap();
        text.split_terminator("\r\n").map(str::to_owned).collect()
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn parse_227(text: &str) -> SocketAddr {
    let inner = text.split_once('(').unwrap().1.split_once(')').unwrap().0;
    let n: Vec<u8> = inner.split(',').map(|n| n.parse().unwrap()).collect();
    SocketAddr::from(([n[0], n[1], n[2], n[3]], u16::from_be_bytes([n[4], n[5]])))
}

pub(crate) fn port_command(address: SocketAddr) -> String {
    let IpAddr::V4(ip) = address.ip() else { unreachable!() };
    let [a, b, c, d] = ip.octets();
    let [high, low] = address.port().to_be_bytes();
    format!("PORT {a},{b},{c},{d},{high},{low}")
}

pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}
