use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use ropewalk_server::admin::{
    Answer, LimitStatus, Line, NodeStatus, Request, ReservationStatus, ResourceStatus, SessionStatus, ask,
};
use ropewalk_units::print;

use crate::exit::{Exit, usage};
use crate::output::{harmless, say};
use crate::utc;

#[derive(Debug, Args)]
pub struct Admin {
    /// The socket of the server: `serve --admin-socket` or its setting `admin.socket`
    #[arg(long, global = true, value_name = "FILE")]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the open sessions and what they do
    Sessions(Listing),
    /// List the data nodes of a front end
    Nodes(Listing),
    /// List the limits on the rate of data, and the rates that are used and reserved now
    Limits(Listing),
    /// List the resources for which new transfers wait while they are short, and the slots that are
    /// reserved now
    Load(Listing),
    /// End a session; what an upload has written is kept for a restart
    Kick {
        /// Its number in `sessions`
        id: u64,
    },
    /// Read the configuration again and reopen the logs, as SIGHUP does
    Reload,
    /// End the server as SIGTERM does: transfers may finish
    Drain {
        /// Only give this data node no new channels, as long as it is joined
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}

#[derive(Debug, Args)]
struct Listing {
    /// Write each entry as a JSON object on one line
    #[arg(long)]
    json: bool,
}

impl Admin {
    pub fn run(self) -> anyhow::Result<Exit> {
        let Some(socket) = self.socket else {
            return Err(usage("--socket names the server: its --admin-socket or its setting admin.socket"));
        };
        let (request, json, done) = match self.action {
            Action::Sessions(Listing { json }) => (Request::Sessions, json, None),
            Action::Nodes(Listing { json }) => (Request::Nodes, json, None),
            Action::Limits(Listing { json }) => (Request::Limits, json, None),
            Action::Load(Listing { json }) => (Request::Load, json, None),
            Action::Kick { id } => (Request::Kick { id }, false, Some(format!("Session {id} ends"))),
            Action::Reload => (Request::Reload, false, Some("The server has new settings".to_owned())),
            Action::Drain { node: None } => {
                let done = "The server ends when its transfers are over".to_owned();
                (Request::Drain { node: None }, false, Some(done))
            }
            Action::Drain { node: Some(name) } => {
                let done = format!("Node {name} gets no new channels");
                (Request::Drain { node: Some(name) }, false, Some(done))
            }
        };
        let mut out = io::stdout().lock();
        let mut tables = Tables::of(&request);
        ask(&socket, &request, |line| {
            if json {
                return write_json(&mut out, &line);
            }
            tables.add(line.answer);
            Ok::<_, anyhow::Error>(())
        })?;
        if !json {
            tables.write(&mut out)?;
        }
        out.flush()?;
        if let Some(done) = done {
            say(done);
        }
        Ok(Exit::Done)
    }
}

fn write_json(out: &mut impl Write, line: &Line) -> anyhow::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    Ok(writeln!(out)?)
}

/// The table of a request, and the one of reservations below it.
struct Tables {
    rows: Rows,
    reservations: Rows,
}

impl Tables {
    fn of(request: &Request) -> Self {
        let head: &[&str] = match request {
            Request::Sessions => &["ID", "USER", "PEER", "SINCE (UTC)", "BYTES", "RATE", "ACTIVITY"],
            Request::Nodes => &["NAME", "CAPACITY", "CHANNELS", "STATE", "ADDRESSES"],
            Request::Limits => &["NOW", "USED", "RESERVED", "FOR", "RATE"],
            Request::Load => &["RESOURCE", "NOW", "LIMIT", "RESERVED", "WAITING", "STATE"],
            Request::Kick { .. } | Request::Reload | Request::Drain { .. } => &[],
        };
        Self { rows: Rows::with_head(head), reservations: Rows(Vec::new()) }
    }

