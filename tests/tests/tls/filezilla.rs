//! FileZilla with the server.

use std::fs;

use ropewalk_tests::filezilla::{Running, prepare, queue};
use ropewalk_tests::peers;

use crate::site::Site;

/// Data connections resume the TLS session of the control connection, as the server requires by
/// default.
#[test]
fn filezilla_lists_over_tls() {
    if !peers::available(&["filezilla", "Xvfb"]) {
        return;
    }
    let site = Site::with("required = 'data'");
    fs::write(site.path("root/a"), "content").unwrap();
    for (scheme, port) in [("ftpes", site.address.port()), ("ftps", site.implicit.port())] {
        let home = tempfile::tempdir().unwrap();
        prepare(home.path(), &site.certificate(), &[port]);
        let running = Running::start(home.path(), [&format!("{scheme}://anonymous:x@127.0.0.1:{port}/"), ""]);
        let log = running.log_with("Directory listing of \"/\" successful", 1, &|| site.log());
        assert!(log.contains("Command: PROT P") && log.contains("Command: MLSD"), "{log}");
    }
    let log = site.log();
    assert_eq!(log.matches("transfer done").count(), 2, "{log}");
    assert!(!log.contains("not that of the control connection"), "{log}");
}

/// A file in each direction, as a user would move it; with implicit TLS over a data node.
#[test]
fn filezilla_moves_files_over_tls() {
    if !peers::available(&["filezilla", "Xvfb", "xdotool", "python3"]) {
        return;
    }
    const FTPS: u8 = 3;
    const FTPES: u8 = 4;
    let required = "required = 'data'";
    for (protocol, site) in [(FTPES, Site::with(required)), (FTPS, Site::with_nodes(required, 1))] {
        let content = site.content("root/there");
        let port = if protocol == FTPES { site.address.port() } else { site.implicit.port() };
        let home = tempfile::tempdir().unwrap();
        prepare(home.path(), &site.certificate(), &[port]);
        let local = home.path().join("local");
        fs::create_dir(&local).unwrap();
        let reversed: Vec<u8> = content.iter().rev().copied().collect();
        fs::write(local.join("here"), &reversed).unwrap();
        queue(home.path(), &local, port, protocol);
        let running = Running::start(home.path(), ["", "queue"]);
        let log = running.log_with("File transfer successful", 2, &|| site.log());
        assert!(log.contains("Command: PROT P"), "{log}");
        assert!(log.contains("Command: RETR there") && log.contains("Command: STOR here"), "{log}");
        assert!(fs::read(local.join("there")).unwrap() == content, "{log}");
        assert!(fs::read(site.path("root/here")).unwrap() == reversed, "{log}");
        let log = site.logs();
        assert!(!log.contains("not that of the control connection"), "{log}");
        assert_eq!(site.channels_on_nodes() > 0, protocol == FTPS, "{log}");
        for kind in ["RETR", "STOR"] {
            let done =
                |line: &&str| line.contains("transfer done") && line.contains(&format!("kind=\"{kind}\""));
            assert_eq!(log.lines().filter(done).count(), 1, "{log}");
        }
    }
}
