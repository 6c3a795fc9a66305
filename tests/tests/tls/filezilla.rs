//! FileZilla, on a screen that nobody sees.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use openssl::asn1::{Asn1Time, Asn1TimeRef};
use openssl::x509::X509;
use ropewalk_tests::peers;
use ropewalk_tests::process::Program;

use crate::site::{LIMIT, Site};

/// A screen, FileZilla on it, and the end of both when `end` is there or the test is not: a screen that is killed would leave
/// its socket and lock in /tmp.
const SCRIPT: &str = r#"
Xvfb -displayfd 1 -screen 0 800x600x24 -nolisten tcp > "$HOME/display" 2> "$HOME/screen.log" & screen=$!
live() { [ ! -e "$HOME/end" ] && kill -0 $PPID; }
while live && [ ! -s "$HOME/display" ] && kill -0 $screen; do sleep 0.1; done
DISPLAY=:$(cat "$HOME/display") filezilla "$1" & client=$!
while live; do sleep 0.1; done
kill $client; wait $client
kill $screen; wait $screen
"#;

struct Running {
    program: Program,
    end: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = fs::write(&self.end, "");
        let _ = self.program.wait(Duration::from_secs(20));
    }
}

/// What FileZilla's dialogues would ask is answered already: it knows the certificate, greets nobody and looks for no updates.
fn prepare(home: &Path, site: &Site) {
    let directory = home.join(".config/filezilla");
    fs::create_dir_all(&directory).unwrap();
    let certificate = X509::from_pem(&fs::read(site.certificate()).unwrap()).unwrap();
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
    for port in [site.address.port(), site.implicit.port()] {
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

/// Its data connections resume the session of the control connection, which the server wants by default.
#[test]
fn filezilla_lists_over_tls() {
    if !peers::available(&["filezilla", "Xvfb"]) {
        return;
    }
    let site = Site::with("required = 'data'");
    fs::write(site.path("root/a"), "content").unwrap();
    for (scheme, port) in [("ftpes", site.address.port()), ("ftps", site.implicit.port())] {
        let home = tempfile::tempdir().unwrap();
        prepare(home.path(), &site);
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "sh", &format!("{scheme}://anonymous:x@127.0.0.1:{port}/")]);
        shell.env("HOME", home.path()).env("TMPDIR", home.path()).env_remove("XDG_CONFIG_HOME");
        shell.env_remove("WAYLAND_DISPLAY").env_remove("XAUTHORITY");
        let program = Program::start(&mut shell).unwrap();
        let running = Running { program, end: home.path().join("end") };
        let end = Instant::now() + LIMIT;
        loop {
            let log = fs::read_to_string(home.path().join("log")).unwrap_or_default();
            if log.contains("Directory listing of \"/\" successful") {
                assert!(log.contains("Command: PROT P") && log.contains("Command: MLSD"), "{log}");
                break;
            }
            assert!(Instant::now() < end, "{log}\n{}\n{}", running.program.log(), site.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let log = site.log();
    assert_eq!(log.matches("transfer done").count(), 2, "{log}");
    assert!(!log.contains("not that of the control connection"), "{log}");
}
