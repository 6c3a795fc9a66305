use std::ffi::OsString;
use std::io::{self, Write};

use clap::Args;
use ropewalk_client::{Error, Window};

use crate::client::{Client, Place, Sessions, parse_targets};
use crate::exit::Exit;
use crate::settings::ConnectionFlags;
use crate::{local, units};

#[derive(Debug, Args)]
pub struct Cat {
    /// Files: paths, or URLs (ftp:, ftpes:, ftps:, gsiftp:, sshftp:, file:)
    #[arg(required = true, value_name = "LOCATION")]
    locations: Vec<OsString>,
    /// Start at this byte
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "0")]
    offset: u64,
    /// Print at most this many bytes
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    length: Option<u64>,
    #[command(flatten)]
    connection: ConnectionFlags,
}

impl Cat {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut targets = parse_targets(&self.locations)?;
        let client = Client::new(&self.connection.0, &mut targets)?;
        let mut sessions = Sessions::new(&client);
        let window = (self.offset > 0 || self.length.is_some())
            .then_some(Window { offset: self.offset, length: self.length });
        let mut out = io::stdout().lock();
        let exit = client.each(&targets, |target| {
            match target.place()? {
                Place::Local(path) => local::read_to(path, &mut out, window)?,
                Place::Remote(url) => {
                    sessions.with(url, |remote, path| remote.read_to(path, &mut out, window))?
                }
            };
            Ok(out.flush().map_err(Error::output)?)
        })?;
        sessions.quit();
        Ok(exit)
    }
}
