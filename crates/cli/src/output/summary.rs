//! The summary of a copy.

use ropewalk_client::{SlowestPart, StackReason, Summary, TunedPath};

use crate::units;

/// `again`: repeats the failures, which were reported among other messages.
pub(crate) fn lines(summary: &Summary, dry_run: bool, again: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if dry_run {
        lines.push("Dry run: nothing was changed.".into());
        return lines;
    }
    let seconds = summary.seconds;
    // Nothing was copied; the failures are already reported.
    let nothing = summary.files_failed > 0 && summary.files_done == 0 && summary.bytes == 0;
    let rate = if seconds > 0.0 { summary.bytes as f64 / seconds } else { 0.0 };
    let mut first = format!(
        "{}, {} in {}",
        units::count(summary.files_done, "file"),
        units::size(summary.bytes),
        units::time(seconds)
    );
    if summary.bytes > 0 {
        first += &format!(": {} ({})", units::rate(rate), units::link_rate(rate));
    }
    if summary.files_done > 1 && seconds > 0.0 {
        first += &format!(", {:.1} files/s", summary.files_done as f64 / seconds);
    }
    if summary.streams > 0 {
        first += &format!(", {}", units::count(summary.streams.into(), "stream"));
    }
    if summary.files_in_flight > 1 {
        first += &format!(", {} files at a time", summary.files_in_flight);
    }
    if !nothing {
        lines.push(first);
    }

    let mut also = Vec::new();
    let mut note = |number: u64, text: String| {
        if number > 0 {
            also.push(text);
        }
    };
    note(summary.files_skipped, format!("{} skipped", units::count(summary.files_skipped, "file")));
    note(
        summary.bytes_resumed,
        format!("{} were present from an earlier run", units::size(summary.bytes_resumed)),
    );
    note(summary.removed, format!("{} removed", summary.removed));
    note(summary.retries, format!("{} retried", summary.retries));
    if !also.is_empty() {
        lines.push(also.join(", "));
    }

    let whole = summary.bytes_done;
    if whole > 0 {
        lines.push(match summary.bytes_verified {
            0 => "No checksums were compared at both ends".into(),
            verified if verified >= whole => "Checksums of all bytes agree at both ends".into(),
            verified => {
                format!("Checksums of {} of {} agree at both ends", units::size(verified), units::size(whole))
            }
        });
    }
    if summary.bytes > 0
        && let Some(part) = slowest(&summary.slowest)
    {
        lines.push(format!("Slowest part: {part}"));
    }
    lines.extend(stacks(summary));
    for tuned in &summary.tuned {
        let of = if summary.tuned.len() > 1 {
            format!(" of {}", super::harmless(&tuned.path))
        } else {
            String::new()
        };
        lines.push(format!("Tuned{of}: {}", streams(tuned)));
        if let Some(why) = tuned.buffers.as_ref().filter(|_| tuned.buffers_matter) {
            lines.push(format!("Socket buffers{of}: {why}"));
        }
    }
    if summary.interrupted {
        let left = units::count(summary.files_failed, "file");
        lines.push(match summary.unrecorded {
            0 => format!("Interrupted with {left} to do; rerun the same command to resume"),
            again => format!(
                "Interrupted with {left} to do; rerun the same command with --sync to resume \
                 (without it, {} are sent again)",
                units::count(again, "finished file")
            ),
        });
    } else if summary.files_failed > 0 {
        lines.push(format!("{} failed", units::count(summary.files_failed, "file")));
        // A single failure stands directly above.
        let alone = summary.files_failed == 1 && summary.files_done == 0;
        for failure in summary.failures.iter().filter(|_| again && !alone) {
            let name = if failure.source.is_empty() { &failure.destination } else { &failure.source };
            lines.push(format!("  {}", super::about(name, &failure.error)));
        }
        let more = summary.files_failed.saturating_sub(summary.failures.len() as u64);
        if again && more > 0 {
            lines.push(format!("  and {more} more"));
        }
    }
    lines
}

/// The stacks of data connections, if any was chosen.
fn stacks(summary: &Summary) -> Option<String> {
    let stacks = &summary.stacks;
    let first = stacks.first().filter(|_| stacks.iter().any(|used| used.reason != StackReason::Default))?;
    if stacks.iter().all(|used| used.stack == first.stack) {
        return Some(format!("Data connections: {}", first.stack));
    }
    let each = stacks.iter().map(|used| format!("{} with {}", used.stack, super::harmless(&used.peer)));
    Some(format!("Data connections: {}", each.collect::<Vec<_>>().join(", ")))
}

/// The numbers of streams that moved the data. A run ends with few streams, and the last decision
/// may have come too late to matter.
fn streams(tuned: &TunedPath) -> String {
    let TunedPath { streams, usual, most, reason, .. } = tuned;
    let mut text = units::count((*usual).into(), "stream");
    if most > usual {
        text += &format!(" for most of the data, {most} at the most");
    }
    if streams != usual {
        text += &format!("; the last decision was {streams}");
    }
    if let Some(stack) = &tuned.stack {
        text += &format!("; {stack}");
    }
    format!("{text}; {reason}")
}

