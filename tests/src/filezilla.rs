//! FileZilla, on a virtual screen. A step that fails fails the test.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use openssl::asn1::{Asn1Time, Asn1TimeRef};
use openssl::x509::X509;

use crate::process::{self, Program};

const LIMIT: Duration = Duration::from_secs(120);

/// Runs FileZilla on a virtual screen, until `end` exists or the test has ended. Killing the screen
/// would leave its socket and lock in /tmp.
const SCRIPT: &str = r#"
Xvfb -displayfd 1 -screen 0 800x600x24 -nolisten tcp > "$HOME/display" 2> "$HOME/screen.log" & screen=$!
live() { [ ! -e "$HOME/end" ] && kill -0 $PPID; }
while live && [ ! -s "$HOME/display" ] && kill -0 $screen; do sleep 0.1; done
DISPLAY=:$(cat "$HOME/display"); export DISPLAY
filezilla $1 & client=$!
begun() { grep -q 'Status: Connecting to' "$HOME/log" 2> "$HOME/grep.log"; }
while [ "$2" = queue ] && live && ! begun; do
    # Ctrl+P lets the queue go on, and a second time it would stop it.
    xdotool search --onlyvisible --name '^FileZilla$' windowfocus key ctrl+p > "$HOME/xdotool.log" 2>&1 || { sleep 0.2; continue; }
    for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do begun || ! live || sleep 0.5; done
done
while live; do sleep 0.1; done
kill $client; wait $client
kill $screen; wait $screen
"#;

/// Makes FileZilla's queue (in the format of version 3.63) of one download and one upload in the
/// directory.
const QUEUE: &str = r#"
import sqlite3, sys
place, local, host, port, protocol = sys.argv[1:]
queue = sqlite3.connect(place)
text = lambda *names: ", ".join(name + " TEXT" for name in names)
number = lambda *names: ", ".join(name + " INTEGER" for name in names)
key = "id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL"
queue.execute(f"CREATE TABLE servers ({key}, {text('host')} NOT NULL, {number('port')}, {text('user', 'password', 'account', 'keyfile')},"
    f"{number('protocol', 'type', 'logontype', 'timezone_offset')}, {text('transfer_mode')}, {number('max_connections')},"
    f"{text('encoding')}, {number('bypass_proxy')}, {text('post_login_commands', 'name', 'parameters', 'site_path')} DEFAULT NULL)")
queue.execute(f"CREATE TABLE files ({key}, {number('server')} NOT NULL, {text('source_file', 'target_file')},"
    f"{number('local_path', 'remote_path', 'size', 'error_count', 'priority', 'flags', 'default_exists_action')}, {text('extra_flags')})")
for table in ("local_paths", "remote_paths"):
    queue.execute(f"CREATE TABLE {table} ({key}, {text('path')} NOT NULL)")
queue.execute("PRAGMA user_version = 7")
queue.execute("INSERT INTO servers (id, host, port, user, password, protocol, type, logontype, timezone_offset, transfer_mode,"
    "max_connections, bypass_proxy) VALUES (1, ?, ?, 'anonymous', 'x', ?, 0, 1, 0, 'default', 0, 0)", (host, port, protocol))
queue.execute("INSERT INTO local_paths VALUES (1, ?)", (local,))
# The root directory of a Unix host.
queue.execute("INSERT INTO remote_paths VALUES (1, '1 0')")
DOWNLOAD, UPLOAD = 16, 0
for name, flags in (("there", DOWNLOAD), ("here", UPLOAD)):
    queue.execute("INSERT INTO files (server, source_file, local_path, remote_path, size, error_count, priority, flags,"
        "default_exists_action) VALUES (1, ?, 1, 1, -1, 0, 2, ?, -1)", (name, flags))
queue.commit()
"#;

/// FileZilla on its screen. Dropping it ends both.
pub struct Running {
    program: Program,
    end: PathBuf,
}

