//! Learns about the hops between two places and relays, without moving data.
//!
//! A hop of this host is probed on its control connection. A hop between a relay and another
//! server is asked for at the relay: it looks up a directory of that server, which takes the round
//! trip of both hops. A relay that refuses cannot be used for that hop. All else is unknown, unless
//! a past transfer over the hop is stored.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ropewalk_client::{Error, ErrorKind, PathProbe, Remote, estimate_by_model, estimate_by_past_transfer};
use ropewalk_protocol::url::Url;
use ropewalk_tuning::route::{Estimate, Graph, Loss};

use crate::client::{Client, Sessions};
use crate::via::behind;

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
pub(crate) struct Survey<'e> {
    client: &'e Client,
    sessions: Sessions<'e>,
    nodes: Vec<Option<Url>>,
    /// The probe of each node, or why it cannot be reached from this host.
    probes: HashMap<usize, Result<PathProbe, String>>,
}

impl<'e> Survey<'e> {
    pub(crate) fn new(client: &'e Client, nodes: Vec<Option<Url>>) -> Self {
        Self { client, sessions: Sessions::new(client), nodes, probes: HashMap::new() }
    }

    /// Learns about all hops. Stops early if the command is interrupted.
    pub(crate) fn run(mut self) -> Vec<Hop> {
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
            Ok(place) => place,
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

/// The hops that can be used, as a graph.
pub(crate) fn graph(nodes: usize, hops: &[Hop]) -> Graph {
    let mut graph = Graph::new(nodes);
    for hop in hops {
        if let Some(estimate) = hop.estimate {
            graph.set(hop.from, hop.to, estimate);
        }
    }
    graph
}
