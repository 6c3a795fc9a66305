//! Determines the part of a run that took the most time.

use std::time::Duration;

use ropewalk_engine::Stage;

use crate::SlowestPart;

pub(crate) const STAGES: [Stage; 5] =
    [Stage::Source, Stage::Network, Stage::Destination, Stage::Checksum, Stage::Encryption];

/// The stages including the servers' storage times. While a server's stream waits for its disk,
/// ours waits for the network, so this time is subtracted from the network's.
pub(crate) fn with_servers(stages: [Duration; 5], read: Duration, write: Duration) -> [Duration; 5] {
    let [source, network, destination, checksum, encryption] = stages;
    let read = read.min(network);
    let write = write.min(network - read);
    [source + read, network - read - write, destination + write, checksum, encryption]
}

/// Determines the slowest part. `held`: time for which streams waited for the limit on the rate;
/// `streams`: lifetime of all streams, summed. The CPUs come first: when they are busy, each other
/// stage appears slow too.
pub(crate) fn slowest(
    stages: [Duration; 5],
    (held, streams): (Duration, Duration),
    reply_wait: Duration,
    workers: Duration,
    cpu: Duration,
    wall: Duration,
) -> SlowestPart {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let busy = cpu.as_secs_f64() / (wall.as_secs_f64() * cpus).max(1e-9);
    if busy > 0.85 {
        return SlowestPart::Cpu { share: busy.min(1.0) };
    }
    let waiting = reply_wait.as_secs_f64() / workers.as_secs_f64().max(1e-9);
    if waiting > 0.5 {
        return SlowestPart::RoundTrips { share: waiting.min(1.0) };
    }
    let held = held.as_secs_f64();
    let known: f64 = held + stages.iter().map(Duration::as_secs_f64).sum::<f64>();
    // Other threads may work longer than the streams exist.
    let total = known.max(streams.as_secs_f64());
    if known <= 0.0 {
        return SlowestPart::Unknown;
    }
    let shares = stages.map(|stage| stage.as_secs_f64() / total);
    let (at, &share) = shares.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap_or((1, &0.0));
    if held / total > share {
        return SlowestPart::Bandwidth { share: held / total };
    }
    match STAGES[at] {
        Stage::Source => SlowestPart::SourceRead { share },
        Stage::Network => SlowestPart::Network { share },
        Stage::Destination => SlowestPart::DestinationWrite { share },
        Stage::Checksum => SlowestPart::Checksum { share },
        Stage::Encryption => SlowestPart::Encryption { share },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn names_the_slowest_part() {
        let none = Duration::ZERO;
        let slowest = |stages, replies, workers, cpu, wall| {
            super::slowest(stages, (none, none), replies, workers, cpu, wall)
        };
        let part = slowest([none, S, S * 8, S, none], none, S * 10, none, S * 10);
        assert!(matches!(part, SlowestPart::DestinationWrite { share } if share == 0.8));
        assert!(matches!(slowest([none; 5], S * 9, S * 10, none, S * 10), SlowestPart::RoundTrips { .. }));
        assert!(matches!(slowest([S; 5], none, S, S * 10_000, S * 10), SlowestPart::Cpu { .. }));
        assert!(matches!(slowest([none; 5], none, none, none, S), SlowestPart::Unknown));
    }

    #[test]
    fn time_of_servers_storage_is_taken_from_the_network() {
        let none = Duration::ZERO;
        let stages = [S, S * 10, S * 2, none, S];
        assert_eq!(with_servers(stages, S * 6, S * 3), [S * 7, S, S * 5, none, S]);
        assert_eq!(with_servers(stages, S * 8, S * 9), [S * 9, none, S * 4, none, S]);
    }

    #[test]
    fn a_limit_that_held_streams_longest_is_the_slowest_part() {
        let none = Duration::ZERO;
        let of = |held| slowest([none, S * 3, S, none, none], (held, none), none, S * 10, none, S * 10);
        assert!(matches!(of(S * 6), SlowestPart::Bandwidth { share } if share == 0.6));
        assert!(matches!(of(S), SlowestPart::Network { share } if share == 0.6));
        // Relative to the lifetime of all streams, including time of unknown use.
        let part = slowest([none, S * 3, S, none, none], (none, S * 10), none, S * 10, none, S * 10);
        assert!(matches!(part, SlowestPart::Network { share } if share == 0.3));
    }
}