    fn add(&mut self, answer: Answer) {
        let row = match answer {
            Answer::Session(session) => session_row(session),
            Answer::Node(node) => node_row(node),
            Answer::Limit(limit) => limit_row(&limit),
            Answer::Resource(resource) => resource_row(resource),
            Answer::Reservation(reservation) => {
                if self.reservations.0.is_empty() {
                    self.reservations =
                        Rows::with_head(&["RESERVED FOR", "SLOTS", "IN USE", "RATE", "UNTIL (UTC)"]);
                }
                return self.reservations.0.push(reservation_row(&reservation));
            }
            Answer::Done | Answer::Refused { .. } => return,
        };
        self.rows.0.push(row);
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.rows.write(out)?;
        if !self.reservations.0.is_empty() {
            writeln!(out)?;
        }
        self.reservations.write(out)
    }
}

/// A table whose columns are as wide as they have to be.
struct Rows(Vec<Vec<String>>);

impl Rows {
    fn with_head(titles: &[&str]) -> Self {
        match titles {
            [] => Self(Vec::new()),
            titles => Self(vec![titles.iter().map(|title| (*title).to_owned()).collect()]),
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let width = |column: usize| {
            self.0.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0)
        };
        for row in &self.0 {
            let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column)));
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

fn session_row(session: SessionStatus) -> Vec<String> {
    let activity = match (session.path, session.position) {
        (Some(path), _) => format!("{} {}", session.activity, harmless(&path)),
        (None, Some(position)) => format!("{}, position {position}", session.activity),
        (None, None) => session.activity,
    };
    vec![
        session.id.to_string(),
        harmless(session.user.as_deref().unwrap_or("-")),
        session.peer,
        utc::show(session.since.try_into().unwrap_or(i64::MAX)),
        print::size(session.total),
        print::rate(session.rate as f64),
        activity,
    ]
}

fn node_row(node: NodeStatus) -> Vec<String> {
    let state = if node.draining { "draining" } else { "ready" };
    vec![
        node.name,
        print::link_rate(node.capacity as f64),
        match node.elsewhere {
            0 => node.channels.to_string(),
            elsewhere => format!("{} + {elsewhere} of other front ends", node.channels),
        },
        state.to_owned(),
        node.addresses.join(" "),
    ]
}

fn limit_row(limit: &LimitStatus) -> Vec<String> {
    let named = [("user", &limit.user), ("group", &limit.group)];
    let mut scope: Vec<String> = named
        .iter()
        .filter_map(|(kind, name)| Some(format!("{kind} {}", harmless(name.as_ref()?))))
        .collect();
    scope.extend(limit.site.clone());
    scope.extend(limit.direction.clone());
    if limit.each_user {
        scope.push("each user".into());
    }
    if scope.is_empty() {
        scope.push("all".into());
    }
    vec![
        limit.now.map_or_else(|| "off".to_owned(), |rate| print::link_rate(rate as f64)),
        print::link_rate(limit.used as f64),
        reserved_rate(limit.reserved),
        scope.join(", "),
        limit.rate.clone(),
    ]
}

fn resource_row(resource: ResourceStatus) -> Vec<String> {
    let shown = |value: f64| match resource.unit.as_str() {
        "bytes" => print::size(value as u64),
        "percent" => format!("{value:.1} %"),
        _ => format!("{value:.0}"),
    };
    vec![
        resource.name,
        resource.now.map_or_else(|| "-".to_owned(), shown),
        resource.limit.map_or_else(|| "off".to_owned(), shown),
        resource.reserved.map_or_else(|| "-".to_owned(), |reserved| reserved.to_string()),
        resource.waiting.map_or_else(|| "-".to_owned(), |waiting| waiting.to_string()),
        if resource.short { "short".to_owned() } else { "enough".to_owned() },
    ]
}

fn reservation_row(reservation: &ReservationStatus) -> Vec<String> {
    vec![
        harmless(&reservation.user),
        reservation.slots.to_string(),
        reservation.used.to_string(),
        reserved_rate(reservation.rate),
        utc::show(reservation.until.try_into().unwrap_or(i64::MAX)),
    ]
}

