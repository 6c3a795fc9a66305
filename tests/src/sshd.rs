//! OpenSSH's server for one test, with its own keys and home directory, on a port that the kernel
//! chooses. Dropping it leaves no process behind.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;

use crate::peers;
use crate::process::{self, run};

const LIMIT: Duration = Duration::from_secs(60);

/// Starts one sshd for each connection, as inetd would. Clients log in as the user who runs the
/// test.
#[derive(Debug)]
pub struct Sshd {
    directory: PathBuf,
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// A user who logs in with a password. The account exists only for the server's own processes:
/// their user database is in a mount namespace of each process.
#[derive(Clone, Copy, Debug)]
pub struct User<'a> {
    pub name: &'a str,
    pub uid: u32,
    pub password: &'a str,
}

#[derive(Debug, Default)]
struct Shared {
    ending: AtomicBool,
    connections: AtomicUsize,
    children: Mutex<Vec<Child>>,
}

impl Sshd {
    /// Starts a server whose files are in `directory`, which must exist. Commands run in `home`,
    /// `key` is the accepted key, and `config` is the client's configuration file.
    pub fn start(directory: &Path) -> Result<Self> {
        Self::begin(directory, None)
    }

    /// Like [`Sshd::start`], for root only: `user` logs in with a password and owns `home`.
    pub fn with_user(directory: &Path, user: &User<'_>) -> Result<Self> {
        Self::begin(directory, Some(user))
    }

    fn begin(directory: &Path, user: Option<&User<'_>>) -> Result<Self> {
        let sshd = peers::find("sshd").context("no sshd: install openssh-server")?;
        // The directory for sshd's privilege separation, which its service creates on other
        // systems.
        if rustix::process::geteuid().is_root() && !Path::new("/run/sshd").exists() {
            fs::DirBuilder::new().recursive(true).mode(0o755).create("/run/sshd")?;
        }
        fs::create_dir(directory.join("home"))?;
        for name in ["key", "wrong-key", "host-key", "other-host-key"] {
            let mut keygen = process::command("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(directory.join(name));
            run(&mut keygen, LIMIT)?.succeeded()?;
        }
        fs::copy(directory.join("key.pub"), directory.join("authorized_keys"))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let at = directory.display();
        // Runs the command that the client sent, in the test's own home directory.
        let login = format!(
            "#!/bin/sh\ncd {at}/home || exit 1\nHOME={at}/home\nPATH=/usr/bin:/bin\nexport HOME PATH\n\
             exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n"
        );
        executable(&directory.join("login"), &login)?;
        let mut server = format!(
            "HostKey {at}/host-key\nAuthorizedKeysFile {at}/authorized_keys\nForceCommand {at}/login\nUsePAM no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n\
             PermitUserRC no\nStrictModes no\nPidFile none\nUseDNS no\nPrintMotd no\nPrintLastLog no\n"
        );
        let mut client = format!(
            "Host *\nIdentityFile {at}/key\nIdentitiesOnly yes\nIdentityAgent none\nUserKnownHostsFile {at}/known_hosts\n\
             GlobalKnownHostsFile /dev/null\nUpdateHostKeys no\nStrictHostKeyChecking ask\n"
        );
        let sshd = match user {
            None => sshd,
            Some(user) => {
                server = server.replace("PasswordAuthentication no", "PasswordAuthentication yes");
                client.push_str("PreferredAuthentications password\n");
                make_user(directory, user)?;
                let script = format!(
                    "#!/bin/sh\nexec unshare --mount -- sh -c 'for file in passwd shadow group; do mount --bind {at}/$file \
                     /etc/$file || exit 1; done; exec {} \"$@\"' sh \"$@\"\n",
                    sshd.display()
                );
                executable(&directory.join("sshd"), &script)?;
                directory.join("sshd")
            }
        };
        fs::write(directory.join("sshd_config"), server)?;
        fs::write(directory.join("config"), client)?;
        let shared = Arc::new(Shared::default());
        let acceptor = {
            let (shared, directory) = (Arc::clone(&shared), directory.to_owned());
            thread::Builder::new().name("sshd".into()).spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    if shared.ending.load(Ordering::SeqCst) {
                        break;
                    }
                    shared.connections.fetch_add(1, Ordering::SeqCst);
                    if let Ok(child) = serve(&sshd, &directory, stream) {
                        shared.children.lock().push(child);
                    }
                }
            })?
        };
        let sshd = Self { directory: directory.to_owned(), address, shared, acceptor: Some(acceptor) };
        sshd.know("host-key")?;
        Ok(sshd)
    }

    /// Makes clients accept `key` as the host's key.
    pub fn know(&self, key: &str) -> Result<()> {
        let public = fs::read_to_string(self.directory.join(format!("{key}.pub")))?;
        let mut words = public.split_whitespace();
        let (kind, key) = (words.next().context("kind of key")?, words.next().context("key")?);
        let port = self.address.port();
        let known = format!("[127.0.0.1]:{port} {kind} {key}\n[localhost]:{port} {kind} {key}\n");
        fs::write(self.directory.join("known_hosts"), known)?;
        Ok(())
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the number of connections so far, including failed log-ins.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Returns the home directory of the commands.
    pub fn home(&self) -> PathBuf {
        self.directory.join("home")
    }

    /// Returns an ssh command line with the test's own configuration, for a client's option.
    pub fn client(&self) -> String {
        format!("ssh -F {}", self.directory.join("config").display())
    }

    /// Returns the processes that have this test's directory in their command line or in HOME, and
    /// `word` in their command line.
    pub fn processes(&self, word: &str) -> Result<Vec<String>> {
        let here = self.directory.to_str().context("the directory's name")?;
        let home = format!("HOME={here}/home");
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
            let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            let ours = line.contains(here)
                || read("environ").split(|byte| *byte == 0).any(|setting| setting == home.as_bytes());
            if ours && line.contains(word) {
                found.push(format!("{}: {line}", entry.file_name().to_string_lossy()));
            }
        }
        Ok(found)
    }

    /// Waits until [`Sshd::processes`] finds no process.
    pub fn until_none(&self, word: &str) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            let left = self.processes(word)?;
            if left.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < end, "still there: {left:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the log of the servers, for failure messages.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("sshd.log")).unwrap_or_default()
    }
}

