//! `ropewalk model tuner`: a tuner at the other end of a pipe, for simulators.

use std::io::{self, BufRead, Write};

use clap::Args;
use ropewalk_tuning::tuner::{Chunk, Connections, Decision, Fairness, Kind, Options, Pressure, Progress};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{quantity, refused};
use crate::exit::Exit;

const PROTOCOL: &str = "\
A JSON object a line. It writes {\"streams\":N,\"bytes\":X} for the chunk to send. It reads \
{\"streams\":N,\"bytes\":X,\"seconds\":T} when that has ended, and answers with the next chunk; where they are known, also \
\"rtt_ms\", \"min_rtt_ms\", \"loss\" and \"window_bytes\", and \"disk\", \"cpu\", \"peer\" and \"peer_window\", the shares of time in which these \
were the limit. It reads {\"elapsed\":s,\"rate_bps\":r} while a chunk moves, r in bits a second, and answers {\"stop\":true} or \
{\"stop\":false}. What it cannot read it answers with {\"error\":...}, and goes on.";

#[derive(Debug, Args)]
#[command(after_help = PROTOCOL)]
pub(super) struct Tuner {
    /// fixed, apt, apt-golden, apt-long, climb, track or pilot
    #[arg(value_parser = kind)]
    name: Kind,
    /// Streams of the first chunk if no other information decides [default: 4, or the largest
    /// number]
    #[arg(long, value_name = "N")]
    first: Option<u32>,
    /// Largest number of streams
    #[arg(long, default_value_t = 128, value_name = "N")]
    most: u32,
    /// Intended duration of a chunk
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = seconds)]
    chunk: f64,
    /// Capacity of the path, as 100Mbit/s
    #[arg(long, value_name = "RATE", value_parser = quantity::bits_per_second)]
    capacity: Option<f64>,
    /// Round trip, as 80ms
    #[arg(long, value_name = "TIME", value_parser = quantity::milliseconds)]
    rtt: Option<f64>,
    /// Window of a stream, as 64KiB
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    window: Option<f64>,
    /// Size of a packet, headers included
    #[arg(long, default_value = "1500B", value_name = "SIZE", value_parser = quantity::bytes)]
    packet: f64,
    /// Connections stay open from chunk to chunk
    #[arg(long)]
    kept: bool,
    /// Yield to others
    #[arg(long, conflicts_with = "share")]
    polite: bool,
    /// Largest share of the path to take from other traffic: 0.95 or 95%
    #[arg(long, default_value = "95%", value_name = "SHARE", value_parser = share)]
    share: f64,
    /// Add a key with the reason of each decision
    #[arg(long)]
    explain: bool,
}

/// A fraction, or a percentage with `%` as in `cp`.
fn share(text: &str) -> Result<f64, String> {
    let share = match text.trim().strip_suffix('%') {
        Some(percent) => percent.trim_end().parse().map(|percent: f64| percent / 100.0),
        None => text.trim().parse(),
    };
    share.map_err(|_| "expected a share such as 0.95 or 95%".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    crate::units::parse_duration(text).map(|time| time.as_secs_f64())
}

fn kind(name: &str) -> Result<Kind, String> {
    Kind::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        format!("no such tuner: expected {}", names.join(", "))
    })
}

/// An input line. A missing value is unknown, and so is an optional value that is not a number.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    streams: Option<f64>,
    bytes: Option<f64>,
    seconds: Option<f64>,
    #[serde(deserialize_with = "number")]
    rtt_ms: Option<f64>,
    #[serde(deserialize_with = "number")]
    min_rtt_ms: Option<f64>,
    #[serde(deserialize_with = "number")]
    loss: Option<f64>,
    #[serde(deserialize_with = "number")]
    window_bytes: Option<f64>,
    #[serde(deserialize_with = "number")]
    disk: Option<f64>,
    #[serde(deserialize_with = "number")]
    cpu: Option<f64>,
    #[serde(deserialize_with = "number")]
    peer: Option<f64>,
    #[serde(deserialize_with = "number")]
    peer_window: Option<f64>,
    elapsed: Option<f64>,
    rate_bps: Option<f64>,
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    Value::deserialize(from).map(|value| value.as_f64())
}

