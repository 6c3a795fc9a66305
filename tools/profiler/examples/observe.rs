//! Observes this host's connections with a port for some seconds and prints what limits them. The
//! host is one or both ends of a transfer by any programs.
//!
//! Usage: `observe PORT SECONDS [source|destination|both [FILE]]`. The profile is written to FILE
//! (`ropewalk report FILE`).

use std::thread;
use std::time::Duration;

use ropewalk_profiler::collect::{Collection, Options, Sockets};
use ropewalk_profiler::profile::{ConnectionSample, Profile, Role, SCHEMA, Workload};
use ropewalk_profiler::verdict::{Evidence, Verdict};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(Ok(port)), Some(Ok(seconds))) =
        (arguments.next().map(|word| word.parse::<u16>()), arguments.next().map(|word| word.parse::<u64>()))
    else {
        eprintln!("usage: observe PORT SECONDS [source|destination|both [FILE]]");
        std::process::exit(2);
    };
    let role = match arguments.next().as_deref() {
        Some("source") => Role::Source,
        Some("destination") => Role::Destination,
        _ => Role::Both,
    };
    let sockets = Sockets { ports: vec![port], ..Sockets::default() };
    let collection = Collection::start(&Options { role, sockets, ..Options::default() });
    thread::sleep(Duration::from_secs(seconds));
    let host = collection.finish();
    let moved = |sample: &ConnectionSample| match role {
        Role::Source => sample.acknowledged.unwrap_or(0),
        _ => sample.received.unwrap_or(0),
    };
    let bytes = host.connections.iter().filter_map(|connection| {
        let (first, last) = (connection.samples.first()?, connection.samples.last()?);
        Some(moved(last).saturating_sub(moved(first)))
    });
    let bytes: u64 = bytes.sum();
    // A connection of this host with itself appears twice here, once for each end.
    let streams = host
        .connections
        .iter()
        .filter(|connection| connection.samples.last().is_some_and(|sample| moved(sample) > 1 << 20));
    let streams = streams.count().max(1) as u32;
    let profile = Profile {
        schema: SCHEMA,
        started: host.started,
        workload: Workload { bytes, seconds: seconds as f64, files: 1, streams, ..Workload::default() },
        hosts: vec![host],
        ..Profile::default()
    };
    if let Some(file) = arguments.next() {
        let written = serde_json::to_vec(&profile).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|bytes| std::fs::write(&file, bytes)) {
            eprintln!("{file}: {error}");
        }
    }
    for report in &profile.hosts[0].collectors {
        println!("{:?}: {:?} {}", report.name, report.state, report.detail);
    }
    println!("{:#?}", Evidence::of(&profile).path);
    for cause in Verdict::of(&profile).causes {
        println!(
            "{:.2} {:?} {:?}\n    {}\n    {}",
            cause.confidence, cause.kind, cause.host, cause.evidence, cause.advice
        );
    }
}