impl Running {
    /// `what`: arguments, and `queue` if the queue is to be processed.
    pub fn start(home: &Path, what: [&str; 2]) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "sh"]).args(what);
        shell.env("HOME", home).env("TMPDIR", home).env_remove("XDG_CONFIG_HOME");
        shell.env_remove("WAYLAND_DISPLAY").env_remove("XAUTHORITY");
        Self { program: Program::start(&mut shell).unwrap(), end: home.join("end") }
    }

    /// Waits until FileZilla's log contains `wanted` this many times, and returns the log. `server`
    /// returns that of the server, for the message of a failure.
    pub fn log_with(&self, wanted: &str, times: usize, server: &dyn Fn() -> String) -> String {
        let end = Instant::now() + LIMIT;
        loop {
            let log = fs::read_to_string(self.end.with_file_name("log")).unwrap_or_default();
            if log.matches(wanted).count() >= times {
                return log;
            }
            assert!(Instant::now() < end, "{log}\n{}\n{}", self.program.log(), server());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = fs::write(&self.end, "");
        let _ = self.program.wait(Duration::from_secs(20));
    }
}

/// Answers the questions of FileZilla's dialogues in advance: the certificate is known, and there
/// is no welcome and no search for updates. The server at these ports of 127.0.0.1 has this
/// certificate.
pub fn prepare(home: &Path, certificate: &Path, ports: &[u16]) {
    let directory = home.join(".config/filezilla");
    fs::create_dir_all(&directory).unwrap();
    let certificate = X509::from_pem(&fs::read(certificate).unwrap()).unwrap();
    let hex: String = certificate.to_der().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    let epoch = Asn1Time::from_unix(0).unwrap();
    let seconds = |time: &Asn1TimeRef| {
        let since = epoch.diff(time).unwrap();
        i64::from(since.days) * 86_400 + i64::from(since.secs)
    };
    let (from, to) = (seconds(certificate.not_before()), seconds(certificate.not_after()));
    let file = |inner: &str| {
        format!(
            "<?xml version=\"1.0\"?>\n<FileZilla3 version=\"3.63.0\" platform=\"*nix\">{inner}</FileZilla3>\n"
        )
    };
    let mut trusted = String::new();
    for port in ports {
        trusted.push_str(&format!(
            "<Certificate><Data>{hex}</Data><ActivationTime>{from}</ActivationTime><ExpirationTime>{to}</ExpirationTime>\
             <Host>127.0.0.1</Host><Port>{port}</Port><TrustSANs>0</TrustSANs></Certificate>"
        ));
    }
    let trusted = format!("<TrustedCerts>{trusted}</TrustedCerts>");
    fs::write(directory.join("trustedcerts.xml"), file(&trusted)).unwrap();
    let log = home.join("log").display().to_string();
    let settings = [
        ("Greeting version", "99.0.0"),
        ("Update Check", "0"),
        ("Disable update check", "1"),
        ("Kiosk mode", "1"),
        ("Logging file", &log),
    ];
    let settings: String =
        settings.iter().map(|(name, value)| format!("<Setting name=\"{name}\">{value}</Setting>")).collect();
    fs::write(directory.join("filezilla.xml"), file(&format!("<Settings>{settings}</Settings>"))).unwrap();
}

/// Makes a queue of one download (`there`) and one upload (`here`) between the root of a server at
/// 127.0.0.1 and the directory `local`. `protocol` is FileZilla's number: 3 is implicit TLS, 4 is
/// AUTH TLS.
pub fn queue(home: &Path, local: &Path, port: u16, protocol: u8) {
    let mut make = Command::new("python3");
    make.args(["-c", QUEUE]).arg(home.join(".config/filezilla/queue.sqlite3"));
    make.args([&format!("{}/", local.display()), "127.0.0.1", &port.to_string(), &protocol.to_string()]);
    process::run(&mut make, LIMIT).unwrap().succeeded().unwrap();
}
