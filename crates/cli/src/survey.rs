//! Learns about the hops between two places and relays, without moving data.
//!
//! A hop of this host is probed on its control connection. A hop between a relay and another
//! server is asked for at the relay: it looks up a directory of that server, which takes the round
//! trip of both hops. A relay that refuses cannot be used for that hop. All else is unknown, unless
//! a past transfer over the hop is stored.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ropewalk_client::{
    Error, ErrorKind, PathProbe, RelayedLogin, Remote, estimate_by_model, estimate_by_past_transfer,
};
use ropewalk_protocol::hop_login::ServerAddress;
use ropewalk_protocol::url::Url;
use ropewalk_tuning::route::{Choice, Estimate, Graph, Loss, Reason};

use crate::client::{Client, Sessions};
use crate::units;
use crate::via::behind;

/// The most relays, as many as a relay permits in a path by default.
pub(crate) const MOST_RELAYS: usize = 8;
/// Exchanges on a control connection, and the most time that they may take.
const PROBES: u32 = 20;
const PROBE_TIME: Duration = Duration::from_secs(2);
/// Look-ups through a relay. The first one includes the relay's connection and log-in.
const LOOK_UPS: u32 = 4;
/// A shorter difference of two round-trip times cannot be measured.
const SHORTEST: Duration = Duration::from_micros(20);

/// The origin of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Basis {
    PastTransfer,
    Model,
    Unknown,
    Unusable,
}

impl Basis {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::PastTransfer => "past transfer",
            Self::Model => "model",
            Self::Unknown => "unknown",
            Self::Unusable => "cannot be used",
        }
    }
}

/// A hop from one node to another, and what is known about it.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) basis: Basis,
    /// `None`: the hop cannot be used.
    pub(crate) estimate: Option<Estimate>,
    pub(crate) rtt: Option<Duration>,
    /// Packets of the probe, if there was one.
    pub(crate) loss: Option<Loss>,
    /// Why the hop is unknown or cannot be used.
    pub(crate) note: Option<String>,
}

/// An answer about a hop.
#[derive(Clone)]
enum Answer {
    Works(Duration, Option<Loss>),
    Fails(String),
    Unknown(String),
}

/// The source, the relays, and the destination; `None` is this host.
struct Survey<'e> {
    client: &'e Client,
    sessions: Sessions<'e>,
    nodes: Vec<Option<Url>>,
    /// The probe of each node, or why it cannot be reached from this host.
    probes: HashMap<usize, Result<PathProbe, String>>,
}

impl<'e> Survey<'e> {
    fn new(client: &'e Client, nodes: Vec<Option<Url>>) -> Self {
        Self { client, sessions: Sessions::new(client), nodes, probes: HashMap::new() }
    }

    /// Learns about all hops. Stops early if the command is interrupted.
    fn run(mut self) -> Vec<Hop> {
        let last = self.nodes.len() - 1;
        let mut hops = Vec::new();
        for from in 0..last {
            for to in 1..=last {
                if from != to && !self.client.cancel.is_cancelled() {
                    hops.push(self.hop(from, to));
                }
            }
        }
        self.sessions.quit();
        hops
    }

    fn hop(&mut self, from: usize, to: usize) -> Hop {
        let options = &self.client.options;
        let past = estimate_by_past_transfer(self.nodes[from].as_ref(), self.nodes[to].as_ref(), options);
        let hop = |basis, estimate| Hop { from, to, basis, estimate, rtt: None, loss: None, note: None };
        match self.ask(from, to) {
            Answer::Works(rtt, loss) => {
                let (basis, estimate) = match past {
                    Some(past) => (Basis::PastTransfer, past),
                    None => (Basis::Model, estimate_by_model(rtt, loss.unwrap_or_default(), options)),
                };
                Hop { rtt: Some(rtt), loss, ..hop(basis, Some(estimate)) }
            }
            Answer::Fails(why) => Hop { note: Some(why), ..hop(Basis::Unusable, None) },
            Answer::Unknown(why) => match past {
                Some(past) => hop(Basis::PastTransfer, Some(past)),
                None => Hop { note: Some(why), ..hop(Basis::Unknown, Some(Estimate::UNKNOWN)) },
            },
        }
    }

