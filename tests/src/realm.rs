//! A Kerberos realm for one test: MIT's key distribution centre on a loopback port, with its
//! database and keys in a temporary directory.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::peers;
use crate::process::{self, Outcome, Program, run};

const LIMIT: Duration = Duration::from_secs(60);
pub const NAME: &str = "ROPEWALK.TEST";
/// The programs that [`available`] requires.
const PROGRAMS: &[&str] = &["krb5kdc", "kdb5_util", "kadmin.local", "kinit"];
/// Environment variable that holds the realm's directory in a test process started by [`enter`].
const INSIDE: &str = "ROPEWALK_TEST_REALM";

/// Returns true if the programs are installed. Otherwise the test is skipped or fails (see
/// [`peers::available`]).
pub fn available() -> bool {
    let missing: Vec<_> = PROGRAMS.iter().filter(|program| peers::find(program).is_none()).collect();
    let reason = format!("not installed: {missing:?} (Debian: krb5-kdc krb5-admin-server krb5-user)");
    missing.is_empty() || !peers::skip(&reason)
}

#[derive(Debug)]
pub struct Realm {
    directory: TempDir,
    /// `None` after it was stopped.
    centre: Option<Program>,
}

impl Realm {
    /// Creates a realm with the service `host/localhost`, whose key is in [`Realm::keytab`], and
    /// the user `ada`, whose key is in `ada.keytab`.
    pub fn new() -> Result<Self> {
        Self::at(None)
    }

    /// Creates a realm whose clock is shifted, in faketime's notation (`-2h`).
    pub fn at(shift: Option<&str>) -> Result<Self> {
        let mut realm = Self { directory: tempfile::tempdir()?, centre: None };
        fs::create_dir(realm.path("tmp"))?;
        // Another process may take the port first.
        let mut last = None;
        for _ in 0..5 {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            realm.configure(port)?;
            if last.is_none() {
                realm.run("kdb5_util", &["create", "-s", "-P", "master", "-r", NAME])?.succeeded()?;
                for (principal, keytab) in [("host/localhost", "server.keytab"), ("ada", "ada.keytab")] {
                    realm.principal(principal, Some(keytab))?;
                }
            }
            match realm.start(shift) {
                Ok(()) => return Ok(realm),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no key distribution centre")?)
    }

    fn configure(&self, port: u16) -> Result<()> {
        let directory = self.directory.path().display();
        let krb5 = format!(
            "[libdefaults]\ndefault_realm = {NAME}\ndns_lookup_kdc = false\ndns_lookup_realm = false\n\
             dns_canonicalize_hostname = false\nrdns = false\nudp_preference_limit = 1\nkdc_timesync = 0\n\
             forwardable = true\n[realms]\n{NAME} = {{\nkdc = 127.0.0.1:{port}\n}}\n[domain_realm]\nlocalhost = {NAME}\n"
        );
        let kdc = format!(
            "[kdcdefaults]\nkdc_listen = \"\"\nkdc_tcp_listen = 127.0.0.1:{port}\n[realms]\n{NAME} = {{\n\
             database_name = {directory}/principal\nkey_stash_file = {directory}/stash\nacl_file = {directory}/acl\n\
             supported_enctypes = aes256-cts-hmac-sha1-96:normal\n}}\n[logging]\nkdc = STDERR\ndefault = STDERR\n"
        );
        fs::write(self.path("krb5.conf"), krb5)?;
        fs::write(self.path("kdc.conf"), kdc)?;
        Ok(())
    }

    fn start(&mut self, shift: Option<&str>) -> Result<()> {
        let mut command = shifted("krb5kdc", shift)?;
        self.environment(command.arg("-n"));
        let mut centre = Program::start(&mut command)?;
        centre.wait_for_port(LIMIT)?;
        self.centre = Some(centre);
        Ok(())
    }

    /// Stops the key distribution centre.
    pub fn stop(&mut self) {
        self.centre = None;
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the path of the server's keytab.
    pub fn keytab(&self) -> PathBuf {
        self.path("server.keytab")
    }

    /// Returns the environment variables for programs in this realm. A test can select another
    /// credential cache with `KRB5CCNAME`.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let file = |kind: &str, name: &str| {
            let mut text = OsString::from(kind);
            text.push(self.path(name));
            text
        };
        vec![
            ("KRB5_CONFIG", file("", "krb5.conf")),
            ("KRB5_KDC_PROFILE", file("", "kdc.conf")),
            ("KRB5CCNAME", file("FILE:", "cache")),
            ("KRB5_KTNAME", file("FILE:", "server.keytab")),
            ("KRB5RCACHENAME", file("file2:", "replays")),
            ("TMPDIR", file("", "tmp")),
        ]
    }

    pub fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs(self.variables())
    }

    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<Outcome> {
        let mut command = shifted(program, None)?;
        run(self.environment(command.args(arguments)).current_dir(self.directory.path()), LIMIT)
    }

