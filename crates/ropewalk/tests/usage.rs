//! The program as a shell sees it: flags, help, exit codes. No server is needed.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ropewalk"));
    command.env_clear().env("HOME", "/nonexistent").stdin(Stdio::null());
    command
}

fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    program().args(arguments).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

#[test]
fn help_lists_the_commands_and_the_exit_codes() {
    let output = run(["--help"]);
    assert_eq!(code(&output), 0);
    let help = out(&output);
    let commands: Vec<_> = help
        .lines()
        .skip_while(|line| *line != "Copy:")
        .take_while(|line| *line != "Options:")
        .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
        .collect();
    let expected = [
        "cp",
        "sync",
        "jobs",
        "check",
        "clean",
        "ls",
        "stat",
        "find",
        "du",
        "cat",
        "sum",
        "mkdir",
        "mv",
        "rm",
        "space",
        "route",
        "reserve",
        "reservations",
        "cancel",
        "slots",
        "serve",
        "node",
        "admin",
        "gateway",
        "passwd",
        "proxy",
        "known-hosts",
        "ca",
        "doctor",
        "profile",
        "report",
        "model",
        "buffers",
        "lab",
        "config",
        "sites",
        "globus-url-copy",
        "completions",
        "man",
    ];
    let tools = ["doctor", "profile", "report", "model", "buffers", "lab"];
    let is_here = |command: &&str| cfg!(feature = "tools") || !tools.contains(command);
    assert_eq!(commands, expected.into_iter().filter(is_here).collect::<Vec<_>>());
    assert!(help.contains("Exit codes:") && help.contains("130  interrupted"), "{help}");
}

#[test]
fn wrong_use_is_exit_code_2() {
    let cases: &[&[&str]] = &[
        &[],
        &["nonsense"],
        &["cp"],
        &["cp", "a"],
        &["cp", "--streams", "0", "a", "b"],
        &["cp", "--stall-limit", "60s", "a", "b"],
        &["cp", "--sync=sometimes", "a", "b"],
        &["cp", "--delete", "-r", "a", "b"],
        &["cp", "--offset", "1", "a", "b", "c"],
        &["cp", "--json", "a", "-"],
        &["cp", "-q", "-v", "a", "b"],
        &["cp", "-f", "/nonexistent/pairs"],
        &["cp", "--password-file", "/nonexistent/password", "ftp://127.0.0.1:1/a", "b"],
        &["cp", "--auth", "kerberos", "--insecure", "gsiftp://127.0.0.1:1/a", "b"],
        &["ls", "--auth", "gsi", "--insecure", "gsiftp://127.0.0.1:1/"],
        &["cp", "gopher://127.0.0.1/a", "b"],
        &["buffers", "--release", "-n"],
        &["buffers", "--release", "--watch"],
        &["buffers", "--release", "--serve"],
        &["ls"],
        &["ls", "ftp://127.0.0.1:99999/"],
        &["find", "/", "--size", "huge"],
        &["sum", "-a", "rot13", "a"],
        &["mv", "a", "ftp://127.0.0.1:1/a"],
        &["serve", "--listen", "nowhere"],
        &["serve", "--config", "/nonexistent/server.toml"],
        &["serve", "--data-ports", "9"],
        &["serve", "--nodes-listen", "127.0.0.1:0", "--root", "/", "--anonymous"],
        &["node", "--join", "127.0.0.1:1", "--root", "/"],
        &["node", "--join", "127.0.0.1:1", "--root", "/", "--join-token-file", "/nonexistent/token"],
        &["route", "ftp://127.0.0.1:1/", "."],
        &["route", "a", "b", "--relays", "ftp://127.0.0.1:1"],
        &["route", "ftp://127.0.0.1:1/", ".", "--relays", "/tmp"],
        &["passwd"],
        &["completions", "cmd.exe"],
        &["man", "nonsense"],
    ];
    for arguments in cases {
        let output = run(*arguments);
        assert_eq!(code(&output), 2, "{arguments:?}: {}", err(&output));
        assert!(!output.stderr.is_empty(), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn mistakes_in_flags_are_explained() {
    let error = err(&run(["cp", "--streams", "many", "a", "b"]));
    assert!(
        error.contains("many") && error.contains("--streams") && error.contains("from 1, or auto"),
        "{error}"
    );
}

#[test]
fn nothing_is_open_by_default() {
    let directory = tempfile::tempdir().unwrap();
    let output = run([
        "serve".as_ref(),
        "--listen".as_ref(),
        "127.0.0.1:0".as_ref(),
        "--root".as_ref(),
        directory.path().as_os_str(),
    ]);
    assert_eq!(code(&output), 2, "{}", err(&output));
    assert!(output.stdout.is_empty());
}

#[test]
fn settings_have_origins() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("ropewalk")).unwrap();
    let file = directory.path().join("ropewalk/config.toml");
    fs::write(&file, "streams = 4\nretries = 1\n").unwrap();
    let show = |variable: &str| {
        program()
            .args(["config", "show", "--origin"])
            .env("XDG_CONFIG_HOME", directory.path())
            .env("ROPEWALK_RETRIES", variable)
            .output()
            .unwrap()
    };
    let text = out(&show("9"));
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("streams = 4").ends_with(&format!("# {}", file.display())));
    assert!(line("retries = 9").ends_with("# environment variable ROPEWALK_RETRIES"));
    assert!(line("mode = \"auto\"").ends_with("# default"));

    let output = show("often");
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("ROPEWALK_RETRIES"), "{}", err(&output));

    fs::write(&file, "strams = 4\n").unwrap();
    let output = show("");
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("strams"), "{}", err(&output));
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(out(&run(["completions", shell])).contains("stall-limit"), "{shell}");
    }
    assert!(out(&run(["man"])).starts_with(".ie"));
    assert!(out(&run(["man", "cp"])).contains("stall\\-limit"));
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(code(&run(["man".as_ref(), "--directory".as_ref(), directory.path().as_os_str()])), 0);
    assert!(directory.path().join("ropewalk-cp.1").exists() && directory.path().join("ropewalk.1").exists());
    assert!(out(&run(["man", "known-hosts list"])).contains("ropewalk-known-hosts-list"));
    if cfg!(feature = "tools") {
        assert!(out(&run(["man", "lab run"])).contains("ropewalk-lab-run"));
    }
    // Pages that a page refers to exist.
    for page in fs::read_dir(directory.path()).unwrap() {
        let text = fs::read_to_string(page.unwrap().path()).unwrap().replace("\\-", "-");
        let others =
            text.lines().filter_map(|line| line.strip_suffix("(1)")).filter(|name| !name.ends_with("-help"));
        for other in others {
            assert!(directory.path().join(format!("{other}.1")).exists(), "{other}");
        }
    }
}

