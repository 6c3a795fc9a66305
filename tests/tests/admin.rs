//! `ropewalk admin` with running servers.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::control::Control;
use ropewalk_tests::nodes::{LIMIT, Site};
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Outcome, Program};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use rustix::process::Signal;
use serde_json::Value;

fn admin(socket: &Path, words: &[&str]) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    command.arg("admin").arg("--socket").arg(socket).args(words);
    process::run(&mut command, LIMIT).unwrap()
}

fn list(socket: &Path, what: &str) -> Vec<Value> {
    let text = admin(socket, &[what, "--json"]).succeeded().unwrap().text();
    let entries: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(entries.iter().all(|entry| entry["schema"] == 1), "{text}");
    entries
}

fn wait_for(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(50));
    }
}

fn write_settings(directory: &Path, bandwidth: &str) -> PathBuf {
    let text = format!(
        "root = '.'\nlisten = ['127.0.0.1:0']\n[anonymous]\nwrite = true\nrun_as = 'server'\n\
         [tls]\nenabled = false\n[limits]\nactive = 1\n[admin]\nsocket = 'admin'\n{bandwidth}"
    );
    let path = directory.join("server.toml");
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn sessions_and_limits_are_listed_and_a_session_is_ended() {
    let scratch = Scratch::new().unwrap();
    let settings =
        write_settings(scratch.path(), "[[bandwidth]]\nrate = '2MB/s'\n[[bandwidth]]\nrate = 'off'\n");
    fs::File::create(scratch.join("file")).unwrap().set_len(1 << 30).unwrap();
    let mut serve = peers::ropewalk_command().unwrap();
    let mut program = Program::start(serve.args(["serve", "--config"]).arg(settings)).unwrap();
    let listening = |line: &str| line.strip_prefix("Server listening at ")?.trim().parse().ok();
    let address = program.wait_for_line(LIMIT, listening).unwrap();
    let socket = scratch.join("admin");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);

    let mut idle = Control::log_in(address).unwrap();
    let mut moving = Control::log_in(address).unwrap();
    let mut data = moving.open_data().unwrap();
    moving.send("RETR /file").unwrap();
    let reader = thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(1..) = data.read(&mut buffer) {}
    });
    wait_for(|| list(&socket, "sessions").iter().any(|session| session["rate"].as_u64() > Some(0)));
    let sessions = list(&socket, "sessions");
    let of = |activity: &str| sessions.iter().find(|session| session["activity"] == activity).unwrap();
    let (first, second) = (of("idle"), of("RETR"));
    assert_eq!((sessions.len(), &first["user"]), (2, &second["user"]));
    assert_eq!((&second["path"], &second["kind"]), (&"/file".into(), &"session".into()));
    assert!(second["bytes"].as_u64() > Some(0) && second["total"].as_u64() >= second["bytes"].as_u64());
    let table = admin(&socket, &["sessions"]).succeeded().unwrap().text();
    assert!(table.contains("RETR /file") && table.starts_with("ID"), "{table}");

    // A session that waits for its turn.
    let mut waiting = Control::log_in(address).unwrap();
    let _data = waiting.open_data().unwrap();
    waiting.send("RETR /file").unwrap();
    let find = || list(&socket, "sessions").into_iter().find(|session| session["activity"] == "waiting");
    wait_for(|| find().is_some());
    let id = find().unwrap()["id"].to_string();
    admin(&socket, &["kick", &id]).succeeded().unwrap();
    let ended = waiting.final_reply().unwrap();
    assert!(ended.code == 421 && ended.text.contains("administrator"), "{ended:?}");
    wait_for(|| list(&socket, "sessions").len() == 2);

    // Limits, before and after a reload.
    wait_for(|| list(&socket, "limits")[0]["used"].as_u64() > Some(500_000));
    let limits = list(&socket, "limits");
    assert_eq!((&limits[0]["now"], &limits[1]["now"]), (&2_000_000.into(), &Value::Null));
    write_settings(scratch.path(), "[[bandwidth]]\nrate = '3MB/s'\ndirection = 'upload'\n");
    program.signal(Signal::HUP);
    wait_for(|| list(&socket, "limits").len() == 1);
    let limits = list(&socket, "limits");
    assert_eq!((&limits[0]["direction"], &limits[0]["used"]), (&"upload".into(), &0.into()));
    write_settings(scratch.path(), "[[bandwidth]]\nrate = '2MB/s'\n[[bandwidth]]\nrate = 'fast'\n");
    let refused = admin(&socket, &["reload"]).failed().unwrap();
    assert!(refused.errors().contains("the old settings stay"), "{}", refused.errors());
    write_settings(scratch.path(), "[[bandwidth]]\nrate = '2MB/s'\n");
    admin(&socket, &["reload"]).succeeded().unwrap();
    assert_eq!(list(&socket, "limits")[0]["now"], 2_000_000);

    for session in [first, second] {
        admin(&socket, &["kick", &session["id"].to_string()]).succeeded().unwrap();
    }
    let ended = idle.reply().unwrap();
    assert!(ended.code == 421 && ended.text.contains("administrator"), "{ended:?}");
    let ended = moving.final_reply().unwrap();
    assert!(ended.code == 451 && ended.text.contains("administrator"), "{ended:?}");
    assert_eq!(moving.reply().unwrap().code, 421);
    reader.join().unwrap();
    wait_for(|| list(&socket, "sessions").is_empty());
    let unknown = admin(&socket, &["kick", "77"]).failed().unwrap();
    assert!(unknown.errors().contains("there is no session 77"), "{}", unknown.errors());
    let no_nodes = admin(&socket, &["nodes"]).failed().unwrap();
    assert!(no_nodes.errors().contains("no front end"), "{}", no_nodes.errors());

    admin(&socket, &["drain"]).succeeded().unwrap();
    assert!(program.wait(LIMIT).unwrap().success());
    assert!(!socket.exists());
    assert_eq!(admin(&socket, &["sessions"]).status.code(), Some(4));
}

