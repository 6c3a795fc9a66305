//! Divides connections into the three settings: streams per file, concurrent files, pipeline depth.

use super::super::decision::Knobs;
use super::super::options::Options;
use super::super::sample::Work;

/// Minimum number of round-trip times for which a range of a file should keep its stream busy; with
/// less, most time is spent waiting.
const BUSY_ROUND_TRIPS: f64 = 10.0;
/// Between two files a control connection is idle for about a round-trip time plus this time in
/// seconds, to open and close the files.
const BETWEEN_FILES: f64 = 0.005;

/// Divides `connections` for the remaining work, at `rate` bytes per second and a round-trip time
/// of `rtt` seconds.
pub(super) fn plan(connections: u32, work: Option<Work>, rate: f64, rtt: f64, options: &Options) -> Knobs {
    let Some(work) = work.filter(|work| work.files > 1 && work.bytes > 0) else {
        return Knobs::streams(connections);
    };
    let size = work.bytes as f64 / work.files as f64;
    let at_once = u32::try_from(work.files).unwrap_or(u32::MAX).min(options.max_files);
    // Bytes that a stream carries per round-trip time.
    let window = (rate * rtt / f64::from(connections)).max(options.packet_bytes);
    let parts = (size / (BUSY_ROUND_TRIPS * window)).clamp(1.0, f64::from(connections)) as u32;
    // Use enough files that other files fill the gaps between them, even if a file has many ranges.
    let gaps = (1.0 + (rtt + BETWEEN_FILES) * rate / size).min(f64::from(at_once)).ceil() as u32;
    let files = connections.div_ceil(parts).max(gaps.min(connections)).clamp(1, at_once.max(1));
    let streams = (connections / files).max(1);
    // The pipeline covers the round-trip time in which the server would wait for the next command.
    let per_second = rate / (size * f64::from(files));
    let ahead = (1.0 + 1.5 * rtt * per_second).ceil().min(f64::from(options.max_pipeline)) as u32;
    let left = u32::try_from(work.files / u64::from(files)).unwrap_or(u32::MAX);
    Knobs { streams, files, pipeline: ahead.min(left).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = 1.25e8;
    const RTT: f64 = 0.05;

    fn knobs(connections: u32, files: u64, size: u64) -> Knobs {
        plan(connections, Some(Work { files, bytes: files * size }), RATE, RTT, &Options::default())
    }

    #[test]
    fn plan_one_large_file_uses_all_streams() {
        assert_eq!(knobs(16, 1, 1 << 40), Knobs { streams: 16, files: 1, pipeline: 1 });
        assert_eq!(plan(16, None, RATE, RTT, &Options::default()), Knobs::streams(16));
    }

    #[test]
    fn plan_many_large_files_divides_streams() {
        let knobs = knobs(16, 100, 10 << 30);
        assert_eq!((knobs.streams, knobs.files), (8, 2));
        assert!(knobs.pipeline <= 2);
    }

    #[test]
    fn plan_small_files_uses_concurrency_and_pipeline() {
        let knobs = knobs(16, 100_000, 64 << 10);
        assert_eq!((knobs.streams, knobs.files), (1, 16));
        // 120 files per second on each connection: nine in one and a half round-trip times.
        assert_eq!(knobs.pipeline, 10);
    }

    #[test]
    fn plan_last_files_uses_no_more_than_left() {
        assert_eq!(knobs(16, 2, 64 << 10).files, 2);
        assert_eq!(knobs(1, 100_000, 1).files, 1);
    }

    #[test]
    fn plan_any_numbers_stays_within_bounds() {
        let options = Options::default();
        for rate in [0.0, 1.0, 1e13, f64::MAX, f64::NAN] {
            for work in [Work { files: 2, bytes: 1 }, Work { files: u64::MAX, bytes: u64::MAX }] {
                let knobs = plan(128, Some(work), rate, RTT, &options);
                assert!(knobs.connections() <= 128 && knobs.connections() >= 1, "{knobs:?}");
                assert!(knobs.pipeline >= 1 && knobs.pipeline <= options.max_pipeline);
            }
        }
    }
}