#[test]
fn passwords() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("new/users");
    let passwd = |arguments: &[&str], input: &str| {
        let mut child = program()
            .arg("passwd")
            .arg("--file")
            .arg(&file)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The program may end without reading.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    };
    assert_eq!(code(&passwd(&["alice"], "secret\n")), 0);
    assert_eq!(code(&passwd(&["bob"], "")), 2, "an empty password");
    assert_eq!(code(&passwd(&["../x"], "secret\n")), 2);
    assert_eq!(out(&passwd(&["--list"], "")), "alice\n");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("alice:$argon2id$") && !text.contains("secret"));
    assert_eq!(code(&passwd(&["--delete", "alice"], "")), 0);
    assert_eq!(code(&passwd(&["--delete", "alice"], "")), 1);
    assert_eq!(out(&passwd(&["--list"], "")), "");
}

#[test]
fn local_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).into_os_string();
    let url = |name: &str| format!("file://{}", directory.path().join(name).display());
    assert_eq!(code(&run(["mkdir".into(), "-p".into(), path("a/b")])), 0);
    assert_eq!(code(&run(["mkdir".into(), path("a")])), 1);
    fs::write(path("a/f"), "0123456789").unwrap();

    assert_eq!(out(&run(["cat", "--offset", "2", "--length", "3", &url("a/f")])), "234");
    let sum = out(&run(["sum", "-a", "md5", &url("a/f")]));
    assert!(sum.starts_with("781e5e245d69b566979b86e28d23f2c7  "), "{sum}");
    let stat = out(&run(["stat".into(), "--json".into(), path("a/f")]));
    assert!(stat.starts_with("{\"schema\":1,") && stat.contains("\"size\":10"), "{stat}");

    assert_eq!(code(&run(["mv".into(), path("a/f"), path("a/b")])), 0);
    assert!(directory.path().join("a/b/f").exists());
    assert_eq!(code(&run(["rm".into(), path("a")])), 2, "a directory needs -r");
    assert_eq!(code(&run(["rm".into(), path("none")])), 4);
    assert_eq!(code(&run(["rm".into(), "-f".into(), path("none")])), 0);
    assert_eq!(code(&run(["rm".into(), "-r".into(), path("a")])), 0);
    assert_eq!(code(&run(["cat".into(), path("none")])), 4);
}

