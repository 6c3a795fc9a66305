//! Starts servers of several implementations. Each serves one directory, to anonymous users or to
//! one user with a password.

use std::ffi::OsString;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::peers;
use crate::process::{self, Program};
use crate::scratch::Scratch;

const START: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ropewalk,
    /// globus-gridftp-server.
    Gct,
    Vsftpd,
    /// Accepts [`LOGIN`].
    Proftpd,
    /// Accepts [`LOGIN`], and accesses files as [`NOBODY`] if root started it.
    PureFtpd,
}

/// User and password at servers without an anonymous user.
pub const LOGIN: (&str, &str) = ("rope", "walk");

/// The SHA-512 hash of the password.
const HASH: &str =
    "$6$ropewalk$jfSoihbB2MQBNg39Pke4bggPG3qVeR08F7G3Ioen3qMM2TC3l6kSs6N9OE/0pGM7GDVvm0dyMuJEc1mi.qy.H1";

/// User and group that Pure-FTPd uses for file access when root starts it, because it refuses to
/// serve as root.
pub const NOBODY: u32 = 65_534;

/// The options of a server; [`Setup::new`] is a writable server on IPv4.
#[derive(Clone, Debug)]
pub struct Setup {
    pub kind: Kind,
    pub root: PathBuf,
    pub ipv6: bool,
    pub writable: bool,
    /// Further arguments for the server.
    pub arguments: Vec<OsString>,
    /// A program with arguments that executes the server, such as `unshare`.
    pub wrapper: Vec<OsString>,
}

impl Setup {
    pub fn new(kind: Kind, root: &Path) -> Self {
        Self {
            kind,
            root: root.to_owned(),
            ipv6: false,
            writable: true,
            arguments: Vec::new(),
            wrapper: Vec::new(),
        }
    }

    pub fn ipv6(mut self) -> Self {
        self.ipv6 = true;
        self
    }

    pub fn read_only(mut self) -> Self {
        self.writable = false;
        self
    }

    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub fn wrapper<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.wrapper.extend(words.into_iter().map(Into::into));
        self
    }

    /// Runs the server without root's capability to bypass file permissions if root runs the test.
    pub fn obeying_permissions(self) -> Self {
        if rustix::process::geteuid().is_root() {
            self.wrapper(["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"])
        } else {
            self
        }
    }

    /// Configures vsftpd with TLS, where each data connection must resume the TLS session of the
    /// control connection.
    pub fn vsftpd_tls(mut self, certificate: &Path, key: &Path, implicit: bool) -> Self {
        let switches = [
            "ssl_enable",
            "allow_anon_ssl",
            "force_anon_logins_ssl",
            "require_ssl_reuse",
            "strict_ssl_read_eof",
        ];
        for switch in switches {
            self = self.argument(format!("-o{switch}=YES"));
        }
        self.argument("-oforce_anon_data_ssl=NO")
            .argument("-ossl_ciphers=HIGH")
            .argument(format!("-oimplicit_ssl={}", if implicit { "YES" } else { "NO" }))
            .argument(format!("-orsa_cert_file={}", certificate.display()))
            .argument(format!("-orsa_private_key_file={}", key.display()))
    }

    pub fn start(self) -> Result<Server> {
        Server::start(self)
    }

    fn command(&self, program: impl Into<OsString>) -> Command {
        let program = program.into();
        match self.wrapper.split_first() {
            None => process::command(program),
            Some((first, rest)) => {
                let mut command = process::command(first);
                command.args(rest).arg(program);
                command
            }
        }
    }

    fn loopback(&self) -> &'static str {
        if self.ipv6 { "::1" } else { "127.0.0.1" }
    }
}

/// A running server; dropping it kills it with all its sessions.
#[derive(Debug)]
pub struct Server {
    program: Program,
    setup: Setup,
    address: SocketAddr,
    /// The server's own files.
    _state: Scratch,
}

impl Server {
    pub fn start(setup: Setup) -> Result<Self> {
        let state = Scratch::new()?;
        let (program, address) = match setup.kind {
            Kind::Ropewalk => start_ropewalk(&setup)?,
            Kind::Gct => start_gct(&setup)?,
            Kind::Vsftpd => start_vsftpd(&setup)?,
            Kind::Proftpd => start_proftpd(&setup, &state)?,
            Kind::PureFtpd => start_pure_ftpd(&setup, &state)?,
        };
        Ok(Self { program, setup, address, _state: state })
    }