fn slowest(part: &SlowestPart) -> Option<String> {
    let (what, share) = match part {
        SlowestPart::SourceRead { share } => ("reading at the source", share),
        SlowestPart::Network { share } => ("the network", share),
        SlowestPart::DestinationWrite { share } => ("writing at the destination", share),
        SlowestPart::Checksum { share } => ("checksums", share),
        SlowestPart::Encryption { share } => ("encryption", share),
        SlowestPart::Bandwidth { share } => ("the limit that --bandwidth sets", share),
        SlowestPart::Cpu { share } => {
            return Some(format!("the processors of this machine, busy {:.0} % of the time", share * 100.0));
        }
        SlowestPart::RoundTrips { share } => {
            let share = share * 100.0;
            return Some(format!("waiting for replies of the server, {share:.0} % of the sessions' time"));
        }
        SlowestPart::NotVisible => {
            return Some("not visible from here, since the data went from one server to the other".into());
        }
        SlowestPart::Unknown => return None,
    };
    Some(format!("{what}, {:.0} % of the streams' time", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        Summary {
            files_done: 2,
            files_skipped: 0,
            files_failed: 0,
            interrupted: false,
            unrecorded: 0,
            directories: 1,
            removed: 0,
            bytes: 1 << 30,
            bytes_resumed: 0,
            seconds: 2.0,
            bytes_done: 1 << 30,
            bytes_verified: 1 << 30,
            streams: 4,
            files_in_flight: 2,
            retries: 0,
            tuned: vec![],
            stacks: vec![],
            cpu_seconds: 1.0,
            slowest: SlowestPart::DestinationWrite { share: 0.62 },
            stages: ropewalk_client::StageTimes::default(),
            failures: vec![],
            failed_for: None,
        }
    }

    #[test]
    fn stacks_are_shown_if_one_was_chosen() {
        let used = |peer: &str, stack: &str, reason| ropewalk_client::UsedStack {
            one_port: None,
            peer: peer.into(),
            stack: stack.into(),
            reason,
        };
        let shown = |stacks| super::stacks(&Summary { stacks, ..summary() });
        assert_eq!(shown(vec![used("a", "tcp", StackReason::Default)]), None);
        let both = vec![used("a", "quic", StackReason::Chosen), used("b", "quic", StackReason::Chosen)];
        assert_eq!(shown(both).as_deref(), Some("Data connections: quic"));
        let one = vec![used("a", "tcp", StackReason::Default), used("b", "quic", StackReason::ChosenForEnd)];
        assert_eq!(shown(one).as_deref(), Some("Data connections: tcp with a, quic with b"));
    }

    #[test]
    fn summary_shows_the_streams_that_moved_the_data() {
        let tuned = |streams, usual, most, reason: &str| {
            let path = TunedPath {
                path: "here -> h".into(),
                streams,
                usual,
                most,
                bits_per_second: 1e9,
                decisions: 3,
                reason: reason.into(),
                buffers: None,
                stack: None,
                buffers_matter: false,
            };
            lines(&Summary { tuned: vec![path], ..summary() }, false, false).pop()
        };
        let line = |text: &str| Some(format!("Tuned: {text}"));
        assert_eq!(tuned(8, 8, 8, "nothing better is known"), line("8 streams; nothing better is known"));
        assert_eq!(
            tuned(69, 64, 69, "at the most allowed, 69"),
            line(
                "64 streams for most of the data, 69 at the most; the last decision was 69; at the most allowed, 69"
            )
        );
        assert_eq!(
            tuned(24, 24, 69, "fewer streams are as good"),
            line("24 streams for most of the data, 69 at the most; fewer streams are as good")
        );
        assert_eq!(
            tuned(3, 1, 1, "more streams still pay"),
            line("1 stream; the last decision was 3; more streams still pay")
        );
    }

    #[test]
    fn summary_shows_waiting_as_share_of_session_time() {
        let summary = Summary { slowest: SlowestPart::RoundTrips { share: 0.8 }, ..summary() };
        let last = lines(&summary, false, false).pop();
        assert_eq!(
            last.as_deref(),
            Some("Slowest part: waiting for replies of the server, 80 % of the sessions' time")
        );
    }

    #[test]
    fn summary_of_a_successful_copy() {
        assert_eq!(
            lines(&summary(), false, false),
            [
                "2 files, 1.00 GiB in 2.00 s: 512 MiB/s (4.29 Gbit/s), 1.0 files/s, 4 streams, 2 files at a time",
                "Checksums of all bytes agree at both ends",
                "Slowest part: writing at the destination, 62 % of the streams' time",
            ]
        );
    }

    #[test]
    fn summary_counts_retransmitted_bytes_once() {
        let summary = Summary { bytes: (1 << 30) + 5, retries: 1, ..summary() };
        assert_eq!(lines(&summary, false, false)[2], "Checksums of all bytes agree at both ends");
        let summary = Summary { bytes_verified: 1 << 29, ..summary };
        assert_eq!(lines(&summary, false, false)[2], "Checksums of 512 MiB of 1.00 GiB agree at both ends");
    }

    #[test]
    fn summary_of_a_failed_copy_has_no_rates() {
        let summary = Summary { files_failed: 1, files_done: 0, bytes: 0, bytes_done: 0, ..summary() };
        assert_eq!(lines(&summary, false, false), ["1 file failed"]);
        let summary = Summary { interrupted: true, ..summary };
        let line = "Interrupted with 1 file to do; rerun the same command to resume";
        assert_eq!(lines(&summary, false, false), [line]);
        let summary = Summary { unrecorded: 2, ..summary };
        let line = "Interrupted with 1 file to do; rerun the same command with --sync to resume (without it, 2 finished files \
                    are sent again)";
        assert_eq!(lines(&summary, false, false), [line]);
    }

    #[test]
    fn summary_repeats_failures() {
        let summary = Summary {
            files_failed: 12,
            files_skipped: 1,
            bytes_verified: 0,
            slowest: SlowestPart::Unknown,
            ..summary()
        };
        let lines = lines(&summary, false, false);
        assert_eq!(lines[1], "1 file skipped");
        assert_eq!(lines[2], "No checksums were compared at both ends");
        assert_eq!(lines[3..], ["12 files failed"]);
    }
}
