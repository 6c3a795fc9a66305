use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use ropewalk_client::Options;
use ropewalk_paths::{Held, Owner, Part};
use serde::Serialize;

use crate::exit::Exit;
use crate::held::shown;
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
    /// The parts of servers that are reserved with it.
    parts: Vec<PartLine<'a>>,
}

#[derive(Serialize)]
struct PartLine<'a> {
    url: &'a str,
    #[serde(flatten)]
    part: Part,
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
                    parts: entry
                        .held
                        .iter()
                        .map(|Held { url, part, .. }| PartLine { url, part: *part })
                        .collect(),
                };
                serde_json::to_writer(&mut out, &line)?;
                writeln!(out)?;
                continue;
            }
            let time = |time: Duration| utc::show(time.as_secs().try_into().unwrap_or(i64::MAX));
            let from = request.from.or(entry.requested).map(time).unwrap_or_default();
            let state = if in_use { format!("{}, in use", entry.phase) } else { entry.phase.to_string() };
            let parts: String =
                entry.held.iter().map(|held| format!(", {} at {}", shown(held.part), held.url)).collect();
            let (until, provider) = (time(request.until), &entry.provider);
            writeln!(out, "{}  {from} - {until} UTC  {state}  {provider}{parts}", entry.id)?;
        }
        out.flush()?;
        Ok(Exit::Done)
    }
}