    fn ask(&mut self, from: usize, to: usize) -> Answer {
        let last = self.nodes.len() - 1;
        match (&self.nodes[from], &self.nodes[to]) {
            (None, _) => self.probe_answer(to),
            (_, None) => self.probe_answer(from),
            _ if (from, to) == (0, last) => {
                Answer::Unknown("no relay is at either end to be asked".to_owned())
            }
            // The relay that is nearer to this host makes the connection.
            _ if self.nodes[last].is_none() || from == 0 => self.ask_relay(to, from),
            _ if self.nodes[0].is_none() || to == last => self.ask_relay(from, to),
            // Either may make it.
            _ => match self.ask_relay(from, to) {
                works @ Answer::Works(..) => works,
                _ => match self.ask_relay(to, from) {
                    Answer::Fails(why) => Answer::Unknown(why),
                    answer => answer,
                },
            },
        }
    }

    fn probe_answer(&mut self, node: usize) -> Answer {
        match self.probe(node) {
            Ok(probe) => Answer::Works(probe.rtt, Some(Loss { sent: probe.probes, lost: probe.lost })),
            Err(why) => Answer::Fails(why),
        }
    }

    /// Probes a node once. A node that cannot be reached is not tried again.
    fn probe(&mut self, node: usize) -> Result<PathProbe, String> {
        if let Some(known) = self.probes.get(&node) {
            return known.clone();
        }
        let Some(url) = self.nodes[node].clone() else { return Err("this host needs no probe".to_owned()) };
        let probed = self.sessions.with(&url, |remote, _| remote.probe_path(PROBES, PROBE_TIME));
        let probe = match probed {
            Ok(Some(probe)) => Ok(probe),
            Ok(None) => Err("the kernel tells nothing about the control connection".to_owned()),
            Err(error) => Err(text(error)),
        };
        self.probes.insert(node, probe.clone());
        probe
    }

    /// Has a relay look at the root of another server, and takes the time.
    fn ask_relay(&mut self, relay: usize, far: usize) -> Answer {
        let probe = match self.probe(relay) {
            Ok(probe) => probe,
            Err(why) => return Answer::Unknown(format!("the relay cannot be asked: {why}")),
        };
        let (Some(at), Some(place)) = (self.nodes[relay].clone(), self.nodes[far].clone()) else {
            return Answer::Unknown("this host is no relay".to_owned());
        };
        let place = match behind([&at].into_iter(), place.with_path(b"/")) {
            Ok((place, _)) => place,
            Err(error) => return Answer::Fails(crate::message(&error)),
        };
        match self.sessions.with(&place, shortest_look_up) {
            Ok(both) => Answer::Works(both.saturating_sub(probe.rtt).max(SHORTEST), None),
            Err(error) if error.kind() == ErrorKind::Refused => Answer::Fails(text(error)),
            Err(error) => Answer::Unknown(text(error)),
        }
    }
}

/// The shortest time of several look-ups of a path.
fn shortest_look_up(remote: &mut Remote, path: &[u8]) -> Result<Duration, Error> {
    remote.stat(path)?;
    let mut shortest = Duration::MAX;
    for _ in 1..LOOK_UPS {
        let began = Instant::now();
        remote.stat(path)?;
        shortest = shortest.min(began.elapsed());
    }
    Ok(shortest)
}

fn text(error: Error) -> String {
    crate::message(&error.into())
}

/// The log-ins with which each node reaches each other one.
fn log_ins(nodes: &[Option<Url>]) -> Vec<RelayedLogin> {
    let servers = || nodes.iter().flatten();
    let of = |at: &Url| ServerAddress::of(at);
    let behind = |relay: &Url| {
        let relay = of(relay);
        servers()
            .filter(|server| of(server) != relay)
            .map(|server| RelayedLogin { relay: relay.clone(), server: server.with_path(b"/") })
            .collect::<Vec<_>>()
    };
    servers().flat_map(behind).collect()
}

