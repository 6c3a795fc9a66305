//! Log-in with bearer tokens on a control connection with TLS.
#![allow(clippy::unwrap_used)]

#[path = "../../tokens/tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::*;
use openssl::ssl::{SslConnector, SslMethod, SslStream, SslVerifyMode};
use ropewalk_server::{Config, Server, ServerHandle};
use serde_json::{Value, json};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);

struct Host {
    directory: TempDir,
    address: SocketAddr,
    handle: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    /// `issuer` has further settings of the only issuer.
    fn new(issuer: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("root/data/deep")).unwrap();
        std::fs::create_dir_all(at("root/up")).unwrap();
        std::fs::write(at("root/data/file"), "content").unwrap();
        std::fs::write(at("root/data/deep/file"), "deep").unwrap();
        std::fs::write(at("root/database"), "secret").unwrap();
        std::fs::write(at("root/up/there"), "there").unwrap();
        write(&at("keys.json"), &key_set(&[ec256()]).to_string());
        let text = format!(
            "listen = ['127.0.0.1:0']\nroot = 'root'\n[identity]\nmapped = false\n\
             [tls]\nstate_directory = 'state'\n[timeouts]\nlogin_failure = 0.001\n\
             [[tokens.issuers]]\nurl = '{ISSUER}'\naudiences = ['{AUDIENCE}']\nkeys = 'keys.json'\n{issuer}\n"
        );
        std::fs::write(at("server.toml"), text).unwrap();
        let mut config = Config::load(at("server.toml")).unwrap();
        config.tls.as_mut().unwrap().state_directory = Some(at("state"));
        config.log.audit = Some(at("audit"));
        let server = Server::bind(config).unwrap();
        let (address, handle) = (server.local_addrs()[0], server.handle());
        let thread = std::thread::spawn(move || server.run().unwrap());
        Self { directory, address, handle, thread: Some(thread) }
    }

    fn usual() -> Self {
        Self::new("user = 'vo'")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    /// The refusals in the audit trail, one JSON object per line.
    fn refusals(&self) -> String {
        let all = std::fs::read_to_string(self.path("../audit")).unwrap();
        all.split_inclusive('\n').filter(|line| line.contains(r#""decision":"refused""#)).collect()
    }

    fn open(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn clear(&self) -> Client<TcpStream> {
        let mut client = Client(BufReader::new(self.open()));
        client.expect("220");
        client
    }

    fn secured(&self) -> Client<SslStream<TcpStream>> {
        let mut client = self.clear();
        client.command("AUTH TLS", "234");
        let mut connector = SslConnector::builder(SslMethod::tls()).unwrap();
        connector.set_verify(SslVerifyMode::NONE);
        let stream = connector.build().connect("localhost", client.0.into_inner()).unwrap();
        Client(BufReader::new(stream))
    }

    /// Logs in with these scopes.
    fn with_scopes(&self, scopes: &str) -> Client<SslStream<TcpStream>> {
        let mut client = self.secured();
        client.log_in(&token(json!({"scope": scopes})), "230");
        client.command("TYPE I", "200");
        client
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.handle.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A valid token with changes.
fn token(changes: Value) -> String {
    let mut claims = with(json!({"iat": seconds(), "nbf": seconds(), "exp": seconds() + 3600}));
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    ec256().token(&claims)
}

struct Client<S>(BufReader<S>);

impl<S: Read + Write> Client<S> {
    fn reply(&mut self) -> String {
        let mut lines = String::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            lines += &line;
            if line.is_empty() || line.as_bytes().get(3) == Some(&b' ') {
                return lines;
            }
        }
    }

    #[track_caller]
    fn expect(&mut self, code: &str) -> String {
        let reply = self.reply();
        assert!(reply.starts_with(code), "expected {code}: {reply}");
        reply
    }

    fn send(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    #[track_caller]
    fn command(&mut self, line: &str, code: &str) -> String {
        self.send(line);
        let reply = self.reply();
        assert!(reply.starts_with(code), "{line}: expected {code}: {reply}");
        reply
    }

    #[track_caller]
    fn log_in(&mut self, token: &str, code: &str) -> String {
        self.command("USER :token:", "331");
        self.command(&format!("PASS {token}"), code)
    }

    fn data(&mut self) -> TcpStream {
        let reply = self.command("PASV", "227");
        let numbers: Vec<u16> =
            reply.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).skip(1).collect();
        let port = numbers[4] * 256 + numbers[5];
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    #[track_caller]
    fn get(&mut self, command: &str) -> String {
        let mut data = self.data();
        self.command(command, "150");
        let mut content = String::new();
        data.read_to_string(&mut content).unwrap();
        self.expect("226");
        content
    }

    #[track_caller]
    fn put(&mut self, path: &str, content: &str) {
        let mut data = self.data();
        self.command(&format!("STOR {path}"), "150");
        data.write_all(content.as_bytes()).unwrap();
        drop(data);
        self.expect("226");
    }

    /// Refused before anything is sent.
    #[track_caller]
    fn refused(&mut self, command: &str) -> String {
        let _data = self.data();
        self.command(command, "5")
    }
}

#[test]
fn token_on_clear_connection_is_refused_before_it_is_sent() {
    let host = Host::usual();
    let mut client = host.clear();
    assert!(client.command("USER :token:", "530").contains("send AUTH TLS first"));
    client.command(&format!("PASS {}", token(json!({}))), "503");
    // The token is not accepted as the password of a user that was named before.
    client.command("USER vo", "331");
    client.command("USER :token:", "530");
    client.command(&format!("PASS {}", token(json!({}))), "503");
    client.command("USER vo", "331");
    client.command(&format!("PASS {}", token(json!({}))), "530");
    assert!(client.command("FEAT", "211").contains("Tokens;"));
}

#[test]
fn token_that_is_wrong_is_refused() {
    let host = Host::usual();
    host.secured().log_in(&token(json!({})), "230");
    for (changes, reason) in [
        (json!({"exp": seconds() - 600}), "it expired 10 min ago"),
        // Some more seconds, for a slow host.
        (json!({"nbf": seconds() + 3600 + 50}), "it is not valid before 60 min from now"),
        (json!({"aud": "https://other.example"}), "it is for \"https://other.example\""),
        (json!({"iss": "https://evil.example"}), "not one that this server trusts"),
        (json!({"scope": "openid"}), "no scope of storage"),
        (json!({"scope": "storage.read:/data/../"}), "component . or .."),
        (json!({"wlcg.ver": "9"}), "wlcg.ver is"),
    ] {
        let reply = host.secured().log_in(&token(changes.clone()), "530");
        assert!(reply.contains(reason), "{changes}: {reply}");
    }
    let none = format!("{}.{}.", encode(r#"{"alg":"none"}"#), encode(claims().to_string()));
    assert!(host.secured().log_in(&none, "530").contains("only RS256"));
    let good = token(json!({}));
    let truncated = host.secured().log_in(&good[..good.len() - 9], "530");
    assert!(truncated.contains("is refused") && !truncated.contains(&good[..40]), "{truncated}");
    assert!(host.secured().log_in(&"a".repeat(20_000), "500").contains("longer than"));
    host.secured().log_in("", "530");
}

#[test]
fn token_subject_and_group_select_user() {
    let issuer = "map = [{ subject = 'bob', user = 'robert' }, { group = '/vo/admins', user = 'admin' }]\n\
                  scopes_required = false";
    let host = Host::new(issuer);
    let who = |changes: Value| {
        let mut client = host.secured();
        client.command("USER :token:", "331");
        client.command(&format!("PASS {}", token(changes)), "")
    };
    assert!(who(json!({"sub": "bob"})).contains("robert"));
    assert!(who(json!({"sub": "eve"})).contains("admin"));
    let nobody = who(json!({"sub": "eve", "wlcg.groups": ["/vo"]}));
    assert!(
        nobody.starts_with("530") && nobody.contains("No user is set up here for the subject \"eve\""),
        "{nobody}"
    );
    // Without scopes the session may do all that the user may.
    let mut client = host.secured();
    client.log_in(&token(json!({"scope": "openid"})), "230");
    assert_eq!(client.get("RETR /database"), "secret");
    // A token whose scopes are for other services permits nothing here (WLCG Common JWT Profiles
    // 1.3, 2.2.3).
    for scope in ["compute.create", "openid compute.read", "storage.poll:/"] {
        let reply = host.secured().log_in(&token(json!({"scope": scope})), "530");
        assert!(reply.contains("no scope of storage"), "{reply}");
    }
}

#[test]
fn checksum_of_whole_file_is_an_attribute() {
    let host = Host::usual();
    let mut client = host.with_scopes("storage.create:/up storage.stage:/data/deep");
    client.put("/up/new", "new");
    for path in ["/up/new", "/up/there", "/data/deep/file"] {
        client.command(&format!("CKSM MD5 0 -1 {path}"), "213");
        client.command(&format!("SIZE {path}"), "213");
        client.refused(&format!("RETR {path}"));
        // Sums of single bytes would reveal the content.
        for range in ["0 1", "1 -1", "0 3", "0 100"] {
            client.command(&format!("CKSM MD5 {range} {path}"), "5");
        }
    }
    client.command("CKSM MD5 0 -1 /data/file", "5");
    client.command("CKSM MD5 0 -1 /up", "5");
    std::os::unix::fs::symlink("../database", host.path("up/link")).unwrap();
    std::os::unix::fs::symlink("there", host.path("up/other")).unwrap();
    client.command("CKSM MD5 0 -1 /up/link", "5");
    client.command("CKSM MD5 0 -1 /up/other", "213");
    // A permission for checksums does not permit seeing the file.
    let mut client = host.with_scopes("storage.poll:/data storage.read:/up");
    client.command("SIZE /data/file", "5");
    client.command("CKSM MD5 0 -1 /data/file", "5");
}

#[test]
fn read_scope_matches_whole_path_segments() {
    let host = Host::usual();
    let mut client = host.with_scopes("storage.read:/data");
    assert_eq!(client.get("RETR /data/file"), "content");
    assert_eq!(client.get("RETR /data/deep/file"), "deep");
    client.refused("RETR /database");
    client.refused("RETR /data/../database");
    client.command("SIZE /database", "5");
    client.command("CKSM MD5 0 -1 /database", "5");
    client.command("CKSM MD5 0 -1 /data/file", "213");
    for command in [
        "DELE /data/file",
        "MKD /data/new",
        "RMD /data/deep",
        "SITE RDEL /data/deep",
        "SITE CHMOD 600 /data/file",
        "SITE SYMLINK file /data/link",
        "MFMT 20200101000000 /data/file",
    ] {
        client.command(command, "5");
    }
    client.command("RNFR /data/file", "350");
    client.command("RNTO /data/other", "5");
    client.refused("STOR /data/new");
    client.refused("STOR /data/file");
    // The directories on the path are shown, and nothing beside it.
    let top = client.get("MLSD /");
    assert!(top.contains(" data\r\n") && !top.contains("database") && !top.contains(" up\r\n"), "{top}");
    // Links lead no further than paths do.
    std::os::unix::fs::symlink("../database", host.path("data/link")).unwrap();
    client.refused("RETR /data/link");
}

#[test]
fn scope_of_directory_covers_its_tree() {
    let host = Host::usual();
    std::fs::write(host.path("plain"), "plain").unwrap();
    let mut client = host.with_scopes("storage.read:/plain/ storage.read:/data/");
    client.refused("RETR /plain");
    assert_eq!(client.get("RETR /data/file"), "content");
}

#[test]
fn create_scope_does_not_replace() {
    let host = Host::usual();
    let mut client = host.with_scopes("storage.create:/up storage.create:/made/of/parents");
    client.put("/up/new", "new");
    assert!(client.refused("STOR /up/new").contains("storage.modify"));
    client.refused("STOR /up/there");
    client.refused("APPE /up/there");
    client.command("REST 2", "350");
    client.refused("STOR /up/there");
    client.command("DELE /up/there", "5");
    client.command("SITE TRNC 0 /up/there", "5");
    client.refused("RETR /up/there");
    client.command("MKD /up/directory", "257");
    client.put("/up/directory/file", "x");
    client.command("RNFR /up/new", "350");
    client.command("RNTO /up/there", "553");
    client.command("RNFR /up/new", "350");
    client.command("RNTO /up/renamed", "250");
    client.command("RNFR /up/renamed", "350");
    client.command("RNTO /data/renamed", "5");
    client.refused("STOR /upper");
    // Missing parents are created, and nothing else beside them.
    client.command("MKD /made", "257");
    client.command("MKD /made/of", "257");
    client.command("MKD /made/up", "5");
    client.refused("STOR /made/file");
    client.command("MKD /made/of/parents", "257");
    client.put("/made/of/parents/file", "x");
    client.command("RMD /made/of/parents", "5");
    assert_eq!(std::fs::read_to_string(host.path("up/there")).unwrap(), "there");
    assert_eq!(std::fs::read_to_string(host.path("up/renamed")).unwrap(), "new");
    for (command, path) in [("STOR", "/up/new"), ("RNTO", "/up/new"), ("DELE", "/up/there")] {
        let wanted = format!(r#""command":"{command}","path":"{path}""#);
        assert!(host.refusals().contains(&wanted), "{wanted}: {}", host.refusals());
    }
}

/// A file that may not be replaced or removed must not become so under another name.
#[test]
fn create_scope_renamed_file_is_not_replaceable() {
    let host = Host::usual();
    let mut client = host.with_scopes("storage.create:/up storage.modify:/data");
    for name in ["/up/.x.ropewalk-part", "/up/.x.ropewalk-journal", "/data/moved"] {
        client.command("RNFR /up/there", "350");
        assert!(client.command(&format!("RNTO {name}"), "553").contains("storage.modify"), "{name}");
    }
    // A link in the place of a part file, or of its journal.
    for name in ["part", "journal"] {
        client.command(&format!("SITE SYMLINK there /up/.x.ropewalk-{name}"), "250");
        client.refused(&format!("STOR /up/.x.ropewalk-{name}"));
    }
    let _data = client.data();
    client.command("STOR /up/x", "");
    drop(client);
    // The program's own client renames its uploads by itself.
    let mut client = host.with_scopes("storage.create:/up");
    client.put("/up/.y.ropewalk-part", "whole");
    client.command("RNFR /up/.y.ropewalk-part", "350");
    client.command("RNTO /up/y", "250");
    assert_eq!(std::fs::read_to_string(host.path("up/there")).unwrap(), "there");
    assert_eq!(std::fs::read_to_string(host.path("up/y")).unwrap(), "whole");
}

/// Of two simultaneous uploads to one name, the later one must not replace the earlier one.
#[test]
fn create_scope_with_simultaneous_uploads_keeps_first() {
    let host = Host::usual();
    let mut early = host.with_scopes("storage.create:/up");
    let mut late = host.with_scopes("storage.modify:/up");
    let mut data = early.data();
    early.command("STOR /up/both", "150");
    data.write_all(b"early").unwrap();
    std::fs::write(host.path("up/both"), "late").unwrap();
    drop(data);
    assert!(early.expect("553").contains("storage.modify"));
    assert_eq!(std::fs::read_dir(host.path("up")).unwrap().count(), 2);
    assert_eq!(std::fs::read_to_string(host.path("up/both")).unwrap(), "late");
    late.put("/up/both", "modified");
    assert_eq!(std::fs::read_to_string(host.path("up/both")).unwrap(), "modified");
}

#[test]
fn modify_scope_replaces_and_removes() {
    let host = Host::usual();
    let mut client = host.with_scopes("storage.modify:/up storage.read:/data");
    client.put("/up/there", "again");
    client.put("/up/new", "new");
    client.command("RNFR /up/new", "350");
    client.command("RNTO /up/there", "250");
    client.command("DELE /up/there", "250");
    client.refused("RETR /up/there");
    // A file that may not be read does not become readable under another name.
    client.put("/up/new", "new");
    client.command("RNFR /up/new", "350");
    client.command("RNTO /data/new", "5");
    client.command("SITE SYMLINK ../database /up/link", "5");
    client.command("SITE RDEL /up", "250");
}

#[test]
fn scope_paths_count_from_base_path() {
    let host = Host::new("user = 'vo'\nbase_path = '/data'");
    let mut client = host.with_scopes("storage.read:/deep");
    assert_eq!(client.get("RETR /data/deep/file"), "deep");
    client.refused("RETR /data/file");
}

#[test]
fn session_ends_when_token_expires() {
    let host = Host::usual();
    let mut client = host.secured();
    // Within the leeway, of which two seconds are left.
    client.log_in(&token(json!({"exp": seconds() - 58, "scope": "storage.read:/"})), "230");
    let until = std::time::Instant::now() + PATIENCE;
    let reply = loop {
        client.send("SIZE /database");
        let reply = client.reply();
        if !reply.starts_with("213") || std::time::Instant::now() > until {
            break reply;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(reply.starts_with("421") && reply.contains("bearer token has expired"), "{reply}");
    assert!(host.refusals().contains("the bearer token has expired"), "{}", host.refusals());
}
