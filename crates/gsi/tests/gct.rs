//! Ropewalk's initiator against a live globus-gridftp-server: log-in, protected commands, and
//! transfers with authenticated and protected data connections.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use common::{Site, have};
use openssl::ssl::SslVersion;
use ropewalk_gsi::testing::{self, Control};
use ropewalk_gsi::{
    After, Credential, Expected, Identity, Initiator, InitiatorOptions, ProxyKind, ProxyTerms, Rights,
    Session, Timestamp, TlsSettings, ca, create_proxy, dcsc,
};

struct Server {
    child: Child,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn account() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Server {
    fn start(site: &Site, versions: &str) -> Self {
        let (certificate, key) = (site.path("hostcert.pem"), site.path("hostkey.pem"));
        ca::write_pair(site.host(), &certificate, &key).unwrap();
        let gridmap = site.path("grid-mapfile");
        let line = ca::gridmap_line(site.user().identity(), &[&account()]);
        std::fs::write(&gridmap, line + "\n").unwrap();
        // The server is killed when this process ends, for whatever reason.
        let mut child = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "KILL",
                "globus-gridftp-server",
                "-p",
                "0",
                "-control-interface",
                "127.0.0.1",
            ])
            .args(["-data-interface", "127.0.0.1", "-home-dir", "/", "-allow-root", "-disable-usage-stats"])
            .env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()))
            .env("X509_USER_CERT", certificate)
            .env("X509_USER_KEY", key)
            .env("X509_CERT_DIR", site.certificates())
            .env("GRIDMAP", gridmap)
            .env("GLOBUS_HOSTNAME", "127.0.0.1")
            .env("GLOBUS_GSSAPI_MAX_TLS_PROTOCOL", versions)
            .env_remove("X509_USER_PROXY")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line =
            lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("listening"))).unwrap().unwrap();
        let port = line.rsplit(':').next().unwrap().trim().parse().unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }
}

fn control_options(delegate: Option<ProxyTerms>) -> InitiatorOptions {
    InitiatorOptions {
        expected: Expected::host("localhost"),
        delegate,
        after: After::Flag,
        server_name: Some("localhost".into()),
    }
}

fn limited() -> ProxyTerms {
    ProxyTerms { kind: ProxyKind::Rfc3820(Rights::Limited), ..ProxyTerms::default() }
}

/// Connects and performs the handshake.
fn secure(address: SocketAddr, identity: &Identity, after: After) -> (TcpStream, Session) {
    let expected = Expected::Subject(identity.credential().identity().to_owned());
    let options = InitiatorOptions { expected, delegate: None, after, server_name: None };
    let mut stream = TcpStream::connect(address).unwrap();
    let session = testing::secure(&mut stream, Initiator::new(identity, options).unwrap());
    (stream, session.expect("the server hung up"))
}

fn download(control: &mut Control, identity: &Identity, path: &str, protection: char) -> Vec<u8> {
    assert!(control.ask("PBSZ 1048576").starts_with("200"));
    let answer = control.ask(&format!("PROT {protection}"));
    assert!(answer.starts_with("200"), "{answer}");
    let address = control.passive();
    control.send(&format!("RETR {path}"));
    let after = if protection == 'C' { After::Flag } else { After::Nothing };
    let (mut data, mut session) = secure(address, identity, after);
    let mut content = Vec::new();
    if after == After::Flag {
        let (_, clear) = session.into_clear();
        content.extend(clear);
        data.read_to_end(&mut content).unwrap();
    } else {
        let mut sealed = Vec::new();
        data.read_to_end(&mut sealed).unwrap();
        session.open(&sealed, &mut content).unwrap();
    }
    loop {
        let answer = control.reply();
        match answer.as_bytes()[0] {
            b'1' => {}
            _ => {
                assert!(answer.starts_with("226"), "{answer}");
                return content;
            }
        }
    }
}

fn round(site: &Site, server: &Server, credential: &Credential, settings: &TlsSettings) {
    let identity = site.identity(credential, settings);
    // Without delegation: log in and send two commands.
    let mut control = Control::connect(server.address);
    control.authenticate(Initiator::new(&identity, control_options(None)).unwrap()).unwrap();
    control.log_in();
    assert!(control.ask("PWD").starts_with("257 \"/\""));
    let features = control.ask("FEAT");
    assert!(features.contains("DCAU") && features.ends_with("211 End.\r\n"), "{features}");
    assert!(control.ask("QUIT").starts_with("221"));
    // With delegation: the server needs the proxy for data connections.
    let mut control = Control::connect(server.address);
    control.authenticate(Initiator::new(&identity, control_options(Some(limited()))).unwrap()).unwrap();
    control.log_in();
    let path = site.path("data");
    let content: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&path, &content).unwrap();
    assert!(control.ask("TYPE I").starts_with("200"));
    for protection in ['C', 'S', 'P'] {
        let got = download(&mut control, &identity, path.to_str().unwrap(), protection);
        assert!(got == content, "PROT {protection}: {} bytes", got.len());
    }
    // A credential for the data channel only.
    let own = dcsc::self_signed(3600).unwrap();
    let argument = dcsc::encode(&own).unwrap();
    assert_eq!(dcsc::parse(&argument).unwrap().identity(), "/C=US/CN=Globus DCSC Cert");
    let answer = control.ask(&format!("DCSC P {}", &*argument));
    assert!(answer.starts_with("250"), "{answer}");
    assert!(control.ask("DCAU A").starts_with("200"));
    let own = dcsc::identity(own, None, settings).unwrap();
    let got = download(&mut control, &own, path.to_str().unwrap(), 'P');
    assert!(got == content, "DCSC: {} bytes", got.len());
    assert!(control.ask("QUIT").starts_with("221"));
}

fn live(version: SslVersion, name: &str) {
    if !have("globus-gridftp-server") || !have("setpriv") {
        return;
    }
    let site = Site::new();
    let server = Server::start(&site, name);
    let settings = TlsSettings { max_version: version, ..TlsSettings::default() };
    let user = site.user();
    round(&site, &server, &user, &settings);
    // Older kinds are not tried: GCT with OpenSSL 3 accepts them only under user certificates
    // without key usage.
    let proxy = create_proxy(&user, 2048, &ProxyTerms::default(), Timestamp::now()).unwrap();
    round(&site, &server, &proxy, &settings);
}

#[test]
fn transfers_over_tls_1_2_succeed() {
    live(SslVersion::TLS1_2, "TLS1_2_VERSION");
}

#[test]
fn transfers_over_tls_1_3_succeed() {
    live(SslVersion::TLS1_3, "TLS1_3_VERSION");
}