    pub fn kind(&self) -> Kind {
        self.setup.kind
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    pub fn log(&self) -> String {
        self.program.log()
    }

    pub fn root(&self) -> &Path {
        &self.setup.root
    }

    pub fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    pub fn is_running(&mut self) -> bool {
        self.program.is_running()
    }

    /// Kills the server as a crash would.
    pub fn kill(&mut self) {
        self.program.kill();
    }

    /// Kills the server and starts it again on another port.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        *self = Self::start(self.setup.clone())?;
        Ok(())
    }

    /// Returns the path by which clients address `path`, which is relative to the served directory.
    pub fn remote_path(&self, path: impl AsRef<Path>) -> Vec<u8> {
        let mut remote = match self.setup.kind {
            Kind::Ropewalk => Vec::new(),
            Kind::Gct | Kind::Vsftpd | Kind::Proftpd | Kind::PureFtpd => {
                self.setup.root.as_os_str().as_bytes().to_vec()
            }
        };
        remote.push(b'/');
        remote.extend_from_slice(path.as_ref().as_os_str().as_bytes());
        remote
    }

    pub fn url(&self, path: impl AsRef<Path>) -> String {
        self.url_at(self.address, path)
    }

    /// Like [`Self::url`], through a proxy at `address`.
    pub fn url_at(&self, address: SocketAddr, path: impl AsRef<Path>) -> String {
        let login = match self.setup.kind {
            Kind::Ropewalk | Kind::Gct | Kind::Vsftpd => String::new(),
            Kind::Proftpd | Kind::PureFtpd => format!("{}:{}@", LOGIN.0, LOGIN.1),
        };
        format!("ftp://{login}{address}{}", percent_encode(&self.remote_path(path)))
    }
}