#[test]
fn links_are_links() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).into_os_string();
    fs::create_dir(path("archive")).unwrap();
    fs::write(path("archive/f"), "x").unwrap();
    symlink("archive", path("current")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    let find = |kind: &str| {
        let found = run(["find".as_ref(), "--type".as_ref(), kind.as_ref(), directory.path().as_os_str()]);
        assert_eq!(code(&found), 0, "{}", err(&found));
        let text = out(&found);
        let mut names: Vec<String> =
            text.lines().map(|line| line.rsplit('/').next().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(find("l"), ["current", "dangling"]);
    assert_eq!((find("d"), find("f")), (vec!["archive".to_owned()], vec!["f".to_owned()]));
    // With a trailing slash the link itself is removed, too.
    assert_eq!(code(&run(["rm".into(), "-r".into(), path("current/")])), 0);
    assert!(!directory.path().join("current").is_symlink() && directory.path().join("archive/f").is_file());
}

#[test]
fn globus_url_copy_goes_on_and_keeps_account() {
    let directory = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("file://{}/{name}", directory.path().display());
    fs::create_dir_all(directory.path().join("s/sub/empty")).unwrap();
    fs::create_dir(directory.path().join("t")).unwrap();
    fs::write(directory.path().join("s/sub/f"), "0123456789").unwrap();
    let left = directory.path().join("left");
    let guc = |arguments: &[&str]| run([&["globus-url-copy"], arguments].concat());
    let output = guc(&["-r", "-df", left.to_str().unwrap(), &url("s/"), &url("t/")]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(directory.path().join("t/sub/f").is_file() && directory.path().join("t/sub/empty").is_dir());
    assert_eq!(fs::read_to_string(&left).unwrap(), "");

    let pairs = directory.path().join("pairs");
    let lines = [("none/*", "t/"), ("s/sub/f", "t/g"), ("s/sub/f", "none/g")];
    let text: String = lines.map(|(from, to)| format!("{} {}\n", url(from), url(to))).concat();
    fs::write(&pairs, text).unwrap();
    let left = directory.path().join("left too");
    let output =
        guc(&["-c", "-off", "2", "-len", "3", "-df", left.to_str().unwrap(), "-f", pairs.to_str().unwrap()]);
    assert_eq!(code(&output), 1, "{}", err(&output));
    assert_eq!(fs::read_to_string(directory.path().join("t/g")).unwrap(), "\x00\x00234");
    // One of the two copies of a file was made, and it is unknown which.
    let left = fs::read_to_string(&left).unwrap();
    assert_eq!(left.lines().count(), 3, "{left}");
}

#[test]
fn globus_url_copy_by_name_and_as_a_command() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("globus-url-copy");
    symlink(env!("CARGO_BIN_EXE_ropewalk"), &link).unwrap();
    let by_name = |arguments: &[&str]| Command::new(&link).args(arguments).output().unwrap();

    let output = by_name(&["-help"]);
    assert!(out(&output).contains("-tcp-bs <size> | -tcp-buffer-size <size>"));
    assert_eq!(out(&output), out(&run(["globus-url-copy", "-help"])));
    assert!(err(&by_name(&["-version"])).starts_with("globus-url-copy: "));

    let output = by_name(&["-foo", "a", "b"]);
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("Error, argument #1 (-foo) : unknown option"));
    let output = by_name(&["-vb"]);
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("source and dest url strings are required"));
    let output = by_name(&["-mn", "module", "gsiftp://h/a", "file:///b"]);
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("-mn is not supported"));

    let empty = directory.path().join("empty");
    fs::write(&empty, "").unwrap();
    let output = by_name(&["-df", empty.to_str().unwrap()]);
    assert_eq!(code(&output), 2);
    assert!(out(&output).contains("Nothing to do."));
}

