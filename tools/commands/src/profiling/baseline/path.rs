//! The path: memory to memory in both directions, and its idle round trip.

use std::time::Duration;

use anyhow::bail;
use ropewalk_client::{Pair, PathProbe, Remote};
use ropewalk_profiler::baseline::iperf::{self, Test};
use ropewalk_profiler::profile::{Baselines, Role};

use super::elsewhere::Elsewhere;
use super::{Wanted, ours, told};
use crate::output::say;

/// Duration of iperf3 in each direction.
const TIME: Duration = Duration::from_secs(4);
/// Number of exchanges on the idle path, and their time limit.
const PROBES: u32 = 100;
const PROBING: Duration = Duration::from_secs(5);

pub(super) fn measure(wanted: &Wanted<'_>, found: &mut Baselines) {
    let ends = [wanted.elsewhere(Role::Source), wanted.elsewhere(Role::Destination)];
    // Measured while there is no other traffic.
    if let [Some(end), None] | [None, Some(end)] = &ends {
        if let Some(Some(probe)) = told("the idle path", probe(end)) {
            found.rtt = Some(probe.rtt.as_secs_f64());
            found.loss = Some((f64::from(probe.lost) / f64::from(probe.probes)).min(1.0));
            found.probes = Some(probe.probes);
        }
        if iperf_here() && !wanted.cancel.is_cancelled() {
            match by_iperf(wanted, end) {
                Ok(([there, back], streams)) => {
                    (found.path_streams, found.path_retransmitted) = (Some(streams), there.retransmitted);
                    (found.path, found.path_back) =
                        (Some(there.bytes_per_second), Some(back.bytes_per_second));
                    found.path_by = there.version;
                    return;
                }
                Err(_) if wanted.cancel.is_cancelled() => return,
                Err(error) => say(format_args!(
                    "ropewalk: baseline of the path is measured without iperf3: {}",
                    crate::message(&error)
                )),
            }
        }
    }
    if wanted.cancel.is_cancelled() {
        return;
    }
    if let Some(there) = told("the path", ours::measure(wanted, wanted.pair)) {
        found.path = Some(there.bytes_per_second);
        if let ropewalk_client::Auto::Set(streams) = wanted.options.tuning.streams {
            (found.path_streams, found.path_retransmitted) = (Some(streams.max(1)), there.retransmitted);
        }
    }
    if wanted.cancel.is_cancelled() {
        return;
    }
    let back = Pair {
        source: wanted.pair.destination.clone(),
        destination: wanted.pair.source.clone(),
        window: None,
    };
    found.path_back = told("the path back", ours::measure(wanted, &back)).map(|back| back.bytes_per_second);
    if found.path.is_some() || found.path_back.is_some() {
        found.path_by = "ropewalk".to_owned();
    }
}

fn probe(end: &Elsewhere<'_>) -> anyhow::Result<Option<PathProbe>> {
    Ok(Remote::connect(end.url, end.options)?.probe_path(PROBES, PROBING)?)
}

fn iperf_here() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join("iperf3").is_file())
}

/// Runs iperf3 in the direction of the transfer, and back. Returns the number of streams, too.
fn by_iperf(wanted: &Wanted<'_>, end: &Elsewhere<'_>) -> anyhow::Result<([Test; 2], u32)> {
    let streams = match wanted.options.tuning.streams {
        ropewalk_client::Auto::Set(streams) => streams.max(1),
        ropewalk_client::Auto::Auto => 1,
    };
    let comes = end.role == Role::Source;
    let unwanted = || wanted.cancel.is_cancelled();
    let server = end.iperf(None)?;
    let there = iperf::test((&end.url.host, server.port), comes, TIME, streams, &unwanted)?;
    if wanted.cancel.is_cancelled() {
        bail!("interrupted");
    }
    let server = end.iperf(Some(server))?;
    let back = iperf::test((&end.url.host, server.port), !comes, TIME, streams, &unwanted)?;
    Ok(([there, back], streams))
}
