//! A machine with some users: the server has its own user database in a mount namespace that ends
//! with it.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ropewalk_tests::control::Control;
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Program};
use ropewalk_tests::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const ADA: u32 = 31_001;
pub(crate) const BOB: u32 = 31_002;
pub(crate) const CLUB: u32 = 31_009;

/// ada and bob are users, bob is a member of club; the other accounts must not be served.
const PASSWD: &str = "root:x:0:0::/root:/bin/sh\n\
    toor:x:0:0::/root:/bin/sh\n\
    system:x:200:200::/:/bin/sh\n\
    nobody:x:65534:65534::/:/usr/sbin/nologin\n\
    ada:x:31001:31001::ROOT/home/ada:/bin/sh\n\
    bob:x:31002:31002::ROOT/home/bob:/bin/sh\n\
    closed:x:31003:31003::ROOT/home/closed:/nonexistent/shell\n";
const GROUP: &str = "root:x:0:\nsystem:x:200:\nnogroup:x:65534:\nada:x:31001:\nbob:x:31002:\nclosed:x:31003:\n\
    club:x:31009:bob\n";

pub(crate) struct Town {
    pub(crate) scratch: Scratch,
    program: Program,
    address: SocketAddr,
}

/// Returns false, after a message, if the tests cannot run here.
pub(crate) fn is_possible() -> bool {
    if !rustix::process::geteuid().is_root() {
        return !peers::skip("only root can take on the identities of users");
    }
    peers::available(&["unshare", "mount", "setpriv"])
}

impl Town {
    /// Starts a server with these settings, in addition to the users and their directories.
    pub(crate) fn new(settings: &str) -> Self {
        Self::started(settings, "")
    }

    /// Like [`Self::new`]; `before` is a command of the shell that starts the server.
    pub(crate) fn started(settings: &str, before: &str) -> Self {
        let scratch = Scratch::new().unwrap();
        let at = |name: &str| scratch.join(name);
        let homes = at("root").display().to_string();
        fs::write(at("passwd"), PASSWD.replace("ROOT", &homes)).unwrap();
        fs::write(at("group"), GROUP).unwrap();
        for name in ["ada", "bob", "closed", "system", "toor", "root", "stranger"] {
            set_password(&at("users"), name);
        }
        let root = scratch.directory("root").unwrap();
        for (name, owner) in [("ada", ADA), ("bob", BOB)] {
            let home = scratch.directory(format!("root/home/{name}")).unwrap();
            give(&home, owner, owner, 0o700);
        }
        let shared = scratch.directory("root/shared").unwrap();
        give(&shared, 0, 0, 0o1777);
        let club = scratch.directory("root/club").unwrap();
        give(&club, 0, CLUB, 0o2770);
        let text = format!(
            "listen = ['127.0.0.1:0']\nroot = '{}'\npassword_file = '{}'\n{settings}",
            root.display(),
            at("users").display()
        );
        fs::write(at("server.toml"), text).unwrap();
        let script = format!(
            "mount --bind {d}/passwd /etc/passwd && mount --bind {d}/group /etc/group && {before} exec \"$@\"",
            d = scratch.path().display()
        );
        let mut command = process::command("unshare");
        command.args(["--mount", "--", "sh", "-c", &script, "sh"]);
        command.arg(peers::ropewalk().unwrap()).args(["serve", "--config"]).arg(at("server.toml"));
        command.env("XDG_STATE_HOME", peers::home());
        let program = Program::start(&mut command).unwrap();
        let address = program
            .wait_for_line(LIMIT, |line| line.strip_prefix("Server listening at ")?.trim().parse().ok())
            .unwrap();
        Self { scratch, program, address }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.program.pid()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn log(&self) -> String {
        self.program.log()
    }

    pub(crate) fn connect(&self) -> Control {
        Control::connect(self.address).unwrap()
    }

    pub(crate) fn log_in(&self, user: &str) -> Control {
        let mut control = self.connect();
        log_in(&mut control, user);
        control
    }

    /// Returns the host's path of a path in a session.
    pub(crate) fn real(&self, path: &str) -> PathBuf {
        self.scratch.join(format!("root{path}"))
    }

    /// Returns this field of the status of each of the server's threads.
    pub(crate) fn threads(&self, field: &str) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let status = |path: PathBuf| fs::read_to_string(path.join("status")).ok();
        let texts = tasks.filter_map(|task| status(task.unwrap().path()));
        texts
            .map(|text| {
                let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
                line.split_whitespace().collect::<Vec<_>>().join(" ")
            })
            .collect()
    }
}

pub(crate) fn log_in(control: &mut Control, user: &str) {
    control.expect(format!("USER {user}"), 331).unwrap();
    control.expect(format!("PASS {}", password(user)), 230).unwrap();
    control.expect("TYPE I", 200).unwrap();
}

pub(crate) fn password(user: &str) -> String {
    format!("secret-of-{user}")
}

pub(crate) fn give(path: &Path, uid: u32, gid: u32, mode: u32) {
    chown(path, Some(uid), Some(gid)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn set_password(file: &Path, user: &str) {
    let mut command = Command::new(peers::ropewalk().unwrap());
    command.args(["passwd", "--file"]).arg(file).arg(user).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{}", password(user)).unwrap();
    assert!(child.wait().unwrap().success());
}