/// Percent-encodes every byte except unreserved characters and `/` (RFC 3986, section 2.3).
pub fn percent_encode(path: &[u8]) -> String {
    let mut text = String::new();
    for &byte in path {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(byte.into());
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

fn listening_line(line: &str) -> Option<SocketAddr> {
    let (host, port) = line.strip_prefix("Server listening at ")?.trim().rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = host.trim_matches(['[', ']']);
    let ip = host.parse().unwrap_or([127, 0, 0, 1].into());
    Some(SocketAddr::new(ip, port))
}

fn start_ropewalk(setup: &Setup) -> Result<(Program, SocketAddr)> {
    let listen = SocketAddr::new(setup.loopback().parse()?, 0).to_string();
    let mut command = setup.command(peers::ropewalk()?);
    command
        .args(["serve", "--listen", &listen])
        .arg(if setup.writable { "--anonymous=rw" } else { "--anonymous" })
        .arg("--root")
        .arg(&setup.root)
        .args(&setup.arguments)
        .env("XDG_STATE_HOME", peers::home());
    let program = Program::start(&mut command)?;
    let address = program.wait_for_line(START, listening_line).context("starting ropewalk serve")?;
    Ok((program, address))
}

fn start_gct(setup: &Setup) -> Result<(Program, SocketAddr)> {
    let binary = peers::find("globus-gridftp-server").context("globus-gridftp-server is not installed")?;
    let mut command = setup.command(binary);
    let loopback = setup.loopback();
    command.args([
        "-p",
        "0",
        "-aa",
        "-home-dir",
        "/",
        "-control-interface",
        loopback,
        "-data-interface",
        loopback,
    ]);
    if rustix::process::geteuid().is_root() {
        command.args(["-anonymous-user", "root", "-allow-root"]);
    }
    if !setup.writable {
        bail!("the harness starts globus-gridftp-server only writable");
    }
    command.args(&setup.arguments).env("GLOBUS_HOSTNAME", loopback);
    let program = Program::start(&mut command)?;
    let announced = program.wait_for_line(START, listening_line).context("starting globus-gridftp-server")?;
    Ok((program, SocketAddr::new(loopback.parse()?, announced.port())))
}

fn start_vsftpd(setup: &Setup) -> Result<(Program, SocketAddr)> {
    let binary = peers::find("vsftpd").context("vsftpd is not installed")?;
    let config = tempfile::NamedTempFile::with_prefix("ropewalk-test-vsftpd-")?;
    let yes_no = |yes: bool| if yes { "YES" } else { "NO" };
    let text = format!(
        "background=NO\nlisten={}\nlisten_ipv6={}\nlisten_address{}={}\nlisten_port=0\n\
         anonymous_enable=YES\nno_anon_password=YES\nlocal_enable=NO\nanon_root=/\nrun_as_launching_user=YES\n\
         anon_world_readable_only=NO\nanon_umask=022\nwrite_enable={w}\nanon_upload_enable={w}\n\
         anon_mkdir_write_enable={w}\nanon_other_write_enable={w}\nconnect_from_port_20=NO\nxferlog_enable=NO\n\
         dirmessage_enable=NO\nseccomp_sandbox=NO\n",
        yes_no(!setup.ipv6),
        yes_no(setup.ipv6),
        if setup.ipv6 { "6" } else { "" },
        setup.loopback(),
        w = yes_no(setup.writable),
    );
    fs::write(config.path(), text)?;
    let mut command = setup.command(binary);
    command.arg(config.path()).args(&setup.arguments);
    let mut program = Program::start(&mut command)?;
    // vsftpd has read its configuration once it listens.
    let address = program.wait_for_port(START).context("starting vsftpd")?;
    Ok((program, address))
}

/// Returns a free port, for servers that cannot let the kernel choose one.
fn free_port(setup: &Setup) -> Result<u16> {
    Ok(TcpListener::bind((setup.loopback(), 0))?.local_addr()?.port())
}

fn start_proftpd(setup: &Setup, state: &Scratch) -> Result<(Program, SocketAddr)> {
    let binary = peers::find("proftpd").context("proftpd is not installed")?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let users = state.join("users");
    fs::write(&users, format!("{}:{HASH}:{user}:{group}::/:/bin/sh\n", LOGIN.0))?;
    fs::set_permissions(&users, fs::Permissions::from_mode(0o600))?;
    let config = state.join("config");
    let text = format!(
        "ServerType standalone\nDefaultAddress {}\nPort {}\nSocketBindTight on\nUseIPv6 {}\nScoreboardFile none\n\
         PidFile {}\nDelayTable none\nAuthUserFile {}\nAuthOrder mod_auth_file.c\n\
         RequireValidShell off\nRootLogin on\nUseReverseDNS off\nWtmpLog off\nTransferLog none\nAllowOverwrite on\n\
         AllowStoreRestart on\nAllowRetrieveRestart on\n",
        setup.loopback(),
        free_port(setup)?,
        if setup.ipv6 { "on" } else { "off" },
        state.join("pid").display(),
        users.display(),
    );
    fs::write(&config, text)?;
    let mut command = setup.command(binary);
    command.arg("--nodaemon").arg("--config").arg(&config).args(&setup.arguments);
    let mut program = Program::start(&mut command)?;
    let address = program.wait_for_port(START).context("starting proftpd")?;
    Ok((program, address))
}

fn start_pure_ftpd(setup: &Setup, state: &Scratch) -> Result<(Program, SocketAddr)> {
    let binary = peers::find("pure-ftpd").context("pure-ftpd is not installed")?;
    let maker = peers::find("pure-pw").context("pure-pw is not installed")?;
    let own = rustix::process::geteuid();
    let (user, group) =
        if own.is_root() { (NOBODY, NOBODY) } else { (own.as_raw(), rustix::process::getegid().as_raw()) };
    let (users, database) = (state.join("users"), state.join("users.pdb"));
    fs::write(&users, format!("{}:{HASH}:{user}:{group}::/./::::::::::::\n", LOGIN.0))?;
    process::run(process::command(maker).arg("mkdb").arg(&database).arg("-f").arg(&users), START)?
        .succeeded()?;
    let mut command = setup.command(binary);
    command
        .arg("-S")
        .arg(format!("{},{}", setup.loopback(), free_port(setup)?))
        .arg("-l")
        .arg(format!("puredb:{}", database.display()))
        .args(["-u", "1", "-H", "-E", "-g"])
        .arg(state.join("pid"))
        .args(&setup.arguments);
    let mut program = Program::start(&mut command)?;
    let address = program.wait_for_port(START).context("starting pure-ftpd")?;
    Ok((program, address))
}
