//! Data connections bound to their session by one-time keys, and attempts to get at them without a
//! key.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ropewalk_gsi::ca::{self, Ca, CaOptions};
use ropewalk_gsi::{
    After, Expected, Identity, Initiator, InitiatorOptions, Session, Step, TlsSettings, Trust, decode_token,
    encode_token,
};
use ropewalk_layers::{KeyLayer, LayeredDriver, LayeredListener};
use ropewalk_server::{Config, Gsi, Server, ServerHandle};
use ropewalk_transport::{Connection, Driver, Listener, Options, Tcp};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(20);
const SECRET: [u8; 32] = [0x5a; 32];

struct Site {
    directory: TempDir,
    identity: Identity,
    address: SocketAddr,
    handle: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

impl Site {
    fn new(change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let options = CaOptions {
            namespace: "/O=Grid/OU=test".into(),
            common_name: "Test CA".into(),
            days: 30,
            bits: 2048,
            passphrase: None,
        };
        let authority = Ca::create(&at("ca"), &options).unwrap();
        authority.install(&at("certificates"), 10).unwrap();
        let host = authority.issue_host(&["localhost", "127.0.0.1"], 10).unwrap();
        ca::write_pair(&host, &at("hostcert.pem"), &at("hostkey.pem")).unwrap();
        let user = authority.issue_user("Test User", 10).unwrap();
        let trust = Arc::new(Trust::directory(at("certificates")));
        let identity = Identity::new(Arc::new(user), trust, &TlsSettings::default()).unwrap();
        let line = ca::gridmap_line("/O=Grid/OU=test/CN=Test User", &["grid"]);
        std::fs::write(at("gridmap"), line + "\n").unwrap();
        std::fs::create_dir(at("root")).unwrap();
        let mut config = Config::quick(SocketAddr::from(([127, 0, 0, 1], 0)), None, at("root"));
        config.gsi = Some(Gsi {
            certificate: Some(at("hostcert.pem")),
            key: Some(at("hostkey.pem")),
            authorities: Some(at("certificates")),
            gridmap: Some(at("gridmap")),
            ..Gsi::default()
        });
        // The user of the gridmap has no local account, even if root runs this.
        config.identity.mapped = false;
        config.data.connect_timeout = LIMIT;
        change(&mut config);
        let server = Server::bind(config).unwrap();
        let (address, handle) = (server.local_addrs()[0], server.handle());
        let thread = std::thread::spawn(move || server.run().unwrap());
        Self { directory, identity, address, handle, thread: Some(thread) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    /// A session that is protected and logged in, and has data connections without DCAU.
    fn log_in(&self) -> Control {
        let mut control = Control::connect(self.address);
        control.expect("AUTH GSSAPI", 334);
        let options = InitiatorOptions {
            expected: Expected::Anybody,
            delegate: None,
            after: After::Flag,
            server_name: None,
        };
        let mut initiator = Initiator::new(&self.identity, options).unwrap();
        let mut token = Vec::new();
        loop {
            let (out, session) = match initiator.step(&token).unwrap() {
                Step::Continue(out) => (out, None),
                Step::Done(out, session) => (out, Some(session)),
            };
            let reply = control.call(&format!("ADAT {}", encode_token(&out)));
            if session.is_some() {
                assert!(reply.starts_with("235"), "{reply}");
                control.session = session;
                break;
            }
            token = decode_token(&reply[4..]).unwrap();
        }
        control.expect("USER :globus-mapping:", 331);
        control.expect("PASS dummy", 230);
        control.expect("TYPE I", 200);
        control.expect("DCAU N", 200);
        control
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.handle.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Control {
    stream: BufReader<TcpStream>,
    session: Option<Box<Session>>,
}

impl Control {
    fn connect(address: SocketAddr) -> Self {
        let stream = stranger(address);
        stream.set_nodelay(true).unwrap();
        let mut control = Self { stream: BufReader::new(stream), session: None };
        assert!(control.reply().starts_with("220"));
        control
    }

    fn send(&mut self, line: &str) {
        let line = format!("{line}\r\n");
        let mut out = Vec::new();
        match &mut self.session {
            Some(session) => session.seal_command(line.as_bytes(), &mut out).unwrap(),
            None => out.extend_from_slice(line.as_bytes()),
        }
        self.stream.get_mut().write_all(&out).unwrap();
    }

    /// The last line of the next reply.
    fn reply(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            if let Some(session) = &mut self.session {
                line = String::from_utf8(session.open_reply(line.as_bytes()).unwrap()).unwrap();
            }
            assert!(!line.is_empty(), "closed");
            if line.as_bytes()[..3].iter().all(u8::is_ascii_digit) && line.as_bytes()[3] == b' ' {
                return line.trim_end().to_owned();
            }
        }
    }

    fn call(&mut self, line: &str) -> String {
        self.send(line);
        self.reply()
    }

    fn expect(&mut self, line: &str, code: u16) -> String {
        let reply = self.call(line);
        assert!(reply.starts_with(&code.to_string()), "{line}: {reply}");
        reply
    }

    /// The key is sent with the PASV, in one round trip.
    fn bound(&mut self, number: u64) -> SocketAddr {
        self.send(&key(number));
        self.send("PASV");
        assert!(self.reply().starts_with("200"));
        let reply = self.reply();
        let numbers = reply.split_once('(').unwrap().1.split_once(')').unwrap().0;
        let numbers: Vec<u8> = numbers.split(',').map(|n| n.parse().unwrap()).collect();
        SocketAddr::from(([127, 0, 0, 1], u16::from_be_bytes([numbers[4], numbers[5]])))
    }

    /// The final reply to a transfer.
    fn ends(&mut self, code: u16) -> String {
        loop {
            let reply = self.reply();
            if !reply.starts_with('1') {
                assert!(reply.starts_with(&code.to_string()), "{reply}");
                return reply;
            }
        }
    }
}

fn key(number: u64) -> String {
    format!("SITE DATAKEY {number:016x} {}", "5a".repeat(32))
}

fn port(address: SocketAddr) -> String {
    format!("PORT 127,0,0,1,{},{}", address.port() >> 8, address.port() & 255)
}

fn layer(number: u64) -> Arc<KeyLayer> {
    Arc::new(KeyLayer::new(number, &SECRET).unwrap())
}

fn connect(number: u64, address: SocketAddr) -> std::io::Result<Box<dyn Connection>> {
    let driver = LayeredDriver::new(Arc::new(Tcp), layer(number));
    let mut connection = driver.connect(address.into(), &Options::default(), LIMIT)?;
    connection.set_time_limit(LIMIT)?;
    Ok(connection)
}

fn stranger(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn gets_nothing(mut stream: TcpStream) {
    let mut got = Vec::new();
    match stream.read_to_end(&mut got) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
    }
    assert!(got.is_empty(), "{} bytes", got.len());
}

fn content() -> Vec<u8> {
    (0..200_000u32).flat_map(u32::to_le_bytes).collect()
}

#[test]
fn first_connection_without_key_gets_no_data() {
    let site = Site::new(|_| {});
    std::fs::write(site.path("file"), content()).unwrap();
    let mut control = site.log_in();
    let mut silents = Vec::new();
    for (number, late) in [(1, false), (2, true)] {
        let address = control.bound(number);
        if late {
            control.send("RETR file");
        }
        let silent = stranger(address);
        let mut rude = stranger(address);
        rude.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        if !late {
            control.send("RETR file");
        }
        let mut got = Vec::new();
        connect(number, address).unwrap().read_to_end(&mut got).unwrap();
        assert!(got == content(), "{} bytes", got.len());
        control.ends(226);
        gets_nothing(rude);
        silents.push(silent);
    }
    // The channel ends with the session at the latest.
    control.expect("QUIT", 221);
    silents.into_iter().for_each(gets_nothing);
}

/// The client would otherwise not know why its transfer is refused, and what to do.
#[test]
fn transfer_after_a_setting_that_closed_the_channel_is_refused_with_the_reason() {
    let site = Site::new(|_| {});
    std::fs::write(site.path("file"), "content").unwrap();
    let mut control = site.log_in();
    control.expect("PBSZ 1048576", 200);
    for (setting, back) in [("MODE E", "MODE S"), ("PROT P", "PROT C"), ("DCAU A", "DCAU N")] {
        control.expect("EPSV", 229);
        control.expect(setting, 200);
        let refused = control.expect("RETR file", 425);
        let expected = format!("{} has closed the data channel", &setting[..4]);
        assert!(
            refused.contains(&expected) && refused.contains("Send PASV, EPSV or PORT again"),
            "{refused}"
        );
        control.expect(back, 200);
    }
    let address = control.bound(1);
    control.send("RETR file");
    let mut got = Vec::new();
    connect(1, address).unwrap().read_to_end(&mut got).unwrap();
    assert_eq!(got, b"content");
    control.ends(226);
}

#[test]
fn connection_without_key_cannot_feed_upload() {
    let site = Site::new(|_| {});
    let mut control = site.log_in();
    // MODE S: the whole file of the neighbour, before the owner's.
    let address = control.bound(1);
    control.send("STOR stream");
    let mut neighbour = stranger(address);
    neighbour.write_all(b"evil").unwrap();
    drop(neighbour);
    let mut owner = connect(1, address).unwrap();
    owner.write_all(b"good").unwrap();
    owner.finish().unwrap();
    control.ends(226);
    assert_eq!(std::fs::read(site.path("stream")).unwrap(), b"good");
    // MODE E: a whole transfer of one block and its ends, and another one on a connection that was
    // bound before.
    control.expect("MODE E", 200);
    let block = |flags: u8, count: u64, offset: u64| {
        [&[flags][..], &count.to_be_bytes(), &offset.to_be_bytes()].concat()
    };
    // EOF and EOD, with one connection.
    let file = |text: &[u8]| [&block(0, 4, 0), text, &block(0x48, 0, 1)].concat();
    let address = control.bound(2);
    let (mut owner, mut neighbours) = (None, Vec::new());
    for name in ["first", "second"] {
        control.send(&format!("STOR {name}"));
        let mut neighbour = stranger(address);
        neighbour.write_all(&file(b"evil")).unwrap();
        let owner = owner.get_or_insert_with(|| connect(2, address).unwrap());
        owner.write_all(&file(b"good")).unwrap();
        control.ends(226);
        assert_eq!(std::fs::read(site.path(name)).unwrap(), b"good");
        neighbours.push(neighbour);
    }
    control.expect("QUIT", 221);
    neighbours.into_iter().for_each(gets_nothing);
}

/// Connects from another address of this host.
fn stranger_from(address: [u8; 4], to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&stream, &SocketAddr::from((address, 0))).unwrap();
    connect(&stream, &to).unwrap();
    stream.into()
}

/// The server has at most 256 of them open, and the client's further streams come through.
#[test]
fn silent_strangers_during_a_transfer_are_limited_and_keep_no_stream_out() {
    const STRANGERS: u32 = 600;
    const MOST: u32 = 256;
    let site = Site::new(|_| {});
    let mut control = site.log_in();
    control.expect("MODE E", 200);
    let address = control.bound(1);
    control.send("STOR file");
    let block = |flags: u8, count: u64, offset: u64, text: &[u8]| {
        [&[flags][..], &count.to_be_bytes(), &offset.to_be_bytes(), text].concat()
    };
    let mut first = connect(1, address).unwrap();
    first.write_all(&block(0, 4, 0, b"0123")).unwrap();
    let strangers: Vec<_> =
        (0..STRANGERS).map(|at| stranger_from([127, 0, 0, 2 + (at % 200) as u8], address)).collect();
    // The server takes connections in order: this one is behind all strangers.
    let mut second = connect(1, address).unwrap();
    let is_closed = |mut stranger: &TcpStream| {
        stranger.set_nonblocking(true).unwrap();
        matches!(stranger.read(&mut [0]), Ok(0))
    };
    let closed = strangers.iter().filter(|stranger| is_closed(stranger)).count();
    assert!(closed >= (STRANGERS - MOST) as usize, "{closed} of {STRANGERS}");
    second.write_all(&block(0x08, 4, 4, b"4567")).unwrap();
    // EOF and EOD, with two connections.
    first.write_all(&block(0x48, 0, 2, b"")).unwrap();
    control.ends(226);
    assert_eq!(std::fs::read(site.path("file")).unwrap(), b"01234567");
}

#[test]
fn active_channel_to_wrong_port_gets_no_data() {
    let site = Site::new(|_| {});
    std::fs::write(site.path("file"), content()).unwrap();
    let mut control = site.log_in();
    let thief = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    control.expect(&key(1), 200);
    control.expect(&port(thief.local_addr().unwrap()), 200);
    control.send("RETR file");
    let (mut stream, _) = thief.accept().unwrap();
    stream.write_all(&[b'x'; 200]).unwrap();
    let reply = control.ends(425);
    assert!(reply.len() > 3);
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    assert!(got.len() <= 30 && got.starts_with(b"RWDK"), "{} bytes", got.len());
    // The owner's listener, behind it.
    let inner = Tcp.listen(SocketAddr::from(([127, 0, 0, 1], 0)).into(), &Options::default()).unwrap();
    let address = inner.local_addr().unwrap().socket().unwrap();
    let listener = LayeredListener::new(inner, layer(2)).unwrap();
    control.expect(&key(2), 200);
    control.expect(&port(address), 200);
    control.send("RETR file");
    let mut connection = listener.accept(Instant::now() + LIMIT).unwrap().unwrap();
    connection.set_time_limit(LIMIT).unwrap();
    let mut got = Vec::new();
    connection.read_to_end(&mut got).unwrap();
    assert!(got == content());
    control.ends(226);
}

#[test]
fn data_key_of_another_channel_is_refused() {
    let site = Site::new(|_| {});
    std::fs::write(site.path("file"), content()).unwrap();
    let mut control = site.log_in();
    control.bound(1);
    let address = control.bound(2);
    control.send("RETR file");
    assert!(connect(1, address).is_err());
    let mut got = Vec::new();
    connect(2, address).unwrap().read_to_end(&mut got).unwrap();
    assert!(got == content());
    control.ends(226);
    // The key was used before.
    let reply = control.expect(&key(2), 501);
    assert!(reply.contains("is not new"), "{reply}");
    // A key that a session sends in clear is refused.
    let mut clear = Control::connect(site.address);
    clear.expect("USER anonymous", 331);
    clear.call("PASS x");
    assert!(!clear.call(&key(3)).starts_with('2'));
}

#[test]
fn channel_without_required_key_is_refused() {
    let site = Site::new(|config| config.data.require_key = true);
    std::fs::write(site.path("file"), content()).unwrap();
    let mut control = site.log_in();
    for line in ["PASV", "EPSV", "SPAS", "PORT 127,0,0,1,200,0"] {
        let reply = control.expect(line, 521);
        assert!(reply.contains("SITE DATAKEY"), "{reply}");
    }
    control.expect("RETR file", 500);
    // PROT without DCAU protects nothing, as in GCT.
    control.expect("PROT P", 200);
    control.expect("PASV", 521);
    control.expect("PROT C", 200);
    let address = control.bound(1);
    control.send("RETR file");
    let mut got = Vec::new();
    connect(1, address).unwrap().read_to_end(&mut got).unwrap();
    assert!(got == content());
    control.ends(226);
}

#[test]
fn added_streams_are_bound_to_key() {
    let site = Site::new(|_| {});
    std::fs::File::create(site.path("large")).unwrap().set_len(256 << 20).unwrap();
    let mut control = site.log_in();
    let inner = Tcp.listen(SocketAddr::from(([127, 0, 0, 1], 0)).into(), &Options::default()).unwrap();
    let address = inner.local_addr().unwrap().socket().unwrap();
    let listener = LayeredListener::new(inner, layer(1)).unwrap();
    control.expect("MODE E", 200);
    control.expect("OPTS RETR Parallelism=1,1,1;", 200);
    control.expect(&key(1), 200);
    control.expect(&port(address), 200);
    control.send("RETR large");
    let accept = || listener.accept(Instant::now() + LIMIT).unwrap().unwrap();
    // The data is not read: the transfer continues until the streams are there.
    let first = accept();
    control.send("SITE STREAMS 3");
    drop((first, accept(), accept()));
    control.ends(426);
}
