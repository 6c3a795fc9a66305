use std::ffi::OsString;
use std::fs;
use std::io;

use anyhow::Context;
use clap::Args;
use ropewalk_protocol::url::Url;

use crate::client::{Client, Place, Sessions, Target};
use crate::credentials::same_server;
use crate::exit::{Exit, usage};
use crate::settings::ConnectionFlags;

#[derive(Debug, Args)]
pub struct Mv {
    /// File or directory: path, or URL (ftp:, ftpes:, ftps:, gsiftp:, sshftp:, file:)
    source: OsString,
    /// New name, on the same server, or a directory there
    destination: OsString,
    #[command(flatten)]
    connection: ConnectionFlags,
}

impl Mv {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut targets = [Target::parse(&self.source)?, Target::parse(&self.destination)?];
        let client = Client::new(&self.connection.0, &mut targets)?;
        let [source, destination] = &targets;
        let what = || format!("{} -> {}", source.text, destination.text);
        match (source.place()?, destination.place()?) {
            (Place::Local(from), Place::Local(to)) => {
                let to = match from.file_name() {
                    Some(name) if to.is_dir() => to.join(name),
                    _ => to.to_owned(),
                };
                fs::rename(from, &to).map_err(elsewhere).with_context(what)?;
            }
            (Place::Remote(from), Place::Remote(to)) if same_server(from, to) => {
                rename(&client, from, to).with_context(what)?;
            }
            _ => {
                return Err(usage(
                    "source and destination are not on the same host: use `ropewalk cp`, then \
                     `ropewalk rm`",
                ));
            }
        }
        Ok(Exit::Done)
    }
}

fn elsewhere(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::CrossesDevices {
        return usage(
            "source and destination are on different file systems: use `ropewalk cp`, then `ropewalk rm`",
        );
    }
    error.into()
}

fn rename(client: &Client, from: &Url, to: &Url) -> anyhow::Result<()> {
    let mut sessions = Sessions::new(client);
    let moved = sessions.with(from, |remote, from| {
        let mut to = remote.path_of(to);
        if remote.stat(&to).is_ok_and(|entry| entry.is_directory()) {
            let trimmed = from.strip_suffix(b"/").unwrap_or(from);
            let name = trimmed.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            if !to.ends_with(b"/") {
                to.push(b'/');
            }
            to.extend_from_slice(name);
        } else if to.ends_with(b"/") && !remote.stat(from)?.is_directory() {
            // The server might create a file of that name.
            return Ok(false);
        }
        remote.rename(from, &to).map(|()| true)
    })?;
    sessions.quit();
    if moved { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotADirectory).into()) }
}
