//! Clients with a screen at the gateway: FileZilla, on a virtual one and by its commands, and the
//! FTP file system of Midnight Commander.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::filezilla::{Running, prepare, queue};
use ropewalk_tests::gateway::{Gateway, LIMIT, SETTINGS};
use ropewalk_tests::process::{self, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::terminal::Terminal;
use ropewalk_tests::{files, peers};

const SIZE: u64 = (3 << 20) + 17;

/// A server, and a gateway whose default it is.
fn site(options: &[&str]) -> (Scratch, Server, Gateway) {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("there"), SIZE, 1).unwrap();
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/a b"), "small").unwrap();
    let server = Setup::new(Kind::Ropewalk, &root).start().unwrap();
    let target = format!("ftp://{}/", server.address());
    let options = [&["--authorized-hosts", "127.0.0.1", "--default", &target][..], options].concat();
    let gateway = Gateway::start(&options, SETTINGS);
    (scratch, server, gateway)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Waits for the end of a copy, of which the client writes nothing.
#[track_caller]
fn wait_until_same(expected: &Path, found: &Path) {
    let end = Instant::now() + LIMIT;
    while files::ensure_same(expected, found).is_err() {
        assert!(Instant::now() < end, "{}", found.display());
        thread::sleep(Duration::from_millis(20));
    }
}

/// The commands of FileZilla 3.63, in its order: log-in, listing, download, upload with the time of
/// the file, and a rename; each data connection resumes the TLS session.
const FILEZILLA: &str = r#"
import socket, ssl, sys
host, port, authority = sys.argv[1:4]
context = ssl.create_default_context(cafile=authority)
sock = socket.create_connection((host, int(port)), 30)
lines = sock.makefile("rb")
def reply():
    first = lines.readline().decode()
    assert first, "the connection was closed"
    text = first
    while text[3:4] == "-" and not text.splitlines()[-1].startswith(text[:3] + " "):
        text += lines.readline().decode()
    return text
def command(line, *codes):
    sock.sendall(line.encode() + b"\r\n")
    text = reply()
    assert text[:3] in codes, (line, text)
    return text
assert reply().startswith("220")
command("AUTH TLS", "234")
sock = context.wrap_socket(sock, server_hostname=host)
lines = sock.makefile("rb")
command("USER anonymous", "331")
command("PASS x", "230")
command("SYST", "215")
features = command("FEAT", "211")
for name in ("UTF8", "MLST", "MFMT", "PBSZ", "PROT", "REST STREAM", "SIZE"):
    assert "\n " + name in features.replace("\r\n", "\n"), (name, features)
# Only if FEAT has it.
if "\n CLNT" in features.replace("\r\n", "\n"):
    command("CLNT FileZilla", "200")
else:
    command("CLNT FileZilla", "200", "500", "502")
command("OPTS UTF8 ON", "200", "202")
command("PBSZ 0", "200")
command("PROT P", "200")
command("OPTS MLST type;size;modify;unix.mode;unix.owner;unix.group;", "200")
assert '"/"' in command("PWD", "257")
command("TYPE I", "200")
def passive(extended):
    if extended:
        text = command("EPSV", "229")
        return int(text[text.index("(") + 1:text.index(")")].strip("|"))
    text = command("PASV", "227")
    numbers = [int(n) for n in text[text.index("(") + 1:text.index(")")].split(",")]
    assert numbers[:4] == [127, 0, 0, 1], text
    return numbers[4] << 8 | numbers[5]
def transfer(line, extended, data=None):
    plain = socket.create_connection((host, passive(extended)), 30)
    command(line, "150", "125")
    secured = context.wrap_socket(plain, server_hostname=host, session=sock.session)
    got = bytearray()
    if data is None:
        while piece := secured.recv(65536):
            got += piece
    else:
        secured.sendall(data)
    secured.unwrap() if data is not None else None
    secured.close()
    text = reply()
    assert text.startswith("226"), (line, text)
    return bytes(got)
listing = transfer("MLSD", False).decode()
assert "type=dir" in listing.lower() and " there" in listing and "unix.mode=" in listing.lower(), listing
command("CWD d", "250")
assert '"/d"' in command("PWD", "257")
assert " a b" in transfer("MLSD", True).decode()
command("CWD /", "250")
whole = transfer("RETR there", False)
command("REST 1000000", "350")
assert transfer("RETR there", True) == whole[1000000:]
transfer("STOR here", False, whole)
command("MFMT 20200102030405 here", "213")
assert "20200102030405" in command("MDTM here", "213")
assert str(len(whole)) in command("SIZE here", "213")
command("RNFR here", "350")
command("RNTO moved", "250")
command("NOOP", "200")
command("QUIT", "221")
print("done")
"#;

#[test]
fn commands_of_filezilla_are_understood() {
    let (_scratch, server, gateway) = site(&[]);
    let mut python = process::command("python3");
    python.args(["-c", FILEZILLA, "127.0.0.1", &gateway.address.port().to_string()]);
    let outcome = run(python.arg(gateway.certificate()), LIMIT).unwrap().succeeded().unwrap();
    assert!(outcome.text().contains("done"), "{}", gateway.program.log());
    files::ensure_same(&server.root().join("there"), &server.root().join("moved")).unwrap();
}

/// A file in each direction, as a user would move it.
#[test]
fn filezilla_moves_files_through_the_gateway() {
    if !peers::available(&["filezilla", "Xvfb", "xdotool", "python3"]) {
        return;
    }
    let (scratch, server, gateway) = site(&["--implicit-tls", "127.0.0.1:0"]);
    const FTPS: u8 = 3;
    const FTPES: u8 = 4;
    let implicit = gateway.next_address();
    for (protocol, port) in [(FTPES, gateway.address.port()), (FTPS, implicit.port())] {
        let home = tempfile::tempdir().unwrap();
        prepare(home.path(), &gateway.certificate(), &[port]);
        let local = home.path().join("local");
        fs::create_dir(&local).unwrap();
        files::write_random(&local.join("here"), SIZE, 2).unwrap();
        queue(home.path(), &local, port, protocol);
        let running = Running::start(home.path(), ["", "queue"]);
        let log = running.log_with("File transfer successful", 2, &|| gateway.program.log());
        assert!(log.contains("Command: PROT P"), "{log}");
        files::ensure_same(&local.join("there"), &server.root().join("there")).unwrap();
        files::ensure_same(&local.join("here"), &server.root().join("here")).unwrap();
        fs::remove_file(server.root().join("here")).unwrap();
    }
    drop(scratch);
}

/// Copies with F5 in both directions, at a terminal.
#[test]
fn midnight_commander_copies_through_the_gateway() {
    if !peers::available(&["mc", "script"]) {
        return;
    }
    let (scratch, server, gateway) = site(&["--no-tls"]);
    let local = scratch.directory("local").unwrap();
    let url = format!("ftp://anonymous:x@{}/", gateway.address);
    for (from, to) in [(url.clone(), text(&local)), (text(&local), url)] {
        // The left panel is active. The second time, the file has another name.
        if from.starts_with('/') {
            fs::rename(local.join("there"), local.join("back")).unwrap();
        }
        let mut command = process::command("mc");
        command.args(["--nosubshell", "--nomouse", "--nocolor", "--skin=default", &from, &to]);
        command.env("TERM", "xterm").env("HOME", scratch.join("home")).env("LC_ALL", "C.UTF-8");
        for variable in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"] {
            command.env(variable, scratch.join("home"));
        }
        fs::create_dir_all(scratch.join("home")).unwrap();
        let mut terminal = Terminal::start(&command).unwrap();
        let name = if from.starts_with('/') { "back" } else { "there" };
        terminal.wait_for(name).unwrap();
        // End: the last entry, which is the file. F5, and Enter in the dialogue.
        terminal.press("\x1b[4~\x1b[15~").unwrap();
        terminal.wait_for("Copy file").unwrap();
        terminal.press("\r").unwrap();
        let there = if from.starts_with('/') { server.root().join(name) } else { local.join(name) };
        wait_until_same(&server.root().join("there"), &there);
        // F10 ends it, and it may ask.
        terminal.press("\x1b[21~").unwrap();
        drop(terminal);
    }
}
