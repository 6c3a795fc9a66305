use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use ropewalk_security::{PasswordError, PasswordFile, valid_user_name};

use crate::exit::{Exit, usage};
use crate::output::say;
use crate::secret;

/// Longest accepted password line, in bytes.
const LONGEST: u64 = 4096;

#[derive(Debug, Args)]
pub struct Passwd {
    /// The user, whose password is read twice from a terminal, otherwise once from standard input
    #[arg(required_unless_present = "list")]
    user: Option<String>,
    /// The file of users and password hashes that `password_file` in the server's configuration
    /// names
    #[arg(short, long, default_value = "/etc/ropewalk/passwd")]
    file: PathBuf,
    /// Remove the user
    #[arg(long, conflicts_with = "list")]
    delete: bool,
    /// List the users
    #[arg(long, conflicts_with = "user")]
    list: bool,
}

impl Passwd {
    pub fn run(self) -> anyhow::Result<Exit> {
        let Some(user) = &self.user else {
            let users = PasswordFile::load(&self.file)?;
            let mut out = io::stdout().lock();
            for user in users.list() {
                writeln!(out, "{user}")?;
            }
            return Ok(Exit::Done);
        };
        if self.delete {
            let mut users = PasswordFile::load(&self.file)?;
            if !users.remove(user)? {
                bail!("{}: there is no user {user:?}", self.file.display());
            }
            say(format_args!("{user} can no longer log in"));
            return Ok(Exit::Done);
        }
        if !valid_user_name(user) {
            return Err(usage(PasswordError::Name(user.clone()).to_string()));
        }
        let mut users = PasswordFile::load_or_new(&self.file)?;
        let password = new_password(user)?;
        // On a host that has never had a server: /etc/ropewalk.
        if let Some(directory) = self.file.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            match fs::create_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("cannot make {}", directory.display()));
                }
                _ => {}
            }
        }
        users.set(user, password.as_bytes())?;
        say(format_args!("{}: the password of {user} is set", self.file.display()));
        Ok(Exit::Done)
    }
}

fn new_password(user: &str) -> anyhow::Result<String> {
    let password = if io::stdin().is_terminal() {
        let ask = |prompt: &str| secret::ask(prompt).context("cannot read the password");
        let password = ask(&format!("New password of {user}: "))?;
        if password != ask("Again: ")? {
            bail!("the passwords differ; nothing was changed");
        }
        password.as_str().to_owned()
    } else {
        let mut line = String::new();
        io::Read::take(io::stdin().lock(), LONGEST)
            .read_line(&mut line)
            .context("cannot read the password")?;
        if line.len() as u64 == LONGEST {
            return Err(usage("the line on standard input is too long for a password"));
        }
        line.trim_end_matches(['\r', '\n']).to_owned()
    };
    if password.is_empty() {
        return Err(usage("the password is empty; nothing was changed"));
    }
    Ok(password)
}
