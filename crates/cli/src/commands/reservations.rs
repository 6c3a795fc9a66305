use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use ropewalk_client::Options;
use ropewalk_paths::Owner;
use serde::Serialize;

use crate::exit::Exit;
use crate::path_use::{journal, sweep};
use crate::utc;

#[derive(Debug, Args)]
pub struct Reservations {
    /// Write each reservation as a JSON object on one line
    #[arg(long)]
    json: bool,
}

/// A line of `--json`. Times are seconds since 1970.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    id: &'a str,
    provider: &'a str,
    state: String,
    owner: Owner,
    /// Whether a running program uses or watches it.
    in_use: bool,
    from: Option<u64>,
    until: u64,
    capacity: Option<u64>,
    reference: Option<&'a str>,
}

impl Reservations {
    pub fn run(self) -> anyhow::Result<Exit> {
        let journal = journal(&Options::default())?;
        sweep(&journal)?;
        let (entries, _) = journal.list()?;
        let mut out = io::stdout().lock();
        for (entry, in_use) in entries {
            let request = &entry.request;
            if self.json {
                let line = Line {
                    schema: 1,
                    id: entry.id.as_str(),
                    provider: &entry.provider,
                    state: entry.phase.to_string(),
                    owner: entry.owner,
                    in_use,
                    from: request.from.map(|from| from.as_secs()),
                    until: request.until.as_secs(),
                    capacity: request.capacity,
                    reference: entry.reference.as_deref(),
                };
                serde_json::to_writer(&mut out, &line)?;
                writeln!(out)?;
                continue;
            }
            let time = |time: Duration| utc::show(time.as_secs().try_into().unwrap_or(i64::MAX));
            let from = request.from.or(entry.requested).map(time).unwrap_or_default();
            let state = if in_use { format!("{}, in use", entry.phase) } else { entry.phase.to_string() };
            writeln!(out, "{}  {from} - {} UTC  {state}  {}", entry.id, time(request.until), entry.provider)?;
        }
        out.flush()?;
        Ok(Exit::Done)
    }
}
