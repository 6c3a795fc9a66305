use std::io::{self, Write};

use clap::{Args, Subcommand};
use ropewalk_client::{Known, forget_server, known_servers};

use crate::exit::Exit;
use crate::output::say;

#[derive(Debug, Args)]
pub struct KnownHosts {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the accepted servers, each with its fingerprint, or `authority` if a trusted authority
    /// issued its certificate
    List,
    /// Forget servers, so that the next log-in asks again: after a server has got another
    /// certificate
    Forget(Forget),
}

#[derive(Debug, Args)]
struct Forget {
    /// As in the message or in `list`; without a port, any port
    #[arg(required = true, value_name = "HOST[:PORT]")]
    servers: Vec<String>,
}

impl KnownHosts {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.action {
            Action::List => list(),
            Action::Forget(forget) => forget.run(),
        }
    }
}

fn list() -> anyhow::Result<Exit> {
    let mut out = io::stdout().lock();
    for (server, known) in known_servers(None)? {
        match known {
            Known::Fingerprint(fingerprint) => writeln!(out, "{server} {fingerprint}")?,
            Known::Authority => writeln!(out, "{server} authority")?,
        }
    }
    Ok(Exit::Done)
}

impl Forget {
    fn run(self) -> anyhow::Result<Exit> {
        let mut exit = Exit::Done;
        for server in self.servers {
            let forgotten = forget_server(None, &server)?;
            if forgotten.is_empty() {
                say(format_args!("ropewalk: {server} is not known"));
                exit = Exit::NotFound;
            }
            for name in forgotten {
                say(format_args!("{name} is forgotten"));
            }
        }
        Ok(exit)
    }
}