impl Tuner {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let usual = Fairness::Share(Fairness::USUAL);
        if !matches!(self.name, Kind::Pilot) && (self.polite || Fairness::Share(self.share) != usual) {
            return Err(crate::exit::usage(format!(
                "--polite and --share: only pilot adapts to other traffic ({} was requested)",
                self.name.name()
            )));
        }
        let fairness = match self.polite {
            true => Fairness::Polite,
            false => Fairness::Share(self.share),
        };
        let options = Options {
            first_streams: self.first.unwrap_or(4.min(self.most)),
            max_streams: self.most,
            chunk_seconds: self.chunk,
            packet_bytes: self.packet,
            capacity: self.capacity.map(|bits| bits / 8.0),
            rtt: self.rtt.map(|ms| ms / 1e3),
            window: self.window,
            connections: if self.kept { Connections::Kept } else { Connections::Fresh },
            fairness,
            ..Options::default()
        };
        let mut tuner = self.name.build(&options).map_err(refused)?;
        self.say(&self.decision(&tuner.first()))?;
        let mut exit = Exit::Done;
        for line in io::stdin().lock().split(b'\n') {
            let line = line?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let answer = match read(&line) {
                Ok(Line { elapsed: Some(elapsed), rate_bps: Some(rate), .. }) => {
                    let reason = tuner.progress(&Progress { elapsed, rate: rate / 8.0 });
                    json!({ "stop": reason.is_some() })
                }
                Ok(line @ Line { streams: Some(_), bytes: Some(_), seconds: Some(_), .. }) => {
                    match chunk(&line) {
                        Ok(chunk) => self.decision(&tuner.chunk(&chunk)),
                        Err(error) => {
                            exit = Exit::Failed;
                            json!({ "error": error })
                        }
                    }
                }
                Ok(_) => {
                    exit = Exit::Failed;
                    json!({ "error": "expected streams, bytes and seconds, or elapsed and rate_bps" })
                }
                Err(error) => {
                    exit = Exit::Failed;
                    json!({ "error": error.to_string() })
                }
            };
            self.say(&answer)?;
        }
        Ok(exit)
    }

    fn decision(&self, decision: &Decision) -> Value {
        let mut value = json!({ "streams": decision.knobs.connections(), "bytes": decision.bytes });
        if self.explain {
            value["reason"] = decision.reason.to_string().into();
        }
        value
    }

    fn say(&self, value: &Value) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{value}")?;
        out.flush()
    }
}

/// Accepts objects only: an array would be read as the values in order.
fn read(line: &[u8]) -> serde_json::Result<Line> {
    let object: serde_json::Map<String, Value> = serde_json::from_slice(line)?;
    serde_json::from_value(object.into())
}

/// Casts saturate, and turn a value that is not a number into 0, which the tuner refuses. Zero
/// bytes mean a dead path.
fn chunk(line: &Line) -> Result<Chunk, String> {
    let bytes = line.bytes.unwrap_or(f64::NAN);
    if bytes < 0.0 {
        return Err(format!("bytes: {bytes:?}: expected no fewer than 0"));
    }
    let streams = line.streams.unwrap_or(0.0);
    if streams.fract() != 0.0 {
        return Err(format!("streams: {streams:?}: expected a whole number"));
    }
    let seconds = line.seconds.unwrap_or(f64::NAN);
    Ok(Chunk {
        rtt: line.rtt_ms.map(|ms| ms / 1e3),
        min_rtt: line.min_rtt_ms.map(|ms| ms / 1e3),
        loss: line.loss,
        window: line.window_bytes,
        pressure: Pressure {
            disk: line.disk,
            cpu: line.cpu,
            peer: line.peer,
            window: line.peer_window,
            limit: None,
        },
        ..Chunk::new(streams as u32, bytes.round() as u64, seconds)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_are_parsed_to_chunks() {
        let line = read(br#"{"streams":4,"bytes":1000000,"seconds":2.5,"rtt_ms":80,"loss":0.001}"#).unwrap();
        let chunk = chunk(&line).unwrap();
        assert_eq!((chunk.streams, chunk.bytes, chunk.seconds), (4, 1_000_000, 2.5));
        assert_eq!((chunk.rtt, chunk.min_rtt, chunk.loss), (Some(0.08), None, Some(0.001)));
        for bad in [&b"[4,1,1]"[..], b"{\"streams\":\"4\"}", b"\xff", b"{"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn negative_bytes_are_refused() {
        let told = |streams: &str, bytes: &str| {
            let line = format!(r#"{{"streams":{streams},"bytes":{bytes},"seconds":2}}"#);
            chunk(&read(line.as_bytes()).unwrap()).map(|chunk| chunk.bytes)
        };
        assert_eq!(told("4", "0"), Ok(0));
        assert!(told("4", "-0.4").is_err());
        assert_eq!(told("4", "-5").unwrap_err(), "bytes: -5.0: expected no fewer than 0");
        assert_eq!(told("4.5", "5").unwrap_err(), "streams: 4.5: expected a whole number");
    }

    #[test]
    fn invalid_optional_value_is_unknown() {
        let line =
            br#"{"streams":4,"bytes":1,"seconds":2.5,"rtt_ms":"x","min_rtt_ms":[],"loss":null,"disk":0.5}"#;
        let chunk = chunk(&read(line).unwrap()).unwrap();
        assert_eq!((chunk.streams, chunk.rtt, chunk.min_rtt, chunk.loss), (4, None, None, None));
        assert_eq!(chunk.pressure.disk, Some(0.5));
    }

    #[test]
    fn each_tuner_is_found_by_name() {
        for given in Kind::ALL {
            assert_eq!(kind(given.name()), Ok(given));
        }
        assert!(kind("best").is_err());
    }
}
