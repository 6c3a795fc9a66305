use std::io::{self, Write};

use clap::Args;
use clap_complete::{Shell, generate};
use ropewalk_cli::exit::Exit;

use crate::cli::Cli;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let mut text = Vec::new();
        generate(self.shell, &mut Cli::definition(), "ropewalk", &mut text);
        io::stdout().lock().write_all(&text)?;
        Ok(Exit::Done)
    }
}
