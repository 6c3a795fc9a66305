use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::exit::Exit;
use crate::output::{harmless, json_line, say};
use crate::running::{Answer, JobStatus, Request, ask, jobs};
use crate::settings::parse_bandwidth;
use crate::utc;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Jobs {
    /// Write each job as a JSON object on one line
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Change the limit on the rate of a running copy, as --bandwidth sets it; for example
    /// `ropewalk jobs limit 4711 200Mbit/s`
    Limit {
        /// Its number in `jobs`
        id: u32,
        /// A rate, a timetable ("Mon-Fri 08:00-18:00 200Mbit/s, else none"), or none
        rate: String,
    },
}

/// A line of `--json`.
#[derive(Serialize)]
struct Line {
    schema: u32,
    #[serde(flatten)]
    job: JobStatus,
}

impl Jobs {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.action {
            None => list(self.json),
            Some(Action::Limit { id, rate }) => limit(id, rate),
        }
    }
}

fn list(json: bool) -> anyhow::Result<Exit> {
    let mut out = io::stdout().lock();
    let jobs = jobs()?;
    if json {
        for job in jobs {
            json_line(&mut out, &Line { schema: 1, job })?;
        }
        return Ok(Exit::Done);
    }
    for job in &jobs {
        let more = match job.pairs {
            0 | 1 => String::new(),
            pairs => format!(" and {} more", pairs - 1),
        };
        let since = utc::show(job.since.try_into().unwrap_or(i64::MAX));
        let (source, destination) = (harmless(&job.source), harmless(&job.destination));
        writeln!(out, "{}  since {since}  limit {}  {source} > {destination}{more}", job.id, job.limit)?;
    }
    if jobs.is_empty() {
        say("ropewalk: no copy of this user is running");
    }
    Ok(Exit::Done)
}

fn limit(id: u32, rate: String) -> anyhow::Result<Exit> {
    // A wrong rate is an error of usage, also without a job.
    parse_bandwidth(&rate).map_err(crate::exit::usage)?;
    let answer = ask(id, &Request::Limit { rate });
    match answer {
        Ok(Answer::Done) => Ok(Exit::Done),
        Ok(Answer::Refused { reason }) => anyhow::bail!("job {id}: {}", harmless(&reason)),
        Ok(Answer::Job(_)) => anyhow::bail!("job {id}: the answer is not understood"),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            anyhow::bail!("no copy of this user has the number {id}: `ropewalk jobs` lists them")
        }
        Err(error) => anyhow::bail!("job {id}: {error}"),
    }
}
