//! The front of `ropewalk gateway`: TLS from AUTH TLS on and from the first byte on, certificates
//! of clients, IPv4 and IPv6; with curl, lftp and Python's ftplib.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ropewalk_tests::certificates::{Authority, Made};
use ropewalk_tests::gateway::{Gateway, LIMIT, SETTINGS};
use ropewalk_tests::process::{self, Outcome, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, grid, peers};

/// Gets `f`, puts it as `up`, and lists. The TLS session of the control connection is resumed for
/// data, which ftplib does not do by itself.
const FTPLIB: &str = r#"
import ftplib, io, socket, ssl, sys
host, port, way, user, authority, certificate, mode = sys.argv[1:8]
class Reuse(ftplib.FTP_TLS):
    def open_within_tls(self, host, port):
        plain = socket.create_connection((host, port), 30)
        self.host, self.port, self.af = host, port, plain.family
        self.sock = self.context.wrap_socket(plain, server_hostname=host)
        self.file = self.sock.makefile("r", encoding=self.encoding)
        self.welcome = self.getresp()
    def ntransfercmd(self, cmd, rest=None):
        conn, size = ftplib.FTP.ntransfercmd(self, cmd, rest)
        return self.context.wrap_socket(conn, server_hostname=self.host, session=self.sock.session), size
context = ssl.create_default_context(cafile=authority)
if certificate:
    context.load_cert_chain(certificate)
f = Reuse(context=context)
if way == "implicit":
    f.open_within_tls(host, int(port))
else:
    f.connect(host, int(port), timeout=30)
f.login(user, "x")
f.prot_p()
f.set_pasv(mode == "passive")
assert f.af == (socket.AF_INET6 if ":" in host else socket.AF_INET)
parts = []
f.retrbinary("RETR /f", parts.append)
f.storbinary("STOR /up", io.BytesIO(b"".join(parts)))
assert {"f", "up"} <= set(f.nlst("/")), f.nlst("/")
f.quit()
print("done")
"#;

/// How TLS begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Explicit,
    Implicit,
}

/// A client of a gateway: its log-in, the gateway's certificate, and its own one.
struct Client<'a> {
    user: &'a str,
    authority: PathBuf,
    certificate: Option<&'a Path>,
    /// `f` of the server comes here.
    got: PathBuf,
}

impl Client<'_> {
    /// Gets `/f` and puts it as `/up`.
    fn curl(&self, address: SocketAddr, way: Way, more: &[&str]) -> Outcome {
        let scheme = if way == Way::Implicit { "ftps" } else { "ftp" };
        let mut command = process::command("curl");
        command.args(["-sSv", "--ssl-reqd", "--cacert", &text(&self.authority), "-u", self.user]);
        if let Some(certificate) = self.certificate {
            command.args(["--cert", &text(certificate)]);
        }
        command.args(more);
        command.args(["-o", &text(&self.got), &format!("{scheme}://{address}//f")]);
        command.args(["--next", "-sSv", "--ssl-reqd", "--cacert", &text(&self.authority), "-u", self.user]);
        if let Some(certificate) = self.certificate {
            command.args(["--cert", &text(certificate)]);
        }
        command.args(more).args(["-T", &text(&self.got), &format!("{scheme}://{address}//up")]);
        run(&mut command, LIMIT).unwrap()
    }

    fn lftp(&self, address: SocketAddr, way: Way, passive: bool) -> Outcome {
        let scheme = if way == Way::Implicit { "ftps" } else { "ftp" };
        let certificate = self.certificate.map_or_else(String::new, |file| {
            format!("set ssl:cert-file {0}; set ssl:key-file {0};", text(file))
        });
        let script = format!(
            "set ssl:ca-file {}; {certificate} set ftp:ssl-force true; set ftp:ssl-allow-anonymous true; \
             set ftp:ssl-protect-data true; set ftp:ssl-protect-list true; set ftp:passive-mode {passive}; \
             set net:max-retries 1; set net:timeout 20; set cmd:fail-exit true; set xfer:clobber true; debug 9; \
             open -u '{},x' {scheme}://{address}; get /f -o {got}; put {got} -o /up; ls /",
            text(&self.authority),
            self.user.trim_end_matches(":x"),
            got = text(&self.got),
        );
        let mut command = process::command("lftp");
        run(command.arg("--norc").args(["-c", &script]), LIMIT).unwrap()
    }

    fn ftplib(&self, address: SocketAddr, way: Way, mode: &str) -> Outcome {
        let certificate = self.certificate.map(text).unwrap_or_default();
        let way = if way == Way::Implicit { "implicit" } else { "explicit" };
        let mut command = process::command("python3");
        command.args(["-c", FTPLIB, &address.ip().to_string(), &address.port().to_string(), way]);
        command.args([self.user.trim_end_matches(":x"), &text(&self.authority), &certificate, mode]);
        run(&mut command, LIMIT).unwrap()
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A server with a file `f`.
fn far(ipv6: bool) -> (Scratch, Server) {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("f"), 3_000_001, 1).unwrap();
    let setup = Setup::new(Kind::Ropewalk, &root);
    let setup = if ipv6 { setup.ipv6() } else { setup };
    (scratch, setup.start().unwrap())
}

