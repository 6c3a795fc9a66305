//! sshftp:// through OpenSSH: Ropewalk's client and server, with each other and with GCT's.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ropewalk_tests::process::run;
use ropewalk_tests::sites::ssh::Site;
use ropewalk_tests::sshd::{User, executable};
use ropewalk_tests::terminal::Terminal;
use ropewalk_tests::{peers, process::Program};
use rustix::process::{Pid, Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(120);
/// The exit code of failed authentication.
const AUTHENTICATION: i32 = 3;

#[test]
fn client_with_ropewalk_server_transfers() {
    let Some(site) = Site::with_ours() else { return };
    site.rounds();
    // Short commands, and the home directory in which the session starts.
    fs::write(site.sshd.home().join("note"), "at home").unwrap();
    let home = format!("sshftp://localhost:{}/", site.sshd.port());
    let mut cat = site.command();
    let said = run(cat.args(["cat", "--relative-paths", &format!("{home}note")]), LIMIT).unwrap();
    assert_eq!(said.succeeded().unwrap_or_else(|e| site.fail(&e)).text(), "at home");
    // Ropewalk's globus-url-copy.
    let content = site.content();
    let back = format!("file://{}", site.path("back").display());
    let source = format!("{}source", site.url("../"));
    let copied = run(site.command().args(["globus-url-copy", "-p", "2", &source, &back]), LIMIT).unwrap();
    copied.succeeded().unwrap_or_else(|e| site.fail(&e));
    assert!(fs::read(site.path("back")).unwrap() == content);
}

#[test]
fn one_ssh_login_serves_all_sessions() {
    let Some(site) = Site::with_ours() else { return };
    site.tree();
    let count = |options: &[&str]| {
        let before = site.sshd.connections();
        site.cp(options, "tree/", &site.url("tree/")).succeeded().unwrap_or_else(|e| site.fail(&e));
        site.is_tree("root/tree");
        site.sshd.connections() - before
    };
    assert_eq!(count(&["-r", "--files", "6"]), 1);
    assert!(count(&["-r", "--files", "6", "--no-ssh-sharing"]) > 1);
}

#[test]
fn client_with_gct_server_transfers() {
    let Some(site) = Site::with_gcts() else { return };
    site.rounds();
}

#[test]
fn gct_client_with_ropewalk_server_transfers() {
    let Some(site) = Site::with_ours() else { return };
    if !peers::available(&["globus-url-copy", "unshare"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        peers::skip("only root can put another script into the place of GCT's");
        return;
    }
    let content = site.content();
    let local = |name: &str| format!("file://{}", site.path(name).display());
    let guc = |options: &[&str], from: &str, to: &str| {
        let arguments = [options, &[from, to]].concat();
        site.globus_url_copy(&arguments).succeeded().unwrap_or_else(|e| site.fail(&e));
    };
    for options in [&[][..], &["-p", "4"], &["-fast", "-p", "2"]] {
        guc(options, &local("source"), &site.url("there"));
        assert!(fs::read(site.path("root/there")).unwrap() == content, "{options:?}");
        guc(options, &site.url("there"), &local("back"));
        assert!(fs::read(site.path("back")).unwrap() == content, "{options:?}");
        fs::remove_file(site.path("root/there")).unwrap();
        fs::remove_file(site.path("back")).unwrap();
    }
    site.tree();
    guc(&["-r", "-cd"], &local("tree/"), &site.url("tree/"));
    guc(&["-r", "-cd", "-cc", "2"], &site.url("tree/"), &local("again/"));
    site.is_tree("again");
    // Third-party between two Ropewalk servers. GCT's client logs in again for each file.
    fs::create_dir(site.path("root/few")).unwrap();
    for n in 1..4u8 {
        fs::write(site.path(&format!("root/few/{n}")), vec![n; 5000]).unwrap();
    }
    guc(&["-r", "-cd"], &site.url("few/"), &site.url("copy/"));
    for n in 1..4u8 {
        assert_eq!(fs::read(site.path(&format!("root/copy/{n}"))).unwrap(), vec![n; 5000]);
    }
    site.sshd.until_none("serve").unwrap();
}

#[test]
fn third_party_through_ssh_transfers() {
    let (Some(ours), Some(gct)) = (Site::with_ours(), Site::with_gcts()) else { return };
    let content = ours.content();
    ours.cp(&[], "source", &ours.url("a")).succeeded().unwrap();
    // One ssh configuration for both hosts, whose keys differ.
    let both = format!("Include {}\n", ours.path("config").display());
    let keys = format!(
        "{both}IdentityFile {}\nUserKnownHostsFile {}\n",
        gct.path("key").display(),
        gct.path("known_hosts").display()
    );
    fs::write(ours.path("both"), keys).unwrap();
    let known = fs::read_to_string(gct.path("known_hosts")).unwrap();
    let mine = fs::read_to_string(ours.path("known_hosts")).unwrap();
    fs::write(ours.path("known_hosts"), mine + &known).unwrap();
    let ssh = format!("ssh -F {}", ours.path("both").display());
    for options in [&[][..], &["-p", "3"], &["--files", "2"]] {
        let options = [options, &["--ssh", &ssh]].concat();
        ours.cp(&options, &ours.url("a"), &gct.url("b")).succeeded().unwrap_or_else(|e| gct.fail(&e));
        assert!(fs::read(gct.path("root/b")).unwrap() == content, "{options:?}");
        ours.cp(&options, &gct.url("b"), &ours.url("c")).succeeded().unwrap_or_else(|e| gct.fail(&e));
        assert!(fs::read(ours.path("root/c")).unwrap() == content, "{options:?}");
        fs::remove_file(gct.path("root/b")).unwrap();
        fs::remove_file(ours.path("root/c")).unwrap();
    }
}

#[test]
fn ssh_messages_reach_user() {
    let Some(site) = Site::with_ours() else { return };
    let port = site.sshd.port();
    let ssh = site.sshd.client();
    let failure = |ssh: &str, url: &str, words: &str, code: Option<i32>| {
        let began = Instant::now();
        let outcome = site.cp(&["--ssh", ssh], url, "y").failed().unwrap();
        let text = outcome.errors();
        assert!(text.contains(words), "{url}: {text}");
        if let Some(code) = code {
            assert_eq!(outcome.status.code(), Some(code), "{text}");
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it was tried again and again: {text}");
        assert_eq!(site.sshd.processes("ssh -F").unwrap(), [""; 0]);
    };
    let url = site.url("x");
    let only_wrong = fs::read_to_string(site.path("config")).unwrap().replace("/key\n", "/wrong-key\n");
    fs::write(site.path("wrong"), only_wrong).unwrap();
    let wrong = format!("ssh -F {}", site.path("wrong").display());
    failure(&wrong, &url, "Permission denied (publickey)", Some(AUTHENTICATION));
    failure(&ssh, "sshftp://name.invalid/x", "Could not resolve hostname name.invalid", None);
    failure("/nonexistent/ssh", &url, "cannot be started", None);
    failure(&ssh, &format!("sshftp://$(id)@127.0.0.1:{port}/x"), "not a user name", None);
    site.sshd.know("other-host-key").unwrap();
    failure(&ssh, &url, "REMOTE HOST IDENTIFICATION HAS CHANGED", Some(AUTHENTICATION));
    fs::write(site.path("known_hosts"), "").unwrap();
    failure(&ssh, &url, "Host key verification failed", Some(AUTHENTICATION));
    assert_eq!(
        fs::read(site.path("known_hosts")).unwrap(),
        b"",
        "nobody was asked, and nothing is remembered"
    );
}

#[test]
fn host_without_setup_is_reported() {
    let Some(site) = Site::new(&[]) else { return };
    if fs::exists("/etc/grid-security/sshftp").unwrap() || fs::exists("/usr/bin/ropewalk").unwrap() {
        peers::skip("this host is set up for sshftp");
        return;
    }
    let text = site.cp(&[], &site.url("x"), "y").failed().unwrap().errors();
    assert!(text.contains("sshftp is not set up on this host"), "{text}");
    // A script that cannot be executed.
    fs::create_dir(site.sshd.home().join(".globus")).unwrap();
    fs::write(site.sshd.home().join(".globus/sshftp"), "#!/bin/sh\n").unwrap();
    let text = site.cp(&[], &site.url("x"), "y").failed().unwrap().errors();
    assert!(text.contains("Permission denied") && text.contains(".globus/sshftp"), "{text}");
    // A script that only prints a message.
    executable(&site.sshd.home().join(".globus/sshftp"), "#!/bin/sh\necho Welcome to this host\n").unwrap();
    let text = site.cp(&["--retries", "0"], &site.url("x"), "y").failed().unwrap().errors();
    assert!(text.contains("it is not an FTP server"), "{text}");
    // A site that starts the server by another path.
    let content = site.content();
    let remote = format!("exec '{}' serve --ssh", peers::ropewalk().unwrap().display());
    site.cp(&["--ssh-remote", &remote], "source", &site.url("there")).succeeded().unwrap();
    assert!(fs::read(site.path("root/there")).unwrap() == content);
    let mut by_variable = site.command();
    by_variable.env("GLOBUS_REMOTE_SSHFTP", &remote).args(["cp", "--quiet", &site.url("there"), "back"]);
    run(&mut by_variable, LIMIT).unwrap().succeeded().unwrap();
    assert!(fs::read(site.path("back")).unwrap() == content);
}

/// Another program makes the connection: here the server itself, whose standard input and output
/// are then a socket.
#[test]
fn program_other_than_ssh_can_connect() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let program = at("connect");
    fs::create_dir(at("root")).unwrap();
    let content: Vec<u8> = (0..700_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(at("source"), &content).unwrap();
    for (host, address) in [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1"), ("name.invalid", "127.0.0.1")] {
        let script = format!(
            "#!/bin/sh\necho \"$@\" > {}\nSSH_CONNECTION='{address} 50000 {address} 22' exec {} serve --ssh --root {}\n",
            at("arguments"),
            peers::ropewalk().unwrap().display(),
            at("root")
        );
        executable(program.as_ref(), &script).unwrap();
        let cp = |from: &str, to: &str| {
            let mut command = peers::ropewalk_command().unwrap();
            command.args(["cp", "--quiet", "-p", "2", "--ssh", &program, "--ssh-remote", "a b", from, to]);
            run(&mut command, LIMIT).unwrap().succeeded().unwrap();
        };
        let url = format!("sshftp://ada@{host}:77/there");
        cp(&at("source"), &url);
        cp(&url, &at("back"));
        assert!(fs::read(at("root/there")).unwrap() == content && fs::read(at("back")).unwrap() == content);
        let host = host.trim_matches(['[', ']']);
        assert_eq!(fs::read_to_string(at("arguments")).unwrap(), format!("-p 77 -l ada {host} a b\n"));
        fs::remove_file(at("back")).unwrap();
        fs::remove_file(at("root/there")).unwrap();
    }
}

#[test]
fn server_configuration_applies_through_ssh() {
    let Some(site) = Site::new(&[]) else { return };
    // Data connections are bound to the session, which ssh protects.
    let text = "root = 'root'\n[defaults]\nread_only = true\n[data]\nrequire_key = true\n";
    fs::write(site.path("server.toml"), text).unwrap();
    site.install(&["--config", site.path("server.toml").to_str().unwrap()]);
    let content = site.content();
    fs::write(site.path("root/there"), &content).unwrap();
    let url = format!("sshftp://127.0.0.1:{}/there", site.sshd.port());
    for options in [&["-p", "4"][..], &["--mode", "stream"], &["--require-data-authentication"]] {
        site.cp(options, &url, "back").succeeded().unwrap_or_else(|e| site.fail(&e));
        assert!(fs::read(site.path("back")).unwrap() == content, "{options:?}");
        fs::remove_file(site.path("back")).unwrap();
    }
    let text = site.cp(&["--retries", "0"], "source", &format!("{url}2")).failed().unwrap().errors();
    assert!(!site.path("root/there2").exists(), "{text}");
}

/// Starts a copy of standard input that never ends.
fn endless(site: &Site) -> std::process::Child {
    let mut command = site.command();
    command.args(["cp", "--quiet", "-", &site.url("endless")]).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn cancelled_copy_leaves_no_process() {
    let Some(site) = Site::with_ours() else { return };
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut child = endless(&site);
        until("no server", || !site.sshd.processes("serve").unwrap().is_empty());
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        if signal == Signal::KILL {
            // No client process was left to wait for it, so it ends by itself.
            site.sshd.until_none("ssh -F").unwrap();
        } else {
            assert_eq!(site.sshd.processes("ssh -F").unwrap(), [""; 0]);
        }
        site.sshd.until_none("serve").unwrap();
    }
}

#[test]
fn cancelled_login_leaves_no_process() {
    let Some(site) = Site::new(&[]) else { return };
    let mut command = site.command();
    command.args(["cp", "--quiet", "--ssh-remote", "exec sleep 1000", &site.url("x"), "y"]);
    let mut program = Program::start(&mut command).unwrap();
    // The server's process, not the processes whose arguments contain its name.
    let begun = |line: &String| line.ends_with(": sleep 1000 ");
    until("no sleep", || site.sshd.processes("sleep 1000").unwrap().iter().any(begun));
    program.signal(Signal::INT);
    assert!(!program.wait(LIMIT).unwrap().success());
    assert_eq!(site.sshd.processes("ssh -F").unwrap(), [""; 0]);
    // The process does not notice that the client is gone, but sshd ends it.
    for left in site.sshd.processes("sleep 1000").unwrap() {
        let pid: i32 = left.split(':').next().unwrap().parse().unwrap();
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    }
}

#[test]
fn ssh_questions_at_terminal_are_answered() {
    let Some(site) = Site::with_ours() else { return };
    if !peers::available(&["script"]) {
        return;
    }
    fs::create_dir_all(site.path("root")).unwrap();
    fs::write(site.path("root/f"), "content").unwrap();
    let mut keygen = ropewalk_tests::process::command("ssh-keygen");
    keygen.args(["-q", "-p", "-P", "", "-N", "open sesame", "-f"]).arg(site.path("key"));
    run(&mut keygen, LIMIT).unwrap().succeeded().unwrap();
    let known = fs::read_to_string(site.path("known_hosts")).unwrap();
    let copy = || {
        let mut command = site.command();
        command.args(["cp", "--quiet", "--retries", "0", &site.url("f"), "got"]);
        Terminal::start(&command).unwrap()
    };
    let mut terminal = copy();
    terminal.wait_for("Enter passphrase for key").unwrap();
    terminal.enter("open sesame").unwrap();
    let (status, text) = terminal.finish().unwrap();
    assert!(status.success() && !text.contains("sesame"), "{text}");
    assert_eq!(fs::read(site.path("got")).unwrap(), b"content");
    // An unknown host: ssh asks its own question.
    fs::remove_file(site.path("got")).unwrap();
    for (answer, goes_on) in [("no", false), ("yes", true)] {
        fs::write(site.path("known_hosts"), "").unwrap();
        let mut terminal = copy();
        terminal.wait_for("Are you sure you want to continue connecting").unwrap();
        terminal.enter(answer).unwrap();
        if goes_on {
            terminal.wait_for("Enter passphrase for key").unwrap();
            terminal.enter("open sesame").unwrap();
        }
        let (status, text) = terminal.finish().unwrap();
        assert_eq!(status.code(), Some(if goes_on { 0 } else { AUTHENTICATION }), "{text}");
        assert_eq!(site.path("got").exists(), goes_on, "{text}");
    }
    let learned = fs::read_to_string(site.path("known_hosts")).unwrap();
    let key = known.split_whitespace().nth(2).unwrap();
    assert!(learned.contains(key), "{learned}");
    // Without a terminal ssh does not ask.
    let text = site.cp(&["--retries", "0"], &site.url("f"), "again").failed().unwrap().errors();
    assert!(text.contains("Permission denied"), "{text}");
    assert_eq!(site.sshd.processes("ssh -F").unwrap(), [""; 0]);
}

/// A user with a password as the only credential: ssh asks for it, and no other program sees it.
#[test]
fn password_is_asked_by_ssh_once() {
    let ada = User { name: "ada", uid: 31_001, password: "correct horse 7" };
    let Some(site) = Site::with_password(&ada) else { return };
    if !peers::available(&["script"]) {
        return;
    }
    let content = site.content();
    let url = |name: &str| site.url(name).replace("sshftp://", "sshftp://ada@");
    let copy = |options: &[&str], from: &str, to: &str| {
        let mut command = site.command();
        command.args(["cp", "--quiet", "--retries", "0"]).args(options).args([from, to]);
        Terminal::start(&command).unwrap()
    };
    const PROMPT: &str = "ada@127.0.0.1's password: ";
    // One log-in for any number of sessions.
    for (options, from, to) in [
        (&["-p", "2"][..], "source".to_owned(), url("there")),
        (&[], url("there"), "back".to_owned()),
        (&["-r", "--files", "3"], url(""), "tree/".to_owned()),
    ] {
        let before = site.sshd.connections();
        let mut terminal = copy(options, &from, &to);
        terminal.wait_for(PROMPT).unwrap_or_else(|e| site.fail(&e));
        terminal.enter(ada.password).unwrap();
        let (status, text) = terminal.finish().unwrap();
        assert!(status.success(), "{from}: {text}\n{}", site.sshd.log());
        assert!(!text.contains("horse") && text.matches("password").count() == 1, "{text}");
        assert_eq!(site.sshd.connections() - before, 1, "{text}");
    }
    for name in ["root/there", "back", "tree/there"] {
        assert!(fs::read(site.path(name)).unwrap() == content, "{name}");
    }
    // The server runs as this user.
    let there = fs::metadata(site.path("root/there")).unwrap();
    assert_eq!((there.uid(), there.gid()), (ada.uid, ada.uid));
    fs::write(site.path("root/secret"), "root's").unwrap();
    fs::set_permissions(site.path("root/secret"), PermissionsExt::from_mode(0o600)).unwrap();
    let mut terminal = copy(&[], &url("secret"), "secret");
    terminal.wait_for(PROMPT).unwrap();
    terminal.enter(ada.password).unwrap();
    let (status, text) = terminal.finish().unwrap();
    assert!(!status.success() && text.contains("Permission denied"), "{text}");
    // Wrong passwords: ssh asks as often as it is configured to, and the client adds no log-in of
    // its own.
    let before = site.sshd.connections();
    let mut terminal = copy(&[], &url("there"), "wrong");
    for _ in 0..3 {
        terminal.wait_for(PROMPT).unwrap();
        terminal.enter("correct horse 8").unwrap();
    }
    let (status, text) = terminal.finish().unwrap();
    assert_eq!(status.code(), Some(AUTHENTICATION), "{text}");
    assert!(text.contains("Permission denied (publickey,password)") && !text.contains("horse"), "{text}");
    assert_eq!(site.sshd.connections() - before, 1, "{text}");
    assert!(!site.path("wrong").exists());
    // Without a terminal ssh does not ask.
    let text = site.cp(&["--retries", "0"], &url("there"), "wrong").failed().unwrap().errors();
    assert!(text.contains("Permission denied"), "{text}");
    assert_eq!(site.sshd.processes("ssh -F").unwrap(), [""; 0]);
    site.sshd.until_none("serve").unwrap();
}

/// The server started by ssh drops all unnecessary privileges, in all of its threads.
#[test]
fn server_behind_ssh_drops_privileges() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("f"), "content").unwrap();
    fs::set_permissions(directory.path().join("f"), PermissionsExt::from_mode(0o400)).unwrap();
    let root = rustix::process::geteuid().is_root();
    if root {
        // Root can read the files of all users, as in any ssh session.
        chown(directory.path().join("f"), Some(31_001), Some(31_001)).unwrap();
    }
    let mut child = peers::ropewalk_command()
        .unwrap()
        .args(["serve", "--ssh", "--root"])
        .arg(directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut replies = BufReader::new(output).lines().map_while(Result::ok);
    let mut reply = |code: &str| replies.find(|line| line.starts_with(&format!("{code} "))).unwrap();
    reply("220");
    for (command, code) in [("USER x", "331"), ("PASS x", "230"), ("CKSM MD5 0 -1 /f", "213")] {
        writeln!(input, "{command}\r").unwrap();
        reply(code);
    }
    let process = format!("/proc/{}", child.id());
    let mut threads = 0;
    for task in fs::read_dir(format!("{process}/task")).unwrap() {
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').trim().to_owned()
        };
        assert_eq!(field("NoNewPrivs"), "1", "{status}");
        // CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID: the capabilities with which root
        // accesses files.
        let files = 0x1f;
        for name in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
            let set = u64::from_str_radix(&field(name), 16).unwrap();
            assert_eq!(set & !files, 0, "{name}: {status}");
            assert!(root || set == 0, "{name}: {status}");
        }
        assert!(!root || u64::from_str_radix(&field("CapBnd"), 16).unwrap() & !files == 0, "{status}");
        threads += 1;
    }
    assert!(threads > 1, "{threads} threads");
    let limits = fs::read_to_string(format!("{process}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["1", "1"], "{core}");
    drop(input);
    assert!(child.wait().unwrap().success());
}
