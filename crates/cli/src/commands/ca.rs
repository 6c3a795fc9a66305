use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use ropewalk_gsi::ca::{self, Ca, CaError, CaOptions};
use ropewalk_gsi::{CredentialError, X509};

use crate::credentials::{ask_new_passphrase, ask_passphrase, no_terminal};
use crate::exit::{Exit, usage};

/// Longest certificate that is read, in bytes.
const LONGEST: u64 = 1 << 20;

#[derive(Debug, Args)]
pub struct CaCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make an authority, and the files that every host which trusts it needs
    Init(Init),
    /// Make a certificate and key for a server
    Host(Host),
    /// Make a certificate and key for a person, and print the line for the gridmap
    User(User),
    /// Revoke certificates and reissue the revocation list. Without certificates: only reissue the
    /// list, before it expires
    Revoke(Revoke),
}

/// A key that is replaced by mistake cannot be restored.
fn keep(force: bool, files: [&Path; 2]) -> anyhow::Result<()> {
    match files.into_iter().find(|path| path.symlink_metadata().is_ok()) {
        Some(there) if !force => Err(usage(format!(
            "{} exists already: name other files with --cert and --key, or replace it with --force",
            there.display()
        ))),
        _ => Ok(()),
    }
}

#[derive(Debug, Args)]
struct Place {
    /// The authority's own directory, which no other user may read
    #[arg(long, value_name = "DIRECTORY", default_value = "ropewalk-ca")]
    ca: PathBuf,
    /// Lifetime of the certificate in days. With init (where the certificate lasts ten years at
    /// least) and revoke: lifetime of the revocation list. Once the list has expired, hosts no
    /// longer trust the authority
    #[arg(long, value_name = "N", default_value_t = 365)]
    days: u32,
}

#[derive(Debug, Args)]
struct Init {
    #[command(flatten)]
    place: Place,
    /// The prefix of all names of the site
    #[arg(long, value_name = "NAME", default_value = "/O=Grid/OU=site")]
    namespace: String,
    /// The authority's own name
    #[arg(long, value_name = "NAME", default_value = "Ropewalk CA")]
    name: String,
    /// Where to put the certificate, signing policy and revocation list, to be copied to every
    /// host's /etc/grid-security/certificates
    #[arg(long, value_name = "DIRECTORY", default_value = "certificates")]
    install: PathBuf,
    /// Encrypt the authority's key with a passphrase, read from the terminal
    #[arg(long)]
    encrypt: bool,
}

#[derive(Debug, Args)]
struct Revoke {
    #[command(flatten)]
    place: Place,
    /// Certificates, PEM
    certificates: Vec<PathBuf>,
    /// Where to put the list, to be copied to every host's /etc/grid-security/certificates
    #[arg(long, value_name = "DIRECTORY", default_value = "certificates")]
    install: PathBuf,
}

#[derive(Debug, Args)]
struct Host {
    #[command(flatten)]
    place: Place,
    /// Names and addresses of the host, the main one first
    #[arg(required = true)]
    hosts: Vec<String>,
    /// Where to write the certificate
    #[arg(long, value_name = "FILE", default_value = "hostcert.pem")]
    cert: PathBuf,
    /// Where to write its key
    #[arg(long, value_name = "FILE", default_value = "hostkey.pem")]
    key: PathBuf,
    /// Replace an existing certificate and key
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct User {
    #[command(flatten)]
    place: Place,
    /// The person's name
    name: String,
    /// Local users for the gridmap line, the default one first
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    map: Vec<String>,
    /// Where to write the certificate
    #[arg(long, value_name = "FILE", default_value = "usercert.pem")]
    cert: PathBuf,
    /// Where to write its key
    #[arg(long, value_name = "FILE", default_value = "userkey.pem")]
    key: PathBuf,
    /// Replace an existing certificate and key
    #[arg(long)]
    force: bool,
    /// Encrypt the key with a passphrase, read from the terminal
    #[arg(long)]
    encrypt: bool,
}

impl CaCommand {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut out = io::stdout().lock();
        match self.action {
            Action::Init(init) => {
                let days = init.place.days;
                let options = CaOptions {
                    namespace: init.namespace,
                    common_name: init.name,
                    days: days.max(3650),
                    bits: 3072,
                    passphrase: if init.encrypt {
                        Some(ask_new_passphrase("the authority's key")?)
                    } else {
                        None
                    },
                };
                let ca = Ca::create(&init.place.ca, &options)?;
                let hash = ca.install(&init.install, days)?;
                writeln!(out, "{}", ca.subject())?;
                writeln!(out, "{}", init.install.join(format!("{hash}.0")).display())?;
            }
            Action::Host(host) => {
                keep(host.force, [&host.cert, &host.key])?;
                let ca = open(&host.place.ca)?;
                let names: Vec<&str> = host.hosts.iter().map(String::as_str).collect();
                let credential = ca.issue_host(&names, host.place.days)?;
                ca::write_pair(&credential, &host.cert, &host.key)?;
                writeln!(out, "{}", credential.subject())?;
            }
            Action::User(user) => {
                keep(user.force, [&user.cert, &user.key])?;
                let ca = open(&user.place.ca)?;
                let credential = ca.issue_user(&user.name, user.place.days)?;
                let phrase = if user.encrypt { Some(ask_new_passphrase("the person's key")?) } else { None };
                let phrase = phrase.as_ref().map(|phrase| phrase.as_str());
                ca::write_encrypted_pair(&credential, &user.cert, &user.key, phrase)?;
                let accounts: Vec<&str> = user.map.iter().map(String::as_str).collect();
                if accounts.is_empty() {
                    writeln!(out, "{}", credential.subject())?;
                } else {
                    writeln!(out, "{}", ca::gridmap_line(credential.subject(), &accounts))?;
                }
            }
            Action::Revoke(revoke) => {
                let ca = open(&revoke.place.ca)?;
                for path in &revoke.certificates {
                    let text =
                        ropewalk_files::read(path, LONGEST).with_context(|| path.display().to_string())?;
                    let certificate = X509::from_pem(&text)
                        .with_context(|| format!("{} is not a certificate", path.display()))?;
                    ca.revoke(&certificate)?;
                }
                let hash = ca.install(&revoke.install, revoke.place.days)?;
                writeln!(out, "{}", revoke.install.join(format!("{hash}.r0")).display())?;
            }
        }
        Ok(Exit::Done)
    }
}

fn open(directory: &Path) -> anyhow::Result<Ca> {
    Ca::open(directory, &mut ask_passphrase).map_err(|error| match error {
        CaError::Credential(error @ CredentialError::Encrypted { .. }) => no_terminal(error),
        error => error.into(),
    })
}
