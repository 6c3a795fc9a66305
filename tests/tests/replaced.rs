//! Files that are replaced keep their permissions, at whatever server and by whatever way.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ropewalk_tests::client::{Client, Copy};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::{files, peers};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn what_is_replaced_keeps_its_permissions() {
    let scratch = Scratch::new().unwrap();
    let [small, large] = [("small", 1000), ("large", 5 << 20)].map(|(name, size)| {
        let path = scratch.join(name);
        files::write_random(&path, size, size).unwrap();
        path
    });
    for kind in [Kind::Ropewalk, Kind::Gct] {
        if kind == Kind::Gct && !peers::available(&["globus-gridftp-server", "setpriv"]) {
            continue;
        }
        let root = scratch.directory(format!("{kind:?}")).unwrap();
        let server = Setup::new(kind, &root).start().unwrap();
        let copy = |source: std::ffi::OsString, arguments: &[&str]| {
            let mut copy = Copy::new(source, server.url("x"));
            copy.arguments = arguments.iter().map(Into::into).collect();
            Client::Ropewalk.run(&copy).unwrap().succeeded().unwrap();
            mode(&root.join("x"))
        };
        // New ones have what the server gives them.
        let usual = copy(large.clone().into(), &[]);
        assert_eq!(usual, 0o644, "{kind:?}");
        fs::copy(&large, root.join("s")).unwrap();
        for kept in [0o600, 0o640, 0o440] {
            for (source, arguments) in [
                (small.clone().into(), &[][..]),
                (large.clone().into(), &[]),
                (large.clone().into(), &["--mode", "stream"]),
                (server.url("s").into(), &[]),
                (server.url("s").into(), &["--through-here"]),
            ] {
                fs::set_permissions(root.join("x"), Permissions::from_mode(kept)).unwrap();
                assert_eq!(copy(source, arguments), kept, "{kind:?} {arguments:?}");
            }
        }
        fs::set_permissions(&large, Permissions::from_mode(0o604)).unwrap();
        assert_eq!(
            copy(large.clone().into(), &["--preserve", "modes"]),
            0o604,
            "{kind:?}: those of the source were asked for"
        );
    }
}