/// `f` was copied to `up`, which is removed.
#[track_caller]
fn has_copy(root: &Path) {
    files::ensure_same(&root.join("f"), &root.join("up")).unwrap();
    fs::remove_file(root.join("up")).unwrap();
}

#[test]
fn clients_use_explicit_and_implicit_tls_over_both_families() {
    if !peers::available(&["curl", "lftp", "python3"]) {
        return;
    }
    for (listen, hosts, ipv6) in [("127.0.0.1:0", "127.0.0.1", false), ("[::1]:0", "::1", true)] {
        let (scratch, server) = far(ipv6);
        let options = ["--listen", listen, "--implicit-tls", listen, "--authorized-hosts", hosts];
        let gateway = Gateway::start(&[&options[..], &["--allow-target", hosts]].concat(), SETTINGS);
        let user = format!("anonymous::ftp://{}/:x", server.address());
        let client = Client {
            user: &user,
            authority: gateway.certificate(),
            certificate: None,
            got: scratch.join("got"),
        };
        for (way, address) in [(Way::Explicit, gateway.address), (Way::Implicit, gateway.next_address())] {
            // Not in active mode: curl 7.88 then has no TLS on data connections, which are refused.
            for more in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
                let log = client.curl(address, way, more).succeeded().unwrap().errors();
                assert_eq!(log.contains("> AUTH "), way == Way::Explicit, "{log}");
                assert!(log.contains("> PROT P"), "{log}");
                has_copy(server.root());
            }
            // Over IPv6 lftp 4.9 announces the address `::` in active mode, which is nowhere.
            for passive in if ipv6 { &[true][..] } else { &[true, false] } {
                let log = client.lftp(address, way, *passive).succeeded().unwrap().errors();
                assert!(log.contains("---> PROT P"), "{log}");
                has_copy(server.root());
            }
            for mode in ["passive", "active"] {
                let outcome = client.ftplib(address, way, mode).succeeded().unwrap();
                assert!(outcome.text().contains("done"), "{}", outcome.errors());
                has_copy(server.root());
            }
        }
        let log = gateway.program.log();
        assert!(!log.contains("not that of the control connection"), "{log}");
    }
}

#[test]
fn clients_use_the_data_commands_of_both_families() {
    if !peers::available(&["curl"]) {
        return;
    }
    for (listen, own, ipv6) in [("127.0.0.1:0", "127.0.0.1", false), ("[::1]:0", "::1", true)] {
        let (scratch, server) = far(ipv6);
        let options = ["--listen", listen, "--authorized-hosts", own, "--allow-target", own];
        let gateway = Gateway::start(&options, SETTINGS);
        let user = format!("anonymous::ftp://{}/:x", server.address());
        let got = scratch.join("got");
        let curl = |options: &[&str], sent: &str| {
            let mut command = process::command("curl");
            command.args(["-sSv", "-u", &user]).args(options).args(["-o", &text(&got)]);
            let url = format!("ftp://{}//f", gateway.address);
            let log = run(command.arg(&url), LIMIT).unwrap().succeeded().unwrap().errors();
            assert!(log.contains(sent), "{sent}: {log}");
            files::ensure_same(&got, &server.root().join("f")).unwrap();
            fs::remove_file(&got).unwrap();
            let mut command = process::command("curl");
            command.args(["-sSv", "-u", &user]).args(options).args(["-T", &text(&server.root().join("f"))]);
            let url = format!("ftp://{}//up", gateway.address);
            let log = run(command.arg(&url), LIMIT).unwrap().succeeded().unwrap().errors();
            assert!(log.contains(sent), "{sent}: {log}");
            has_copy(server.root());
        };
        curl(&[], "> EPSV");
        if ipv6 {
            curl(&["-P", "-"], "> EPRT |2|::1|");
        } else {
            curl(&["--disable-epsv"], "> PASV");
            curl(&["-P", "-"], "> EPRT |1|127.0.0.1|");
            curl(&["-P", "-", "--disable-eprt"], "> PORT 127,0,0,1,");
        }
    }
}

