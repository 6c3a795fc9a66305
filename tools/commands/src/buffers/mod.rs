//! `ropewalk buffers`: the buffer demands of this host's connections, and a division of memory
//! among them.

mod exposition;
mod negotiate;
mod plan;
mod table;

use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use ropewalk_buffers::{Analyzer, Direction, Filter, Measure, SCHEMA, Snapshot, runs};
use serde::Serialize;

use exposition::exposition;

use crate::exit::{Exit, usage};
use crate::output::say;
use crate::{signals, units};

/// Show the TCP connections of this host, their buffers and what limits these; with --policy,
/// divide memory among them.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Buffers {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    show: Show,
    #[command(flatten)]
    negotiate: negotiate::Negotiate,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Compute a division for given demands, without looking at connections or setting anything
    Plan(plan::Plan),
}

/// The selection and format of the output.
#[derive(Debug, Args)]
struct Show {
    /// Repeat once an interval, until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    /// Period over which rates are measured
    #[arg(short, long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    interval: Duration,
    /// One JSON object for each look or negotiation
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Sums for Prometheus, in its text format
    #[arg(long)]
    prometheus: bool,
    /// Program file that has the connection open (can be repeated)
    #[arg(long = "process", value_name = "NAME|PID")]
    processes: Vec<String>,
    /// Only connections of ropewalk programs
    #[arg(long)]
    own: bool,
    /// Local or remote port (can be repeated)
    #[arg(long = "port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    ports: Vec<u16>,
    /// Address of the peer (can be repeated)
    #[arg(long = "peer", value_name = "ADDRESS")]
    peers: Vec<IpAddr>,
    /// Only connections that move most of their data in this direction
    #[arg(long)]
    direction: Option<Way>,
    /// Only connections with at least this rate
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate)]
    min_rate: Option<u64>,
    /// The measure of a connection's demand: window (twice the congestion window), rate (twice rate
    /// times round trip) or requested (its present buffer)
    #[arg(long, value_name = "MEASURE", default_value = "window", value_parser = measure)]
    measure: Measure,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    In,
    Out,
}

#[derive(Serialize)]
struct Line<'a, T> {
    schema: u32,
    #[serde(flatten)]
    content: &'a T,
}

impl Buffers {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.action {
            Some(Action::Plan(plan)) => plan.run(),
            None if self.negotiate.is_wanted() => self.negotiate.run(&self.show),
            None => self.show.run(),
        }
    }
}

impl Show {
    fn run(&self) -> anyhow::Result<Exit> {
        let filter = self.filter();
        for process in self.processes.iter().filter(|process| !runs(process)) {
            say(format_args!("ropewalk: no process {process} runs now"));
        }
        let mut analyzer = Analyzer::new().map_err(denied)?;
        let stop = stopper("ropewalk: stopping")?;
        analyzer.look(self.measure, |_, _| None).map_err(denied)?;
        let mut screen = table::Screen::new(self.watch && !self.json && !self.prometheus);
        loop {
            if !wait(&stop, self.interval) {
                return Ok(Exit::Interrupted);
            }
            let mut snapshot = analyzer.look(self.measure, |_, _| None).map_err(denied)?;
            snapshot.retain(&filter);
            self.print(&snapshot, &snapshot, None, &mut screen, table::of_snapshot)?;
            if !self.watch {
                return Ok(Exit::Done);
            }
        }
    }

    /// Prints in the requested format.
    fn print<T: Serialize>(
        &self,
        content: &T,
        snapshot: &Snapshot,
        granted: Option<(u64, u64)>,
        screen: &mut table::Screen,
        text: impl Fn(&T) -> String,
    ) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, &Line { schema: SCHEMA, content }).map_err(io::Error::from)?;
            writeln!(out)?;
        } else if self.prometheus {
            out.write_all(exposition(snapshot, granted).as_bytes())?;
        } else {
            screen.show(&mut out, &text(content))?;
        }
        out.flush()?;
        Ok(())
    }

    fn filter(&self) -> Filter {
        let (mut programs, mut pids) = (Vec::new(), Vec::new());
        for process in &self.processes {
            match process.parse() {
                Ok(pid) => pids.push(pid),
                Err(_) => programs.push(process.clone()),
            }
        }
        Filter {
            programs,
            pids,
            ports: self.ports.clone(),
            peers: self.peers.iter().map(IpAddr::to_canonical).collect(),
            direction: self.direction.map(|way| match way {
                Way::In => Direction::In,
                Way::Out => Direction::Out,
            }),
            least_rate: self.min_rate.unwrap_or(0) as f64,
            own: self.own,
        }
    }
}

/// Returns a receiver that gets a message at Ctrl-C.
fn stopper(message: &'static str) -> anyhow::Result<Receiver<()>> {
    let (sender, receiver) = mpsc::channel();
    signals::on_first(message, move || {
        // The receiver is gone if the command is already ending.
        let _ = sender.send(());
    })?;
    Ok(receiver)
}

/// Waits. Returns `false` after Ctrl-C.
fn wait(stop: &Receiver<()>, time: Duration) -> bool {
    let end = Instant::now() + time;
    stop.recv_timeout(end.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout)
}

/// An error with the exit code of the kernel's error.
fn denied(error: impl std::error::Error + Send + Sync + 'static) -> anyhow::Error {
    anyhow::Error::new(error)
}

fn measure(name: &str) -> Result<Measure, String> {
    name.parse().map_err(|error: ropewalk_buffers::MeasureName| error.to_string())
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text)?;
    let (least, most) = (Duration::from_millis(100), Duration::from_secs(3600));
    if (least..=most).contains(&time) { Ok(time) } else { Err("expected 100ms to 1h".into()) }
}

/// The directory of state that outlives a run: `$XDG_STATE_HOME/ropewalk`, or the same beneath
/// `~/.local/state`.
fn state_directory() -> anyhow::Result<std::path::PathBuf> {
    // The XDG specification says that relative paths are ignored.
    let absolute =
        |name| std::env::var_os(name).map(std::path::PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    base.map(|base| base.join("ropewalk"))
        .ok_or_else(|| {
            usage(
                "there is no place to record changes: neither XDG_STATE_HOME nor HOME \
                              is set",
            )
        })
        .context("cannot set buffers")
}