/// The paths between two places, and the one to use.
pub(crate) struct Routes {
    /// Of the source, the relays, and the destination.
    pub(crate) names: Vec<String>,
    pub(crate) hops: Vec<Hop>,
    /// `None`: no path can be used.
    pub(crate) choice: Option<Choice>,
    /// `None` is this host.
    pub(crate) nodes: Vec<Option<Url>>,
}

impl Routes {
    /// Learns about all hops between these nodes and chooses a path from the first to the last.
    /// Stops early if the command is interrupted.
    pub(crate) fn learn(client: &Client, nodes: Vec<Option<Url>>) -> Self {
        let names: Vec<String> = nodes.iter().map(name).collect();
        let client = client.with_hops(log_ins(&nodes));
        let hops = Survey::new(&client, nodes.clone()).run();
        let mut routes = Self { names, hops, choice: None, nodes };
        routes.choice = routes.graph().choose(&[0, routes.nodes.len() - 1], MOST_RELAYS);
        routes
    }

    /// The hops that can be used, as a graph.
    pub(crate) fn graph(&self) -> Graph {
        let mut graph = Graph::new(self.nodes.len());
        for hop in &self.hops {
            if let Some(estimate) = hop.estimate {
                graph.set(hop.from, hop.to, estimate);
            }
        }
        graph
    }

    /// The relays of the chosen path, in the order in which data passes them.
    pub(crate) fn relays(&self) -> Vec<Url> {
        let nodes = self.choice.as_ref().map(|choice| choice.route.nodes.as_slice()).unwrap_or_default();
        let between = nodes.get(1..nodes.len().saturating_sub(1)).unwrap_or_default();
        between.iter().filter_map(|node| self.nodes[*node].clone()).collect()
    }

    /// The names of the nodes of the chosen path.
    pub(crate) fn path(&self) -> Vec<String> {
        let nodes = self.choice.as_ref().map(|choice| choice.route.nodes.as_slice()).unwrap_or_default();
        nodes.iter().map(|node| self.names[*node].clone()).collect()
    }

    /// The likely rate of the chosen path in bytes per second, if known.
    pub(crate) fn rate(&self) -> Option<f64> {
        let estimate = self.choice.as_ref()?.route.estimate;
        estimate.is_known().then(|| estimate.likely())
    }

    pub(crate) fn reason(&self) -> String {
        reason(self.choice.as_ref(), &self.names)
    }
}

/// The name of a node in texts and JSON: its URL without a path, a user and a password.
pub(crate) fn name(node: &Option<Url>) -> String {
    let Some(url) = node else { return "here".to_owned() };
    let url = Url { user: None, password: None, ..url.with_path(b"/") };
    url.to_string().trim_end_matches('/').to_owned()
}

pub(crate) fn likely(estimate: Estimate) -> String {
    match estimate.is_known() {
        true => units::link_rate(estimate.likely()),
        false => "an unknown rate".to_owned(),
    }
}

pub(crate) fn path_text(nodes: &[usize], names: &[String]) -> String {
    nodes.iter().map(|node| names[*node].as_str()).collect::<Vec<_>>().join(" > ")
}

fn reason(choice: Option<&Choice>, names: &[String]) -> String {
    let Some(choice) = choice else { return "no path can be used".to_owned() };
    let narrowest = |route: &ropewalk_tuning::route::Route| {
        let (from, to) = route.narrowest;
        format!("its narrowest hop, {} > {}, has {}", names[from], names[to], likely(route.estimate))
    };
    let other = choice.other.as_ref();
    let other = other.map(|route| format!("of {} {}", path_text(&route.nodes, names), narrowest(route)));
    let other = other.unwrap_or_default();
    let chosen = narrowest(&choice.route);
    match choice.reason {
        Reason::Widest => format!("no path through relays is wider: {chosen}"),
        Reason::NotClearlyWider => {
            format!("no other path is clearly wider: {chosen}; {other}, which is within the uncertainty")
        }
        Reason::NotComparable => format!(
            "the rate of the direct path is unknown, and relays are taken only for a known gain; {other}"
        ),
        Reason::ClearlyWider => format!("it is clearly wider than the direct path: {chosen}; {other}"),
        Reason::OnlyUsable => format!("the direct path cannot be used: {chosen}"),
    }
}