    /// Creates a principal with a random key and adds the key to `keytab`.
    pub fn principal(&self, name: &str, keytab: Option<&str>) -> Result<()> {
        self.run("kadmin.local", &["addprinc", "-randkey", name])?.succeeded()?;
        if let Some(keytab) = keytab {
            self.run("kadmin.local", &["ktadd", "-k", keytab, name])?.succeeded()?;
            ensure!(self.path(keytab).is_file(), "no keytab for {name}");
        }
        Ok(())
    }

    /// Obtains tickets for the principal whose key is in `NAME.keytab` and stores them in `cache`.
    pub fn login(&self, name: &str, cache: &str, options: &[&str]) -> Result<()> {
        self.login_at(None, name, cache, options)
    }

    /// Like [`Realm::login`], with a shifted clock.
    pub fn login_at(&self, shift: Option<&str>, name: &str, cache: &str, options: &[&str]) -> Result<()> {
        let mut command = shifted("kinit", shift)?;
        command.args(["-k", "-t", &format!("{name}.keytab"), "-c", cache]).args(options).arg(name);
        run(self.environment(&mut command).current_dir(self.directory.path()), LIMIT)?.succeeded()?;
        Ok(())
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        self.stop();
        sweep();
    }
}

/// Removes the shared memory of libfaketime whose process was killed.
fn sweep() {
    for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let number =
            ["faketime_shm_", "sem.faketime_sem_"].iter().find_map(|prefix| name.strip_prefix(prefix));
        let ended = number
            .and_then(|number| number.parse::<u32>().ok())
            .is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if ended {
            // Another test may remove it at the same time.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Runs the test with this name again, in a process with the environment of `realm`, for libraries
/// that read the environment.
pub fn enter(realm: &Realm, test: &str) -> Result<()> {
    let mut command = process::command(env::current_exe()?);
    command.args([test, "--exact", "--nocapture"]).env(INSIDE, realm.directory.path());
    let outcome = run(realm.environment(&mut command), LIMIT)?;
    let output = outcome.text() + &outcome.errors();
    if !outcome.status.success() || !output.contains("1 passed") {
        bail!("{output}");
    }
    Ok(())
}

/// Returns the directory of the realm if this process was started by [`enter`].
pub fn inside() -> Option<PathBuf> {
    env::var_os(INSIDE).map(PathBuf::from)
}

/// Returns a command for `program`, optionally with a shifted clock (`-2h`).
pub fn shifted(program: impl AsRef<Path>, shift: Option<&str>) -> Result<Command> {
    let program = program.as_ref();
    let name = program.to_string_lossy();
    let path = if program.is_absolute() { Some(program.to_owned()) } else { peers::find(&name) };
    let mut command = process::command(path.with_context(|| format!("{name} is not installed"))?);
    if let Some(shift) = shift {
        // Preload the library directly: the program `faketime` would stay as a parent process.
        let library = fs::read_dir("/usr/lib")?
            .flatten()
            .map(|entry| entry.path().join("faketime/libfaketime.so.1"))
            .find(|path| path.is_file())
            .context("faketime is not installed (Debian: faketime)")?;
        command.env("LD_PRELOAD", library).env("FAKETIME", shift);
    }
    Ok(command)
}
