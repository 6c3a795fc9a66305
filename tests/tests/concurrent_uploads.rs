//! Two concurrent uploads to one name: the result is one of the two files, complete, at any server.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ropewalk_tests::client::{Client, Copy, Mode, Summary};
use ropewalk_tests::process::Program;
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, peers};
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(60);
/// Bytes after which the slower upload is under way.
const SOME: u64 = 1 << 20;

/// Returns GCT's server and its root if the server is installed.
fn gct() -> Option<(Scratch, PathBuf, Server)> {
    if !peers::available(&["globus-gridftp-server", "setpriv"]) {
        return None;
    }
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("served").unwrap();
    let server = Setup::new(Kind::Gct, &root).start().unwrap();
    Some((scratch, root, server))
}

fn parts(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().flatten().map(|entry| entry.file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| name.contains("ropewalk-part")).collect()
}

/// The upload that began first stalls until the other one has ended.
#[test]
fn concurrent_uploads_leave_one_whole_file() {
    let Some((scratch, root, server)) = gct() else { return };
    // With a journal and without one.
    for size in [24 << 20, 3 << 20] {
        let [first, second] = ["first", "second"].map(|name| {
            let path = scratch.join(format!("{name}-{size}"));
            files::write_random(&path, size, size + name.len() as u64).unwrap();
            path
        });
        // GCT's server computes a checksum that was requested in advance by name.
        for checksum in ["--checksum=none", "--checksum=adler32", "--checksum=auto"] {
            let proxy = Proxy::start(server.address()).unwrap();
            proxy.set_rate(Some(20 << 20));
            let upload = |source: &Path, url: String| {
                let copy = Copy::new(Client::Ropewalk.local(source, false), url);
                Client::Ropewalk.start(&copy.argument(checksum).argument("--mode=stream")).unwrap()
            };
            let url = server.url_at(proxy.address(), "x");
            let mut slow = upload(&first, url.clone());
            proxy.wait_for(SOME, SOON).unwrap();
            slow.signal(Signal::STOP);
            proxy.set_rate(None);
            let mut quick = upload(&second, url);
            let ended = quick.wait(SOON).unwrap();
            assert!(ended.success(), "{size} {checksum}: {}", quick.log());
            files::ensure_same(&second, &root.join("x")).unwrap();
            slow.signal(Signal::CONT);
            let ended = slow.wait(SOON).unwrap();
            assert!(ended.success(), "{size} {checksum}: {}", slow.log());
            files::ensure_same(&first, &root.join("x")).unwrap();
            assert_eq!(parts(&root), Vec::<String>::new());
            fs::remove_file(root.join("x")).unwrap();
        }
    }
}

/// The next upload resumes or overwrites the part file of a killed upload, but not that of a
/// running upload.
#[test]
fn killed_upload_is_resumed_by_next() {
    let Some((scratch, root, server)) = gct() else { return };
    for size in [24 << 20, 3 << 20] {
        let source = scratch.join(format!("source-{size}"));
        files::write_random(&source, size, size).unwrap();
        let state = scratch.directory(format!("state-{size}")).unwrap();
        let proxy = Proxy::start(server.address()).unwrap();
        let begin = || {
            let url = server.url_at(proxy.address(), "x");
            let copy = Copy::new(Client::Ropewalk.local(&source, false), url).mode(Mode::Extended(1));
            let mut command = Client::Ropewalk.command(&copy).unwrap();
            Program::start(command.env("XDG_STATE_HOME", &state)).unwrap()
        };
        // Restart markers report some of the data after one second.
        proxy.set_rate(Some(8 << 20));
        let mut killed = begin();
        proxy.wait_for(2 * size / 3, SOON).unwrap();
        killed.signal(Signal::STOP);
        proxy.set_rate(None);
        // A second run during the first one has its own part file.
        let mut beside = begin();
        let ended = beside.wait(SOON).unwrap();
        assert!(ended.success(), "{}", beside.log());
        files::ensure_same(&source, &root.join("x")).unwrap();
        let left = parts(&root);
        assert_eq!(left.len(), 1, "{left:?}");
        killed.kill();
        fs::remove_file(root.join("x")).unwrap();
        let mut again = begin();
        let ended = again.wait(SOON).unwrap();
        let log = again.finish();
        assert!(ended.success(), "{log}");
        files::ensure_same(&source, &root.join("x")).unwrap();
        assert_eq!(parts(&root), Vec::<String>::new(), "{left:?}");
        let events: String =
            log.lines().filter(|line| line.starts_with('{')).map(|line| format!("{line}\n")).collect();
        let resumed = Summary::parse(&events).unwrap().number("bytes_resumed").unwrap();
        assert_eq!(resumed > 0, size > 4 << 20, "{size}: {resumed} bytes");
        fs::remove_file(root.join("x")).unwrap();
    }
}
