//! `ropewalk mv` at a server.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::{peers, process};

#[test]
fn mv_to_name_with_slash_moves_into_directory() {
    let root = Scratch::new().unwrap();
    fs::write(root.join("f"), "f").unwrap();
    fs::write(root.join("old"), "old").unwrap();
    fs::create_dir_all(root.join("d/e")).unwrap();
    for kind in [Kind::Ropewalk, Kind::Gct] {
        if kind == Kind::Gct && !peers::available(&["globus-gridftp-server"]) {
            continue;
        }
        let server = Setup::new(kind, root.path()).start().unwrap();
        let mv = |from: &str, to: &str| {
            let mut command = peers::ropewalk_command().unwrap();
            let to = format!("{}/", server.url(to).trim_end_matches('/'));
            command.arg("mv").arg(server.url(from)).arg(to);
            process::run(&mut command, Duration::from_secs(30)).unwrap()
        };
        for nowhere in ["nowhere", "old"] {
            mv("f", nowhere).failed().unwrap();
            assert!(root.join("f").exists() && !root.join("nowhere").exists(), "{kind:?}");
            assert_eq!(fs::read_to_string(root.join("old")).unwrap(), "old");
        }
        mv("f", "d").succeeded().unwrap();
        assert_eq!(fs::read_to_string(root.join("d/f")).unwrap(), "f");
        mv("d/e", "new").succeeded().unwrap();
        assert!(root.join("new").is_dir());
        fs::rename(root.join("d/f"), root.join("f")).unwrap();
        fs::rename(root.join("new"), root.join("d/e")).unwrap();
    }
}
