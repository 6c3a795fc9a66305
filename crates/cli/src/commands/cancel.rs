use anyhow::anyhow;
use clap::Args;
use ropewalk_client::{Cancel, Options};
use ropewalk_paths::{Entry, Goal, Id, Journal, Phase, Runner};

use crate::exit::Exit;
use crate::held;
use crate::output::say;
use crate::path_source::PathSource;
use crate::path_use::journal;
use crate::settings::{ConnectionFlags, Flags};

#[derive(Debug, Args)]
pub struct CancelCommand {
    /// Reservations, as `ropewalk reservations` lists them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<Id>,
    /// Remove the entries only, and do not ask the provider: for one that is gone for good
    #[arg(long)]
    forget: bool,
    #[command(flatten)]
    connection: ConnectionFlags,
}

impl CancelCommand {
    pub fn run(self) -> anyhow::Result<Exit> {
        let journal = journal(&Options::default())?;
        let mut exits = Vec::new();
        for id in self.ids {
            match cancel(&journal, &id, self.forget, &self.connection.0) {
                Ok(exit) => exits.push(exit),
                Err(error) => {
                    say(format_args!("ropewalk: {id}: {error:#}"));
                    exits.push(Exit::Failed);
                }
            }
        }
        Ok(Exit::of_kinds(exits))
    }
}

fn cancel(journal: &Journal, id: &Id, forget: bool, flags: &Flags) -> anyhow::Result<Exit> {
    let Some((entry, locked)) = journal.take_over(id)? else {
        if journal.list()?.0.iter().any(|(entry, _)| entry.id == *id) {
            return Err(anyhow!("a running program uses it: stop that program"));
        }
        say(format_args!("ropewalk: there is no reservation {id}"));
        return Ok(Exit::NotFound);
    };
    if forget {
        held::tell_left(&entry);
        locked.write(&Entry { phase: Phase::Ended, ..entry })?;
        return Ok(Exit::Done);
    }
    let provider = PathSource::parse(&entry.provider).map_err(anyhow::Error::msg)?.provider()?;
    let provider = provider.ok_or_else(|| anyhow!("it has no provider"))?;
    let parts = entry.held.clone();
    let mut runner = Runner::recover((entry, locked), provider, Goal::End);
    runner.end();
    // All of them are tried.
    let released: Vec<_> = parts.iter().map(|held| held::release(held, flags, &Cancel::new())).collect();
    if runner.is_left() {
        return Err(anyhow!("the provider has not confirmed the end; `ropewalk reservations` tries again"));
    }
    released.into_iter().collect::<anyhow::Result<()>>()?;
    Ok(Exit::Done)
}