#[test]
fn cleaning_does_not_go_through_links() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["given/d/.a.ropewalk-part", "other/.b.ropewalk-part", "other/c"] {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        let file = fs::File::create(at(name)).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    symlink("../other", at("given/link")).unwrap();
    symlink("../other/c", at("given/.c.ropewalk-part")).unwrap();
    let output = run(["clean".as_ref(), at("given").as_os_str()]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(!at("given/d/.a.ropewalk-part").exists(), "{}", err(&output));
    assert!(at("other/.b.ropewalk-part").exists() && at("other/c").exists());
}

#[test]
fn keys_of_an_authority_are_not_replaced_by_mistake() {
    let directory = tempfile::tempdir().unwrap();
    let ca = |arguments: &[&str]| {
        program().current_dir(&directory).arg("ca").args(arguments).stdin(Stdio::null()).output().unwrap()
    };
    for arguments in [&["init"][..], &["user", "Ada"]] {
        let output = ca(arguments);
        assert_eq!(code(&output), 0, "{}", err(&output));
    }
    let key = || fs::read(directory.path().join("userkey.pem")).unwrap();
    let adas = key();
    let output = ca(&["user", "Bob"]);
    assert_eq!((code(&output), err(&output).contains("usercert.pem exists already")), (2, true));
    assert!(key() == adas);
    assert_eq!(code(&ca(&["user", "Bob", "--force"])), 0);
    assert!(key() != adas);
}

/// It may contain a password, a key or a token.
#[test]
fn a_crash_writes_no_secrets_to_disk() {
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("ftp://{}/f", silent.local_addr().unwrap());
    let mut client = program().args(["cp", &url, "/nonexistent/f"]).stderr(Stdio::null()).spawn().unwrap();
    let connected = silent.accept();
    let limits = fs::read_to_string(format!("/proc/{}/limits", client.id()));
    client.kill().unwrap();
    client.wait().unwrap();
    connected.unwrap();
    let limits = limits.unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert!(matches!(core.split_whitespace().nth(4), Some("0" | "1")), "{core}");
}

#[test]
fn events_that_cannot_be_written_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("a"), "0123456789").unwrap();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output =
        program().arg("cp").arg("--json").arg(path("a")).arg(path("b")).stdout(full).output().unwrap();
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("events were lost"), "{}", err(&output));
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = program().arg("cp").arg("-n").arg(path("a")).arg(path("b")).stdout(full).output().unwrap();
    assert_eq!(code(&output), 7, "{}", err(&output));
    // A full output is not the source's fault.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = program().arg("cat").arg(path("a")).stdout(full).output().unwrap();
    assert_eq!(code(&output), 7, "{}", err(&output));
    assert!(err(&output).starts_with("ropewalk: writing the output: "), "{}", err(&output));
    // Options may stand between places.
    let output = program().arg("cp").arg(path("a")).arg("-q").arg(path("d")).output().unwrap();
    assert_eq!((code(&output), err(&output)), (0, String::new()));
    assert_eq!(code(&program().arg("cp").arg(path("a")).output().unwrap()), 2);
    // The copy was made nevertheless.
    assert_eq!(fs::read(path("b")).unwrap(), b"0123456789");
    // A reader that closes the pipe is not an error.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output =
        program().arg("cp").arg("--json").arg(path("a")).arg(path("c")).stdout(writer).output().unwrap();
    assert_eq!((code(&output), err(&output)), (0, String::new()));
}

/// A command that works on local paths ends at the first signal, whatever it waits for.
#[test]
fn one_signal_ends_what_works_on_places_of_this_machine() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    for (command, more) in [("cat", None), ("sum", None), ("cat", Some("ftp://127.0.0.1:1/x"))] {
        let mut child = program()
            .args([command.as_ref(), fifo.as_os_str()])
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Until the file is opened for reading, which shows that signals are handled.
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
        let _silent = loop {
            match rustix::fs::open(&fifo, flags, rustix::fs::Mode::empty()) {
                Ok(end) => break end,
                Err(error) => assert_eq!(error, rustix::io::Errno::NXIO),
            }
            assert!(child.try_wait().unwrap().is_none(), "{command} has ended");
            std::thread::yield_now();
        };
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((code(&output), &*err(&output)), (130, "ropewalk: interrupted\n"), "{command}");
    }
}

#[test]
fn nothing_removes_the_root() {
    for place in
        ["/", "//", ".", "..", "/.", "ftp://127.0.0.1:1/", "ftp://127.0.0.1:1/%2F", "ftp://127.0.0.1:1/a/.."]
    {
        let output = run(["rm", "-r", place]);
        assert_eq!(code(&output), 2, "{place}: {}", err(&output));
    }
}

/// A copy that is measured for a limited time, as perfSONAR does, has not failed at the end of that
/// time.
#[test]
fn time_that_is_up_is_no_failure() {
    let output = run(["globus-url-copy", "-t", "1", "file:///dev/zero", "file:///dev/null"]);
    assert_eq!((code(&output), &*err(&output)), (0, "\nCancelling copy...\n"));
}

