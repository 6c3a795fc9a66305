use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap_mangen::Man as Page;
use ropewalk_cli::exit::{Exit, usage};

use crate::cli::Cli;

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Page of this command instead of the program's: cp, "lab run"
    #[arg(value_name = "COMMAND")]
    of: Option<String>,
    /// Write all pages to this directory
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "of")]
    directory: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let mut program = Cli::definition();
        program.build();
        if let Some(directory) = self.directory {
            for command in all(&program) {
                let page = page(command)?;
                let path = directory.join(format!("{}.1", name(command)));
                fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
            }
            return Ok(Exit::Done);
        }
        let command = match &self.of {
            None => &program,
            Some(of) => {
                let wanted = format!("{}-{}", program.get_name(), of.replace(' ', "-"));
                let found = all(&program).into_iter().find(|command| name(command) == wanted);
                found.ok_or_else(|| usage(format!("there is no command {of:?}")))?
            }
        };
        io::stdout().lock().write_all(&page(command)?)?;
        Ok(Exit::Done)
    }
}

/// The command, and all commands beneath it that have a page.
fn all(command: &clap::Command) -> Vec<&clap::Command> {
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    std::iter::once(command).chain(shown.flat_map(all)).collect()
}

/// `ropewalk-cp`, `ropewalk-lab-run`.
fn name(command: &clap::Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    Page::new(command.clone()).title(name(command)).section("1").render(&mut text)?;
    // The text after the options consists of examples and exit codes.
    let text = String::from_utf8_lossy(&text).replace("\n.SH EXTRA\nExamples:", "\n.SH EXAMPLES\n.nf");
    let text = text.replace("\n.SH EXTRA\n", "\n.SH \"EXIT STATUS\"\n");
    let text = match text.split_once("\n.SH EXAMPLES\n") {
        Some((before, after)) => {
            format!(
                "{before}\n.SH EXAMPLES\n{}",
                after.replacen("\nExit codes:", "\n.fi\n.SH \"EXIT STATUS\"", 1)
            )
        }
        None => text,
    };
    Ok(text.into_bytes())
}