/// A rate that is reserved, in bytes per second.
fn reserved_rate(rate: u64) -> String {
    match rate {
        0 => "-".to_owned(),
        rate => print::link_rate(rate as f64),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn table_has_aligned_columns_and_no_control_characters() {
        let mut tables = Tables::of(&Request::Sessions);
        let moving = SessionStatus {
            id: 12,
            user: None,
            peer: "192.0.2.1:5000".into(),
            since: 0,
            activity: "STOR".into(),
            path: Some("/a\x1b[2J".into()),
            position: None,
            bytes: 10,
            total: 2048,
            rate: 1 << 20,
        };
        let (activity, position) = ("waiting".to_owned(), Some(3));
        let waiting = SessionStatus { activity, path: None, position, ..moving.clone() };
        tables.add(Answer::Session(moving));
        tables.add(Answer::Session(waiting));
        let mut text = Vec::new();
        tables.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0].find("PEER"), lines[1].find("192.0.2.1"), "{text}");
        assert!(lines[1].ends_with("STOR /a\u{fffd}[2J"), "{text}");
        assert!(lines[2].ends_with("waiting, position 3"), "{text}");
    }

    #[test]
    fn resources_have_their_units_and_states() {
        let mut tables = Tables::of(&Request::Load);
        let memory = ResourceStatus {
            name: "memory".into(),
            unit: "bytes".into(),
            now: Some(16_777_216.0),
            limit: Some(33_554_432.0),
            reserved: None,
            short: true,
            waiting: None,
        };
        let (name, unit) = ("processors".to_owned(), "percent".to_owned());
        let processors =
            ResourceStatus { name, unit, now: None, limit: Some(62.5), short: false, ..memory.clone() };
        let (name, unit) = ("transfers".to_owned(), "permits".to_owned());
        let (reserved, waiting) = (Some(5), Some(2));
        let transfers = ResourceStatus { name, unit, limit: None, reserved, waiting, ..memory.clone() };
        for resource in [memory, processors, transfers] {
            tables.add(Answer::Resource(resource));
        }
        let mut text = Vec::new();
        tables.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(lines[1], ["memory", "16.0", "MiB", "32.0", "MiB", "-", "-", "short"], "{text}");
        assert_eq!(lines[2], ["processors", "-", "62.5", "%", "-", "-", "enough"], "{text}");
        assert_eq!(lines[3], ["transfers", "16777216", "off", "5", "2", "short"], "{text}");
    }

    #[test]
    fn reservations_stand_in_a_table_of_their_own() {
        let mut tables = Tables::of(&Request::Limits);
        tables.add(Answer::Limit(LimitStatus {
            rate: "10Gbit/s".into(),
            now: Some(1_250_000_000),
            used: 0,
            reserved: 125_000_000,
            user: None,
            group: None,
            site: Vec::new(),
            direction: None,
            each_user: false,
        }));
        let user = "a\x1b".to_owned();
        let (from, until) = (0, 1_795_298_190);
        let reserved = ReservationStatus { user, slots: 4, used: 1, rate: 125_000_000, from, until };
        tables.add(Answer::Reservation(ReservationStatus { rate: 0, ..reserved.clone() }));
        tables.add(Answer::Reservation(reserved));
        let mut text = Vec::new();
        tables.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let rate = print::link_rate(125_000_000.0);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].contains(&rate) && lines[2].is_empty(), "{text}");
        assert!(lines[3].starts_with("RESERVED FOR  SLOTS  IN USE  RATE"), "{text}");
        assert!(lines[4].starts_with("a\u{fffd}") && lines[4].ends_with("2026-11-21 21:56:30"), "{text}");
        assert!(lines[4].contains("4      1       - ") && lines[5].contains(&rate), "{text}");
        assert_eq!(lines.len(), 6);
    }
}