#[test]
fn certificate_of_a_client_is_the_log_in_of_its_user() {
    if !peers::available(&["curl", "lftp", "python3"]) {
        return;
    }
    let site = grid::Site::new().unwrap();
    files::write_random(&site.path("root/f"), 3_000_001, 1).unwrap();
    let served = site.serve("", &[]).unwrap();
    let authority = Authority::new("Users");
    let certificate = |name: &str, authority: &Authority, made: Made| {
        let path = site.path(&format!("{name}.pem"));
        authority.host(name, made).write(&path)
    };
    let ada = certificate("Ada", &authority, Made::default());
    let bob = certificate("Bob", &authority, Made::default());
    let grace = certificate("Grace", &authority, Made::default());
    let directory = Scratch::new().unwrap();
    let other = |name: &str, authority: &Authority, made: Made| {
        authority.host("Ada", made).write(&directory.join(name))
    };
    let expired = other("expired", &authority, Made { from: -20, to: -10 });
    let forged = other("forged", &Authority::new("Users"), Made::default());
    let authorities = directory.join("users.pem");
    fs::write(&authorities, authority.host("x", Made::default()).authority_pem()).unwrap();
    let settings = format!(
        "{SETTINGS}[sites.dtn]\nurl = '{}/'\n\
         [users.ada]\ncertificates = ['/O=Test/CN=Ada']\ncredential = {:?}\n\
         [users.grace]\ncertificates = ['/O=Test/CN=Grace']\n",
        served.url,
        site.path("proxy")
    );
    // The process has a credential, which no user may have.
    let (proxy, trusted) = (site.path("proxy"), site.path("certificates"));
    let environment = [("X509_USER_PROXY", proxy.as_path()), ("X509_CERT_DIR", trusted.as_path())];
    let options = ["--client-authorities", &text(&authorities), "--implicit-tls", "127.0.0.1:0"];
    let gateway = Gateway::start_with(&options, &settings, &environment);
    let client = |user: &'static str, certificate| Client {
        user,
        authority: gateway.certificate(),
        certificate,
        got: site.path("got"),
    };
    let own = client("ada::dtn:x", Some(ada.as_path()));
    for (way, address) in [(Way::Explicit, gateway.address), (Way::Implicit, gateway.next_address())] {
        own.curl(address, way, &[]).succeeded().unwrap();
        has_copy(&site.path("root"));
        own.lftp(address, way, true).succeeded().unwrap();
        has_copy(&site.path("root"));
        own.ftplib(address, way, "passive").succeeded().unwrap();
        has_copy(&site.path("root"));
    }
    for (user, certificate) in [
        // A certificate of another user, of no user, and none.
        ("ada::dtn:x", Some(grace.as_path())),
        ("ada::dtn:x", Some(bob.as_path())),
        ("bob::dtn:x", Some(bob.as_path())),
        ("ada::dtn:x", None),
        // The name of another user, and one without a credential behind.
        ("grace::dtn:x", Some(ada.as_path())),
        ("grace::dtn:x", Some(grace.as_path())),
        ("ada::dtn:x", Some(expired.as_path())),
        ("ada::dtn:x", Some(forged.as_path())),
    ] {
        let outcome = client(user, certificate).curl(gateway.address, Way::Explicit, &[]);
        let log = outcome.failed().unwrap().errors();
        let refused = log.contains("< 530") || log.contains("alert");
        assert!(refused && !log.contains("< 230"), "{user} {certificate:?}: {log}");
        assert!(!site.path("root/up").exists());
    }
    assert!(gateway.program.log().contains("no credential of user grace"), "{}", gateway.program.log());
    // In clear there is no certificate.
    let (code, reason) = gateway.log_in("ada::dtn", "x");
    assert_eq!(code, 530, "{reason}");
}
