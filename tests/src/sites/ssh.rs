//! A site for sshftp:// through OpenSSH, with Ropewalk's server or GCT's.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::peers;
use crate::process::{self, Outcome, run};
use crate::sshd::{Sshd, User, executable};

const LIMIT: Duration = Duration::from_secs(120);

pub struct Site {
    // First, so that it is dropped before the directory.
    pub sshd: Sshd,
    pub directory: TempDir,
}

impl Site {
    /// Creates a site; returns `None` if peers are missing.
    pub fn new(also: &[&str]) -> Option<Self> {
        if !peers::available(&[&["sshd", "ssh"], also].concat()) {
            return None;
        }
        let directory = tempfile::Builder::new().prefix("ropewalk-ssh-test-").tempdir().unwrap();
        let sshd = Sshd::start(directory.path()).unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        Some(Self { sshd, directory })
    }

    /// Creates a site with Ropewalk's server for a user with a password and no key. Requires root.
    pub fn with_password(user: &User<'_>) -> Option<Self> {
        if !peers::available(&["sshd", "ssh", "unshare", "mount", "openssl"]) {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            peers::skip("only root's sshd lets others in");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("ropewalk-ssh-test-").tempdir().unwrap();
        let sshd = Sshd::with_user(directory.path(), user).unwrap();
        let root = directory.path().join("root");
        fs::create_dir(&root).unwrap();
        chown(&root, Some(user.uid), Some(user.uid)).unwrap();
        let site = Self { sshd, directory };
        site.install(&[]);
        Some(site)
    }

    pub fn with_ours() -> Option<Self> {
        let site = Self::new(&[])?;
        site.install(&[]);
        Some(site)
    }

    pub fn with_gcts() -> Option<Self> {
        let site = Self::new(&["globus-gridftp-server", "globus-gridftp-server-enable-sshftp"])?;
        let mut enable = process::command("globus-gridftp-server-enable-sshftp");
        let script = site.sshd.home().join(".globus/sshftp");
        fs::create_dir(script.parent().unwrap()).unwrap();
        let enabled = run(enable.arg("-out").arg(&script), LIMIT).unwrap().succeeded().unwrap();
        assert!(enabled.text().contains("Successfully created"));
        if rustix::process::geteuid().is_root() {
            // GCT's server refuses to run as root unless an option allows it.
            let text = fs::read_to_string(&script).unwrap();
            let text =
                text.replace("-gridftp-server -ssh", "-gridftp-server -ssh -anonymous-user root -allow-root");
            fs::write(&script, text).unwrap();
        }
        Some(site)
    }

    /// Installs the script that starts the server, as the server's user would.
    pub fn install(&self, options: &[&str]) {
        let mut command = peers::ropewalk_command().unwrap();
        command.env("HOME", self.sshd.home()).args(["serve", "--install-ssh", "--force"]).args(options);
        let told = run(&mut command, LIMIT).unwrap().succeeded().unwrap().errors();
        assert!(told.contains(".globus/sshftp"), "{told}");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn command(&self) -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        command.current_dir(self.directory.path()).env("ROPEWALK_SSH", self.sshd.client());
        // Files that a killed client leaves are removed with the test's directory.
        command.env("XDG_RUNTIME_DIR", self.directory.path());
        command.env_remove("GLOBUS_REMOTE_SSHFTP").env_remove("GLOBUS_HOSTNAME").env_remove("SSH_AUTH_SOCK");
        command
    }

    pub fn cp(&self, options: &[&str], from: &str, to: &str) -> Outcome {
        run(self.command().args(["cp", "--quiet"]).args(options).args([from, to]), LIMIT).unwrap()
    }

    /// Returns the URL of a file beneath `root`; its path is absolute.
    pub fn url(&self, name: &str) -> String {
        format!("sshftp://127.0.0.1:{}{}/root/{name}", self.sshd.port(), self.directory.path().display())
    }

    pub fn content(&self) -> Vec<u8> {
        let content: Vec<u8> = (0..1_300_000u32).flat_map(u32::to_le_bytes).collect();
        fs::write(self.path("source"), &content).unwrap();
        content
    }

    pub fn tree(&self) {
        fs::create_dir_all(self.path("tree/below")).unwrap();
        for n in 0..40u8 {
            fs::write(self.path(&format!("tree/below/{n}")), vec![n; usize::from(n) * 321]).unwrap();
        }
    }

    pub fn is_tree(&self, name: &str) {
        for n in 0..40u8 {
            let got = fs::read(self.path(&format!("{name}/below/{n}"))).unwrap();
            assert_eq!(got, vec![n; usize::from(n) * 321]);
        }
        fs::remove_dir_all(self.path(name)).unwrap();
    }

    /// Uploads and downloads a file and compares the content.
    pub fn round(&self, options: &[&str]) {
        let content = self.content();
        self.cp(options, "source", &self.url("there")).succeeded().unwrap_or_else(|e| self.fail(&e));
        assert!(fs::read(self.path("root/there")).unwrap() == content, "{options:?}");
        self.cp(options, &self.url("there"), "back").succeeded().unwrap_or_else(|e| self.fail(&e));
        assert!(fs::read(self.path("back")).unwrap() == content, "{options:?}");
        fs::remove_file(self.path("root/there")).unwrap();
        fs::remove_file(self.path("back")).unwrap();
    }

    pub fn rounds(&self) {
        self.round(&[]);
        self.round(&["-p", "4"]);
        self.round(&["--mode", "stream"]);
        self.round(&["--files", "3", "-p", "2"]);
        self.tree();
        self.cp(&["-r", "--files", "4"], "tree/", &self.url("tree/"))
            .succeeded()
            .unwrap_or_else(|e| self.fail(&e));
        self.is_tree("root/tree");
        self.cp(&["-r", "--files", "4"], "tree/", &self.url("tree/")).succeeded().unwrap();
        self.cp(&["-r", "--files", "4"], &self.url("tree/"), "again/")
            .succeeded()
            .unwrap_or_else(|e| self.fail(&e));
        self.is_tree("again");
        fs::remove_dir_all(self.path("root/tree")).unwrap();
        // Neither processes nor control sockets remain.
        assert_eq!(self.sshd.processes("ssh -F").unwrap(), [""; 0]);
        self.sshd.until_none("gridftp-server").unwrap();
        self.sshd.until_none("serve").unwrap();
    }

    pub fn fail(&self, error: &anyhow::Error) -> ! {
        panic!("{error}\n{}", self.sshd.log())
    }

    /// Runs GCT's client with an ssh script that uses the test's configuration.
    pub fn globus_url_copy(&self, arguments: &[&str]) -> Outcome {
        let script = "/usr/share/globus/gridftp-ssh";
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let wrapper = self.path(&format!("gridftp-ssh{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let text = fs::read_to_string(script).unwrap();
        let ssh = format!("exec /usr/bin/ssh -F {}", self.path("config").display());
        assert!(text.contains("exec /usr/bin/ssh"));
        executable(&wrapper, &text.replace("exec /usr/bin/ssh", &ssh)).unwrap();
        let mut command = process::command("unshare");
        command.args(["--mount", "--", "sh", "-c"]);
        command.arg(r#"mount --bind "$1" "$2" && shift 2 && exec globus-url-copy "$@""#);
        command.arg("sh").arg(wrapper).arg(script).args(arguments).current_dir(self.directory.path());
        run(command.env_remove("GLOBUS_REMOTE_SSHFTP"), LIMIT).unwrap()
    }
}