#[test]
fn nodes_are_listed_and_drained() {
    let scratch = Scratch::new().unwrap();
    let socket = scratch.join("admin");
    let mut site = Site::with(&["--admin-socket", socket.to_str().unwrap()]);
    assert_eq!(list(&socket, "nodes").len(), 0);
    let node = site.node("a");
    wait_for(|| list(&socket, "nodes").len() == 1);
    let nodes = list(&socket, "nodes");
    assert_eq!((&nodes[0]["name"], &nodes[0]["draining"]), (&"a".into(), &false.into()));
    assert_eq!(nodes[0]["addresses"][0], "127.0.0.1");
    let unknown = admin(&socket, &["drain", "--node", "b"]).failed().unwrap();
    assert!(unknown.errors().contains("there is no node"), "{}", unknown.errors());
    admin(&socket, &["drain", "--node", "a"]).succeeded().unwrap();
    assert_eq!(list(&socket, "nodes")[0]["draining"], true);
    drop(node);
    wait_for(|| list(&socket, "nodes").is_empty());
    // The socket of a server that was killed is replaced.
    site.server.kill();
    assert!(socket.exists());
    let failed = admin(&socket, &["nodes"]).failed().unwrap();
    assert!(failed.errors().contains("no server answers"), "{}", failed.errors());
    let arguments = |setup: Setup| setup.argument("--admin-socket").argument(&socket);
    let mut server = arguments(Setup::new(Kind::Ropewalk, scratch.path())).start().unwrap();
    assert!(list(&socket, "sessions").is_empty());
    assert!(
        arguments(Setup::new(Kind::Ropewalk, scratch.path())).start().is_err(),
        "one socket, two servers"
    );
    server.program().signal(Signal::TERM);
}

#[test]
fn other_users_are_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    let socket = scratch.join("admin");
    let setup = Setup::new(Kind::Ropewalk, scratch.path()).argument("--admin-socket").argument(&socket);
    let _server = setup.start().unwrap();
    let as_nobody = || {
        let program = scratch.join("ropewalk");
        fs::copy(peers::ropewalk().unwrap(), &program).unwrap();
        let mut command = process::command(program);
        command.uid(65534).gid(65534).args(["admin", "sessions", "--socket"]).arg(&socket);
        process::run(&mut command, LIMIT).unwrap()
    };
    assert_eq!(as_nobody().status.code(), Some(5));
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let refused = as_nobody().failed().unwrap();
    assert!(refused.errors().contains("not the user with uid 65534"), "{}", refused.errors());
    assert!(list(&socket, "sessions").is_empty());
}
