use std::ffi::OsString;
use std::fs;

use clap::Args;

use crate::client::{Client, Place, Sessions, parse_targets};
use crate::exit::Exit;
use crate::settings::ConnectionFlags;

#[derive(Debug, Args)]
pub struct Mkdir {
    /// Directories: paths, or URLs (ftp:, ftpes:, ftps:, gsiftp:, sshftp:, file:)
    #[arg(required = true, value_name = "LOCATION")]
    locations: Vec<OsString>,
    /// Make missing parents as well; an existing directory is not an error
    #[arg(short, long)]
    parents: bool,
    #[command(flatten)]
    connection: ConnectionFlags,
}

impl Mkdir {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut targets = parse_targets(&self.locations)?;
        let client = Client::new(&self.connection.0, &mut targets)?;
        let mut sessions = Sessions::new(&client);
        let exit = client.each(&targets, |target| {
            match target.place()? {
                Place::Local(path) if self.parents => fs::create_dir_all(path)?,
                Place::Local(path) => fs::create_dir(path)?,
                Place::Remote(url) => {
                    sessions.with(url, |remote, path| remote.make_directory(path, self.parents))?;
                }
            }
            Ok(())
        })?;
        sessions.quit();
        Ok(exit)
    }
}
