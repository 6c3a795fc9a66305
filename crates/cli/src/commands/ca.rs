use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use ropewalk_gsi::ca::{self, Ca, CaOptions};

use super::proxy::ask_passphrase;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(crate) struct CaCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make an authority, and what has to be on every host that trusts it
    Init(Init),
    /// Make a certificate and key for a server
    Host(Host),
    /// Make a certificate and key for a person, and print the line for the gridmap
    User(User),
}

#[derive(Debug, Args)]
struct Place {
    /// The authority's own directory, which nobody else may read
    #[arg(long, value_name = "DIRECTORY", default_value = "ropewalk-ca")]
    ca: PathBuf,
    /// How long the certificate lasts, in days
    #[arg(long, value_name = "N", default_value_t = 365)]
    days: u32,
}

#[derive(Debug, Args)]
struct Init {
    #[command(flatten)]
    place: Place,
    /// What all names of the site begin with
    #[arg(long, value_name = "NAME", default_value = "/O=Grid/OU=site")]
    namespace: String,
    #[arg(long, value_name = "NAME", default_value = "Ropewalk CA")]
    name: String,
    /// Where to put the certificate, signing policy and revocation list, to be copied to every host's
    /// /etc/grid-security/certificates
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
    #[arg(long, value_name = "FILE", default_value = "hostcert.pem")]
    cert: PathBuf,
    #[arg(long, value_name = "FILE", default_value = "hostkey.pem")]
    key: PathBuf,
}

#[derive(Debug, Args)]
struct User {
    #[command(flatten)]
    place: Place,
    /// The person's name
    name: String,
    /// Local users for the gridmap line, the usual one first
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    map: Vec<String>,
    #[arg(long, value_name = "FILE", default_value = "usercert.pem")]
    cert: PathBuf,
    #[arg(long, value_name = "FILE", default_value = "userkey.pem")]
    key: PathBuf,
}

impl CaCommand {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let mut out = io::stdout().lock();
        match self.action {
            Action::Init(init) => {
                let days = init.place.days;
                let options = CaOptions {
                    namespace: init.namespace,
                    common_name: init.name,
                    days: days.max(3650),
                    bits: 3072,
                    passphrase: None,
                };
                let ca = Ca::create(&init.place.ca, &options)?;
                let hash = ca.install(&init.install, days)?;
                writeln!(out, "{}", ca.subject())?;
                writeln!(out, "{}", init.install.join(format!("{hash}.0")).display())?;
            }
            Action::Host(host) => {
                let ca = Ca::open(&host.place.ca, &mut ask_passphrase)?;
                let names: Vec<&str> = host.hosts.iter().map(String::as_str).collect();
                let credential = ca.issue_host(&names, host.place.days)?;
                ca::write_pair(&credential, &host.cert, &host.key)?;
                writeln!(out, "{}", credential.subject())?;
            }
            Action::User(user) => {
                let ca = Ca::open(&user.place.ca, &mut ask_passphrase)?;
                let credential = ca.issue_user(&user.name, user.place.days)?;
                ca::write_pair(&credential, &user.cert, &user.key)?;
                let accounts: Vec<&str> = user.map.iter().map(String::as_str).collect();
                if accounts.is_empty() {
                    writeln!(out, "{}", credential.subject())?;
                } else {
                    writeln!(out, "{}", ca::gridmap_line(credential.subject(), &accounts))?;
                }
            }
        }
        Ok(Exit::Done)
    }
}
