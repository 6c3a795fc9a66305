use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ropewalk_client::Location;
use ropewalk_files::OnDisk;
use ropewalk_protocol::url::Url;
use ropewalk_tuning::route::{Choice, Estimate};
use serde::Serialize;

use crate::client::{Client, Place, Target, parse_targets};
use crate::exit::{Exit, usage};
use crate::output::{harmless, json_line, say};
use crate::settings::ConnectionFlags;
use crate::survey::{Basis, Hop, MOST_RELAYS, Routes, likely, name, path_text};
use crate::{picture, units};

#[derive(Debug, Args)]
#[command(after_help = crate::exit::HELP)]
pub struct Route {
    /// The source of a copy: a URL, or a path of this host
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// The destination: a URL, or a path of this host
    #[arg(value_name = "DESTINATION")]
    destination: OsString,
    /// The servers that may be relays (`serve --relay-to`): ftp://B:PORT, or several with commas
    /// between, in any order
    #[arg(long, required = true, value_name = "URLS", value_delimiter = ',')]
    relays: Vec<OsString>,
    /// Write the hops and the choice as one JSON object
    #[arg(long)]
    json: bool,
    /// Draw the hops, with the range of their rates, and the chosen path into FILE (SVG)
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The object of `--json`. Rates are bytes per second.
#[derive(Serialize)]
struct Report<'a> {
    hops: Vec<HopLine<'a>>,
    /// The nodes of the chosen path; empty if no path can be used.
    path: Vec<&'a str>,
    /// The value for `cp --via`; empty for the direct path.
    via: Vec<&'a str>,
    rate: Option<Rate>,
    reason: String,
}

#[derive(Serialize)]
struct HopLine<'a> {
    from: &'a str,
    to: &'a str,
    basis: Basis,
    rate: Option<Rate>,
    rtt_seconds: Option<f64>,
    probes: Option<u32>,
    lost: Option<u32>,
    note: Option<&'a str>,
}

#[derive(Clone, Copy, Serialize)]
struct Rate {
    low: f64,
    /// `None`: unknown.
    likely: Option<f64>,
    high: f64,
}

impl From<Estimate> for Rate {
    fn from(estimate: Estimate) -> Self {
        let likely = estimate.is_known().then(|| estimate.likely());
        Self { low: estimate.low(), likely, high: estimate.high() }
    }
}

impl Route {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut targets = parse_targets(&[self.source, self.destination])?;
        targets.extend(parse_targets(&self.relays)?);
        check(&targets)?;
        let client = Client::new(&self.connection.0, &mut targets)?;
        // The destination comes last.
        let destination = targets.remove(1);
        targets.push(destination);
        let nodes: Vec<Option<Url>> = targets.iter().map(server).collect();
        let routes = Routes::learn(&client, nodes);
        if client.cancel.is_cancelled() {
            return Ok(Exit::Interrupted);
        }
        let reason = routes.reason();
        if let Some(file) = &self.picture {
            let picture = picture::svg(&routes, &reason);
            let written = ropewalk_files::replace(file, picture.as_bytes(), 0o644, OnDisk::Later);
            written.with_context(|| format!("cannot write the picture {}", file.display()))?;
        }
        let Routes { names, hops, choice, .. } = routes;
        let mut out = io::stdout().lock();
        if self.json {
            json_line(&mut out, &report(&hops, choice.as_ref(), &names, reason))?;
        } else {
            write_table(&mut out, &hops, &names)?;
            if let Some(choice) = &choice {
                write_choice(&mut out, choice, &names, &reason)?;
            }
        }
        out.flush()?;
        if choice.is_none() {
            say("ropewalk: no path can be used");
            return Ok(Exit::Failed);
        }
        Ok(Exit::Done)
    }
}