/// Without a limit on their number, tries end by time, also without a terminal.
#[test]
fn tries_of_a_connection_end_by_the_time() {
    let words = "globus-url-copy -rst -rst-retries 0 -rst-interval 1 -rst-timeout 1 ftp://127.0.0.1:1/a file:///dev/null";
    let output = run(words.split(' '));
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("refused"), "{}", err(&output));
}

/// If the reader of its log has gone, lines are lost, but the server runs on.
#[test]
fn a_server_goes_on_without_a_log() {
    let root = tempfile::tempdir().unwrap();
    let mut child = program()
        .args(["serve", "--listen", "127.0.0.1:0", "--anonymous", "--log", "debug", "--root"])
        .arg(root.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = said.next().unwrap().unwrap();
    let address = line.strip_prefix("Server listening at ").unwrap().to_owned();
    drop(child.stderr.take());
    for _ in 0..2 {
        let listed = run(["ls", &format!("ftp://{address}/")]);
        assert_eq!(code(&listed), 0, "{}", err(&listed));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A file that cannot be removed is reported, and the others are removed.
#[test]
fn leftovers_are_cleaned_one_by_one() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let mut parts = Vec::new();
    for (place, owner) in [("a", 65_534), ("b", 0), ("c", 65_534)] {
        let place = directory.path().join(place);
        fs::create_dir(&place).unwrap();
        let part = place.join(".f.ropewalk-part");
        fs::File::create(&part).unwrap().set_modified(old).unwrap();
        std::os::unix::fs::chown(&place, Some(owner), None).unwrap();
        parts.push(part);
    }
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // In a directory that the user can reach.
    let copy = directory.path().join("ropewalk");
    fs::copy(env!("CARGO_BIN_EXE_ropewalk"), &copy).unwrap();
    let mut clean = Command::new("setpriv");
    clean.args(["--reuid=65534", "--clear-groups"]).arg(copy).arg("clean").arg(directory.path());
    clean.env("HOME", "/nonexistent").env_remove("XDG_STATE_HOME").env_remove("XDG_CONFIG_HOME");
    let output = clean.output().unwrap();
    assert_eq!(code(&output), 5, "{}", err(&output));
    assert!(err(&output).contains("b/.f.ropewalk-part: ") && err(&output).contains("1 could not be removed"));
    let left: Vec<bool> = parts.iter().map(|part| part.exists()).collect();
    assert_eq!(left, [false, true, false], "{}", err(&output));
}

/// The server refuses further clients with a message, and accepts new ones once it has descriptors
/// again.
#[test]
fn a_server_without_descriptors_says_so() {
    let root = tempfile::tempdir().unwrap();
    let mut child = Command::new("sh")
        .args([
            "-c",
            "ulimit -n 64; exec \"$0\" serve --listen 127.0.0.1:0 --anonymous --no-tls --root \"$1\"",
        ])
        .args([env!("CARGO_BIN_EXE_ropewalk").as_ref(), root.path().as_os_str()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = said.next().unwrap().unwrap();
    let address = address.strip_prefix("Server listening at ").unwrap().to_owned();
    let greeted = || {
        let mut client = BufReader::new(TcpStream::connect(&address).unwrap());
        client.get_ref().set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        (line, client)
    };
    let clients: Vec<_> = (0..80).map(|_| greeted()).collect();
    assert!(clients[0].0.starts_with("220 "), "{}", clients[0].0);
    assert!(clients[79].0.starts_with("421 Service busy"), "{}", clients[79].0);
    drop(clients);
    // As soon as the server has noticed.
    while !greeted().0.starts_with("220 ") {
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 0);
    let told = err(&output).matches("cannot accept connections").count();
    assert!((1..10).contains(&told), "{}", err(&output));
}

#[test]
fn what_was_poured_out_is_not_poured_again() {
    const SIZE: usize = 4 << 20;
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    fs::write(&log, vec![b'x'; SIZE]).unwrap();
    let mut child =
        program().arg("cp").arg(&log).arg("-").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut found = vec![0; 1000];
    out.read_exact(&mut found).unwrap();
    // The rest of the log waits for the full pipe.
    fs::File::options().append(true).open(&log).unwrap().write_all(b"more").unwrap();
    out.read_to_end(&mut found).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(found.len(), SIZE);
}