/// Writes the user database with this user and the further files that sshd needs.
fn make_user(directory: &Path, user: &User<'_>) -> Result<()> {
    let User { name, uid, password } = user;
    let home = directory.join("home");
    // The user must be able to enter the directory.
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    std::os::unix::fs::chown(&home, Some(*uid), Some(*uid))?;
    let hash = run(process::command("openssl").args(["passwd", "-6", password]), LIMIT)?.succeeded()?.text();
    let passwd = format!(
        "root:x:0:0::/root:/bin/sh\nsshd:x:{0}:65534::/run/sshd:/usr/sbin/nologin\nnobody:x:65534:65534::/:/usr/sbin/nologin\n\
         {name}:x:{uid}:{uid}::{1}:/bin/sh\n",
        uid + 1,
        home.display()
    );
    fs::write(directory.join("passwd"), passwd)?;
    fs::write(directory.join("group"), format!("root:x:0:\nnogroup:x:65534:\n{name}:x:{uid}:\n"))?;
    let shadow = directory.join("shadow");
    fs::write(
        &shadow,
        format!("root:*:20000::::::\nsshd:!:20000::::::\n{name}:{}:20000::::::\n", hash.trim()),
    )?;
    fs::set_permissions(&shadow, fs::Permissions::from_mode(0o600))?;
    Ok(())
}

fn serve(sshd: &Path, directory: &Path, stream: TcpStream) -> Result<Child> {
    let stream = OwnedFd::from(stream);
    let log = File::options().create(true).append(true).open(directory.join("sshd.log"))?;
    let mut command = process::command(sshd);
    command.args(["-i", "-e", "-f"]).arg(directory.join("sshd_config"));
    command.stdin(stream.try_clone()?).stdout(stream).stderr(Stdio::from(log));
    Ok(command.spawn()?)
}

/// Writes an executable script.
pub fn executable(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for child in self.shared.children.lock().iter_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