/// Checks that an end is at a server, and that relays are servers without a path.
fn check(targets: &[Target]) -> anyhow::Result<()> {
    for target in targets {
        target.place()?;
    }
    let (ends, relays) = targets.split_at(2);
    if ends.iter().all(|end| server(end).is_none()) {
        return Err(usage("expected a source or a destination at a server"));
    }
    if relays.len() > MOST_RELAYS {
        return Err(usage(format!("{} relays: at most {MOST_RELAYS} are compared", relays.len())));
    }
    let mut seen: Vec<String> = ends.iter().map(|end| name(&server(end))).collect();
    for relay in relays {
        match relay.place()? {
            Place::Remote(url) if url.path.iter().all(|byte| *byte == b'/') => {}
            _ => {
                return Err(usage(format!(
                    "{}: expected the URL of a server without a path, as ftp://HOST:PORT",
                    relay.text
                )));
            }
        }
        let name = name(&server(relay));
        if seen.contains(&name) {
            return Err(usage(format!("{name} is named twice")));
        }
        seen.push(name);
    }
    Ok(())
}

fn server(target: &Target) -> Option<Url> {
    match &target.location {
        Location::Remote(url) => Some(url.clone()),
        _ => None,
    }
}

fn report<'a>(hops: &'a [Hop], choice: Option<&Choice>, names: &'a [String], reason: String) -> Report<'a> {
    let line = |hop: &'a Hop| HopLine {
        from: &names[hop.from],
        to: &names[hop.to],
        basis: hop.basis,
        rate: hop.estimate.map(Rate::from),
        rtt_seconds: hop.rtt.map(|rtt| rtt.as_secs_f64()),
        probes: hop.loss.map(|loss| loss.sent),
        lost: hop.loss.map(|loss| loss.lost),
        note: hop.note.as_deref(),
    };
    let nodes = choice.map(|choice| choice.route.nodes.as_slice()).unwrap_or_default();
    let path: Vec<&str> = nodes.iter().map(|node| names[*node].as_str()).collect();
    let via = path.get(1..path.len().saturating_sub(1)).unwrap_or_default().to_vec();
    let rate = choice.map(|choice| choice.route.estimate.into());
    Report { hops: hops.iter().map(line).collect(), path, via, rate, reason }
}

fn write_table(out: &mut impl Write, hops: &[Hop], names: &[String]) -> io::Result<()> {
    let width = names.iter().map(String::len).max().unwrap_or_default();
    writeln!(
        out,
        "{:<width$}  {:<width$}  {:<13}  {:<27}  {:<10}  {:<12}  origin",
        "from", "to", "likely rate", "range", "round trip", "loss"
    )?;
    for hop in hops {
        let rate = hop.estimate.map(likely);
        let range = hop
            .estimate
            .map(|rate| format!("{} to {}", units::link_rate(rate.low()), units::link_rate(rate.high())));
        let rtt = hop.rtt.map(|rtt| format!("{:.2} ms", rtt.as_secs_f64() * 1000.0));
        let loss = match hop.loss {
            // A few packets do not show a small loss.
            Some(loss) if loss.lost > 0 => format!("{} of {}", loss.lost, loss.sent),
            _ => "unknown".to_owned(),
        };
        let origin = hop.basis.text();
        let note = hop.note.as_ref().map(|note| format!(": {}", harmless(note))).unwrap_or_default();
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        writeln!(
            out,
            "{:<width$}  {:<width$}  {:<13}  {:<27}  {:<10}  {loss:<12}  {origin}{note}",
            names[hop.from],
            names[hop.to],
            or_dash(rate),
            or_dash(range),
            or_dash(rtt),
        )?;
    }
    Ok(())
}

fn write_choice(out: &mut impl Write, choice: &Choice, names: &[String], reason: &str) -> io::Result<()> {
    let nodes = &choice.route.nodes;
    writeln!(out, "\nPath: {}", path_text(nodes, names))?;
    writeln!(out, "Reason: {reason}")?;
    let relays: Vec<&str> = nodes[1..nodes.len() - 1].iter().map(|node| names[*node].as_str()).collect();
    if !relays.is_empty() {
        writeln!(out, "Use it: ropewalk cp --via {} SOURCE DESTINATION", relays.join(","))?;
    }
    Ok(())
}
