//! Clients that misbehave, stop half-way or use another identity, at the Ropewalk server.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use ropewalk_tests::control::{Control, parse_host_port};
use ropewalk_tests::process;
use ropewalk_tls::{Client, ClientSettings, Established, Handshake, SslVersion, Ticket};

use crate::site::{LIMIT, Site, client};

const PATIENCE: Duration = Duration::from_secs(20);

/// TLS over a socket, controlled byte by byte.
struct Wire {
    tcp: TcpStream,
    established: Box<Established>,
    plain: Vec<u8>,
}

impl Wire {
    fn over(mut tcp: TcpStream, mut handshake: Handshake) -> io::Result<Self> {
        tcp.set_read_timeout(Some(PATIENCE))?;
        let (mut buffer, mut count) = ([0; 4096], 0);
        loop {
            let mut out = Vec::new();
            let step = handshake.step(&buffer[..count], &mut out);
            tcp.write_all(&out)?;
            if let Some(established) = step.map_err(io::Error::other)? {
                let mut wire = Self { tcp, established, plain: Vec::new() };
                wire.open(&[])?;
                return Ok(wire);
            }
            count = tcp.read(&mut buffer)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// `false` after the end of TLS.
    fn open(&mut self, bytes: &[u8]) -> io::Result<bool> {
        self.established.records.open(bytes, &mut self.plain).map_err(io::Error::other)
    }

    fn send(&mut self, plain: &[u8]) -> io::Result<()> {
        let mut out = Vec::new();
        self.established.records.seal(plain, &mut out).map_err(io::Error::other)?;
        self.tcp.write_all(&out)
    }

    /// Ends TLS, and waits for the peer to close the connection.
    fn finish(mut self) {
        let mut out = Vec::new();
        self.established.records.close(&mut out).unwrap();
        self.tcp.write_all(&out).unwrap();
        let _ = self.tcp.read_to_end(&mut Vec::new());
    }

    /// The next final reply.
    fn reply(&mut self) -> io::Result<String> {
        loop {
            while let Some(end) = self.plain.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.plain.drain(..end + 2).collect();
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if line.as_bytes().first() != Some(&b'1') && line.as_bytes().get(3) == Some(&b' ') {
                    return Ok(line);
                }
            }
            let mut buffer = [0; 4096];
            let count = self.tcp.read(&mut buffer)?;
            if count == 0 || !self.open(&buffer[..count])? && self.plain.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn command(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n").as_bytes()).unwrap();
        self.reply().unwrap()
    }

    fn passive(&mut self) -> SocketAddr {
        parse_host_port(&self.command("PASV")).unwrap()
    }

    fn ticket(&self) -> Ticket {
        self.established.ticket().unwrap()
    }
}

impl Site {
    fn trusting(&self) -> Client {
        let authorities = Some(self.certificate());
        Client::new(&ClientSettings { authorities, ..ClientSettings::default() }).unwrap()
    }

    fn shake(&self, tcp: TcpStream) -> io::Result<Wire> {
        Wire::over(tcp, self.trusting().connect("localhost").unwrap())
    }

    fn log_in(&self) -> Wire {
        let mut wire = self.shake(TcpStream::connect(self.implicit).unwrap()).unwrap();
        assert!(wire.reply().unwrap().starts_with("220 "));
        for (line, code) in [
            ("USER anonymous", "331"),
            ("PASS x", "230"),
            ("TYPE I", "200"),
            ("PBSZ 0", "200"),
            ("PROT P", "200"),
        ] {
            assert!(wire.command(line).starts_with(code), "{line}");
        }
        wire
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    tcp
}

/// Waits until the peer closes the connection, and returns the bytes before that.
fn ended(mut tcp: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    match tcp.read_to_end(&mut said) {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
        Err(e) => panic!("the connection stays: {e}"),
    }
    said
}

#[test]
fn commands_injected_behind_auth() {
    let site = Site::new();
    let mut control = Control::connect(site.address).unwrap();
    control.send_raw(b"AUTH TLS\r\nUSER anonymous\r\nPASS x\r\nDELE a\r\n").unwrap();
    let reply = control.reply().unwrap();
    assert_eq!((reply.code, reply.text.contains("came in clear")), (421, true), "{reply:?}");
    assert!(control.reply().is_err(), "the session goes on");
    assert!(!site.log().contains("logged in"));
}

#[test]
fn what_is_said_in_clear_does_not_count_in_tls() {
    let site = Site::new();
    let mut control = Control::connect(site.address).unwrap();
    control.expect("USER anonymous", 331).unwrap();
    control.expect("AUTH TLS", 234).unwrap();
    let mut wire = site.shake(control.stream().try_clone().unwrap()).unwrap();
    assert!(wire.command("PASS x").starts_with("503 "));
    assert!(wire.command("RETR a").starts_with("530 "));
}

#[test]
fn clear_commands_where_a_handshake_is_due() {
    let site = Site::new();
    for address in [site.address, site.implicit] {
        for garbage in [&b"USER anonymous\r\nPASS x\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4096]] {
            let mut tcp = connect(address);
            if address == site.address {
                let mut control = Control::connect(address).unwrap();
                control.expect("AUTH TLS", 234).unwrap();
                tcp = control.stream().try_clone().unwrap();
            }
            tcp.write_all(garbage).unwrap();
            let said = ended(tcp);
            assert!(!said.starts_with(b"2") && !said.starts_with(b"3"), "{said:?}");
        }
    }
    assert!(!site.log().contains("logged in"));
    site.log_in();
}

/// A web page can make the browser send any data to any port, behind a firewall and with the user's
/// certificate. But HTTP precedes the data, with an empty line.
#[test]
fn commands_in_a_request_of_http() {
    let site = Site::new();
    let request = b"POST /a HTTP/1.1\r\nHost: data.example\r\nContent-Type: text/plain\r\n\r\n\
        USER anonymous\r\nPASS x\r\nMKD /made\r\nQUIT\r\n";
    let mut clear = connect(site.address);
    clear.write_all(request).unwrap();
    let said = String::from_utf8(ended(clear)).unwrap();
    assert!(said.contains("\r\n500 ") && !said.contains("\r\n331 "), "{said}");
    let mut wire = site.shake(connect(site.implicit)).unwrap();
    wire.send(request).unwrap();
    let mut said = String::new();
    while let Ok(line) = wire.reply() {
        said.push_str(&line);
        said.push('\n');
    }
    assert!(said.contains("\n500 ") && !said.contains("\n331 ") && !said.contains("221 "), "{said}");
    assert!(!site.path("root/made").exists() && !site.log().contains("logged in"));
}

/// Clear bytes after the end of TLS are discarded.
#[test]
fn commands_behind_the_end_of_tls() {
    let site = Site::new();
    let mut wire = site.log_in();
    let mut out = Vec::new();
    wire.established.records.close(&mut out).unwrap();
    out.extend_from_slice(b"MKD /made\r\n");
    wire.tcp.write_all(&out).unwrap();
    ended(wire.tcp);
    assert!(!site.path("root/made").exists());
    site.log_in();
}

#[test]
fn a_handshake_that_takes_too_long() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::start(directory, "", "[timeouts]\nlogin = 1");
    let begun = Instant::now();
    // A ClientHello that never ends, one byte at a time.
    let mut tcp = connect(site.implicit);
    tcp.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    tcp.write_all(&[0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc]).unwrap();
    loop {
        assert!(begun.elapsed() < PATIENCE, "the connection stays");
        let mut buffer = [0; 64];
        match tcp.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
        if tcp.write_all(&[3]).is_err() {
            break;
        }
    }
    assert!(begun.elapsed() >= Duration::from_millis(900));
}

#[test]
fn records_that_are_too_long() {
    let site = Site::new();
    let mut tcp = connect(site.implicit);
    tcp.write_all(&[0x16, 3, 1, 0xff, 0xff]).unwrap();
    tcp.write_all(&[0; 0xffff]).ok();
    ended(tcp);
    let mut wire = site.log_in();
    wire.tcp.write_all(&[0x17, 3, 3, 0xff, 0xff]).unwrap();
    wire.tcp.write_all(&[0; 0xffff]).ok();
    ended(wire.tcp);
    // On a data connection.
    let mut wire = site.log_in();
    let address = wire.passive();
    wire.send(b"STOR huge\r\n").unwrap();
    let mut data = Wire::over(connect(address), Client::resume(&wire.ticket()).unwrap()).unwrap();
    data.tcp.write_all(&[0x17, 3, 3, 0xff, 0xff]).unwrap();
    data.tcp.write_all(&[0; 0xffff]).ok();
    ended(data.tcp);
    let reply = wire.reply().unwrap();
    assert!(reply.starts_with('4') || reply.starts_with('5'), "{reply}");
    assert!(!site.path("root/huge").exists());
}

#[test]
fn an_upload_that_is_cut_off() {
    let site = Site::new();
    let mut wire = site.log_in();
    for whole in [false, true] {
        let address = wire.passive();
        wire.send(b"STOR file\r\n").unwrap();
        let mut data = Wire::over(connect(address), Client::resume(&wire.ticket()).unwrap()).unwrap();
        assert!(data.established.resumed);
        data.send(&[7; 100_000]).unwrap();
        // An attacker on the path can close the connection, but not end TLS.
        if whole {
            data.finish();
        } else {
            drop(data);
        }
        let reply = wire.reply().unwrap_or_else(|e| panic!("{e}: {}", site.log()));
        assert_eq!(reply.starts_with("226 "), whole, "{reply}");
        assert_eq!(site.path("root/file").exists(), whole);
    }
    assert_eq!(fs::read(site.path("root/file")).unwrap(), vec![7; 100_000]);
}

#[test]
fn strangers_on_a_data_port_are_refused() {
    refuse_strangers(&Site::new());
}

#[test]
fn strangers_on_a_data_port_of_a_node_are_refused() {
    let site = Site::with_nodes("", 1);
    refuse_strangers(&site);
    assert!(site.channels_on_nodes() > 0, "{}", site.log());
}

fn refuse_strangers(site: &Site) {
    fs::write(site.path("root/secret"), "secret").unwrap();
    let mut neighbour = site.log_in();
    neighbour.command("NOOP");
    let mut wire = site.log_in();
    let address = wire.passive();
    wire.send(b"RETR secret\r\n").unwrap();
    let refused = |data: io::Result<Wire>| {
        // In TLS 1.3 the client's handshake may be complete before the server refuses.
        let Ok(mut data) = data else { return };
        let mut said = Vec::new();
        let _ = data.tcp.read_to_end(&mut said);
        let _ = data.open(&said);
        assert_eq!(data.plain, b"");
    };
    // Without a session, with that of another control connection, and without TLS.
    refused(site.shake(connect(address)));
    refused(Wire::over(connect(address), Client::resume(&neighbour.ticket()).unwrap()));
    // With TLS 1.2 the client gets a ticket before the server can refuse. The ticket resumes the
    // refused session, not that of the control connection.
    let (authorities, max_version) = (Some(site.certificate()), Some(SslVersion::TLS1_2));
    let settings = ClientSettings { authorities, max_version, ..ClientSettings::default() };
    let older = Client::new(&settings).unwrap().connect("localhost").unwrap();
    let first = Wire::over(connect(address), older).unwrap();
    let ticket = first.ticket();
    refused(Ok(first));
    refused(Wire::over(connect(address), Client::resume(&ticket).unwrap()));
    let mut clear = connect(address);
    clear.write_all(b"give me the file").unwrap();
    assert_eq!(ended(clear), b"");
    let mut data = Wire::over(connect(address), Client::resume(&wire.ticket()).unwrap()).unwrap();
    let mut came = Vec::new();
    data.tcp.read_to_end(&mut came).unwrap();
    assert!(!data.open(&came).unwrap(), "the file's end is told");
    assert_eq!(data.plain, b"secret");
    drop(data);
    assert!(wire.reply().unwrap().starts_with("226 "));
    let refusal = "not that of the control connection";
    let log = site.wait_for_data_log(refusal, 4);
    assert_eq!(log.matches(refusal).count(), 4, "{log}");
}

#[test]
fn where_reuse_is_only_preferred_the_address_counts() {
    let setting = "session_reuse = 'prefer'";
    for site in [Site::with(setting), Site::with_nodes(setting, 1)] {
        fs::write(site.path("root/a"), "content").unwrap();
        let mut wire = site.log_in();
        let address = wire.passive();
        wire.send(b"RETR a\r\n").unwrap();
        let mut data = site.shake(connect(address)).unwrap();
        let mut came = Vec::new();
        data.tcp.read_to_end(&mut came).unwrap();
        data.open(&came).unwrap();
        assert_eq!(data.plain, b"content");
    }
}

#[test]
fn what_is_required() {
    let site = Site::with("required = 'control'");
    let mut control = Control::connect(site.address).unwrap();
    control.expect("USER anonymous", 530).unwrap();
    control.expect("PASS secret", 530).unwrap();
    let site = Site::with("required = 'data'");
    let mut wire = site.log_in();
    assert!(wire.command("PROT C").starts_with("534 "));
    assert!(wire.command("PROT S").starts_with("536 "));
    assert!(wire.command("CCC").starts_with("533 "));
}

/// Refusals before the password are recorded in the audit log as well, and are limited in number.
#[test]
fn refusals_in_clear_are_in_the_audit() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::start(directory, "required = 'control'", "[log]\naudit = 'audit'");
    let mut control = Control::connect(site.address).unwrap();
    control.expect("USER ada", 530).unwrap();
    control.expect("PASS secret", 530).unwrap();
    control.expect("USER :token:", 530).unwrap();
    let audit = fs::read_to_string(site.path("audit")).unwrap();
    let lines: Vec<&str> = audit.lines().collect();
    assert_eq!(lines.len(), 2, "{audit}");
    assert!(lines[0].contains(r#""event":"log-in","decision":"refused""#), "{audit}");
    assert!(
        lines[0].contains(r#""mechanism":"password""#) && lines[0].contains(r#""wanted":"ada""#),
        "{audit}"
    );
    assert!(lines[0].contains("Log-in in clear is refused here"), "{audit}");
    assert!(lines[1].contains(r#""mechanism":"token""#), "{audit}");
    assert!(!audit.contains("secret"), "{audit}");
    for _ in 0..7 {
        control.expect("USER ada", 530).unwrap();
    }
    control.expect("USER ada", 421).unwrap();
    assert!(control.reply().is_err(), "the session goes on");
    assert_eq!(fs::read_to_string(site.path("audit")).unwrap().lines().count(), 10);
}

#[test]
fn renegotiation() {
    let site = Site::new();
    let mut command = process::command("openssl");
    let address = site.implicit.to_string();
    command.args(["s_client", "-tls1_2", "-connect", &address, "-CAfile"]).arg(site.certificate());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    running.stdin.take().unwrap().write_all(b"R\nNOOP\n").unwrap();
    let output = running.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(text.contains("RENEGOTIATING") && text.contains("no renegotiation"), "{text}");
    assert!(!text.contains("200 NOOP"), "{text}");
    site.log_in();
}

#[test]
fn versions_below_1_2() {
    let site = Site::new();
    for (version, passes) in [("-tls1", false), ("-tls1_1", false), ("-tls1_2", true)] {
        let mut command = process::command("openssl");
        command.args([
            "s_client",
            version,
            "-cipher",
            "ALL:@SECLEVEL=0",
            "-connect",
            &site.implicit.to_string(),
        ]);
        command.arg("-CAfile").arg(site.certificate()).stdin(Stdio::null());
        let outcome = process::run(&mut command, LIMIT).unwrap();
        let text = outcome.text() + &outcome.errors();
        assert_eq!(
            text.contains("Verification: OK") && text.contains("Cipher is ECDHE"),
            passes,
            "{version}: {text}"
        );
        assert_eq!(text.contains("alert protocol version"), !passes, "{version}: {text}");
    }
}

#[test]
fn a_key_that_others_can_read() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let made =
        ropewalk_tests::certificates::self_signed("localhost", ropewalk_tests::certificates::Made::default());
    let pem = made.write(&directory.path().join("key.pem"));
    fs::set_permissions(&pem, PermissionsExt::from_mode(0o644)).unwrap();
    fs::write(
        directory.path().join("server.toml"),
        "root = '.'\n[anonymous]\n[tls]\ncertificate = 'key.pem'\n",
    )
    .unwrap();
    let mut command = client(directory.path());
    command.args(["serve", "--listen", "127.0.0.1:0", "--config", "server.toml"]);
    let text = process::run(&mut command, LIMIT).unwrap().failed().unwrap().errors();
    assert!(text.contains("has mode 0644") && text.contains("chmod 600"), "{text}");
}
