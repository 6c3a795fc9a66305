//! Sections for every reader: the headline, the main figures, the causes, the baselines.

use super::markup::{Cell, Markup, number, table, text};
use super::{gallery, tone};
use crate::profile::{Baselines, Outcome, Profile, WorkloadKind};
use crate::report::charts::Figure;
use crate::report::clean::plain;
use crate::report::summary::{Summary, receives, role};
use crate::report::words;
use crate::report::{kinds, say};

pub(super) fn head(out: &mut Markup, profile: &Profile, summary: &Summary) {
    let (class, word) = tone(summary.tone);
    out.raw("<p><span").attribute("class", &format!("tone {class}")).raw(">").text(word).raw("</span></p>");
    out.element("h1", &summary.headline);
    if let Some(failure) = &summary.failure {
        out.element("p", words::failure_meaning(failure.kind));
        out.raw("<p><strong>What to do:</strong> ").prose(&failure.advice).raw(".</p>");
    } else if let Some(cause) = summary.causes.first().filter(|_| summary.doubts.is_empty()) {
        out.element("p", words::meaning(cause.kind, receives(cause, &summary.evidence)));
        out.raw("<p><strong>What to do:</strong> ").prose(&cause.advice).raw(".</p>");
    }
    out.raw("<p class=\"faint\">")
        .text(&summary.what)
        .raw("<br>")
        .text(&say::moment(profile.started))
        .raw("</p>");
    out.raw("<dl class=\"tiles\">");
    let evidence = &summary.evidence;
    let peak = evidence.peak.map(|peak| format!("at most {}", say::rate(peak))).unwrap_or_default();
    let failed = evidence.failed.as_ref();
    let during = failed.map(|_| format!("for the {} in which data moved", say::time(evidence.seconds)));
    tile(out, "Rate", &say::rate(evidence.rate), &during.unwrap_or(peak));
    let files = say::things(profile.workload.files, "file");
    let workload = &profile.workload;
    let planned = workload.planned.filter(|&planned| failed.is_some() && planned > workload.bytes);
    let planned = planned.map(|planned| format!("of {}, ", say::size(planned as f64))).unwrap_or_default();
    let small = format!("{planned}{files} in {}", say::time(workload.seconds));
    tile(out, "Amount", &say::size(evidence.bytes), &small);
    let flight = if workload.files_in_flight > 1 {
        format!("each of {} files", workload.files_in_flight)
    } else {
        String::new()
    };
    tile(out, "Streams", &workload.streams.to_string(), &flight);
    if let Some(rtt) = evidence.rtt {
        let during =
            evidence.path.as_ref().map(|path| format!("{} during the transfer", say::time(path.rtt)));
        tile(out, "Round trip", &say::time(rtt), &during.unwrap_or_default());
    }
    if let Some(loss) = evidence.path.as_ref().and_then(|path| path.loss) {
        tile(out, "Sent again", &say::percent(loss), "of all segments");
    }
    if let Some(capacity) = evidence.capacity() {
        tile(
            out,
            "The path carries",
            &say::rate(capacity),
            &format!("{} of it used", say::percent(evidence.rate / capacity)),
        );
    }
    out.raw("</dl>");
    if let Outcome::Failed(_) = workload.outcome {
        out.element(
            "p class=\"note\"",
            "The transfer did not end well; what follows was measured until then, and causes are judged over the time in which data moved.",
        );
    }
}

fn tile(out: &mut Markup, name: &str, value: &str, small: &str) {
    out.raw("<div>").element("dt", name).raw("<dd>").text(value);
    if !small.is_empty() {
        out.element("small", small);
    }
    out.raw("</dd></div>");
}

pub(super) fn causes(out: &mut Markup, summary: &Summary) {
    if let Some(failure) = &summary.failure {
        out.raw("<h2 id=\"failure\">Why it failed</h2><ol class=\"causes\"><li><h3>");
        out.text(words::failure(failure.kind));
        if let Some(host) = &failure.host {
            out.raw(": <bdi>").text(host).raw("</bdi>");
        }
        out.raw("</h3><dl>").element("dt", "Seen").element("dd", &failure.evidence);
        out.element("dt", "To do").raw("<dd>").prose(&failure.advice).raw(".</dd></dl></li></ol>");
    }
    out.raw("<h2 id=\"causes\">Why it was not faster</h2>");
    if !summary.doubts.is_empty() {
        let rest = if summary.causes.is_empty() { "." } else { ". What there is:" };
        out.element("p class=\"note\"", &format!("{}{rest}", summary.doubts.join("; ")));
    }
    if summary.causes.is_empty() {
        out.element("p", "No sign of a bottleneck was found in what was measured. What was not measured stands at the end of this page.");
        return;
    }
    out.raw("<ol class=\"causes\">");
    for (place, cause) in summary.causes.iter().enumerate() {
        out.raw("<li>").raw("<h3>");
        out.text(&format!("{}. {}", place + 1, words::name(cause.kind)));
        if let Some(host) = &cause.host {
            out.raw(" on <bdi>").text(host).raw("</bdi>");
        }
        out.raw("</h3><dl><dt>How sure</dt><dd class=\"sure\">");
        out.bar(&[("c0", cause.confidence)]);
        out.text(&format!("{}, {:.2} of 1", words::sureness(cause.confidence), cause.confidence))
            .raw("</dd>");
        out.element("dt", "Seen").element("dd", &cause.evidence);
        out.element("dt", "To do").raw("<dd>").prose(&cause.advice).raw("</dd>");
        if place > 0 {
            out.element("dt", "Meaning")
                .element("dd", words::meaning(cause.kind, receives(cause, &summary.evidence)));
        }
        out.raw("</dl></li>");
    }
    out.raw("</ol>");
}

/// The rates of one processor of each end if known, otherwise those of the slower end.
fn processors(base: &Baselines) -> Vec<(String, Option<f64>, bool, bool)> {
    let both = |at: &str, checksum, encryption| {
        let name = |what: &str| format!("{what}, one processor{at}");
        [(name("checksum"), checksum, false, true), (name("encryption"), encryption, false, true)]
    };
    if base.processors.is_empty() {
        return both("", base.checksum, base.encryption).to_vec();
    }
    let ends = base.processors.iter().take(2);
    ends.flat_map(|end| {
        let at = format!(" of the {}", role(end.role));
        both(&at, Some(end.rates.checksum), Some(end.rates.encryption))
    })
    .collect()
}

fn lost(loss: f64, probes: Option<u32>) -> String {
    match probes {
        Some(probes) => format!("{} of {probes} probes", say::percent(loss)),
        None => say::percent(loss),
    }
}

/// Renders the baselines, and the share of each that the transfer reached.
pub(super) fn baselines(out: &mut Markup, profile: &Profile, summary: &Summary, sweep: Option<Figure>) {
    let base = &profile.baselines;
    let kind = profile.workload.kind;
    let reads = matches!(kind, WorkloadKind::DiskToDisk | WorkloadKind::DiskToMemory);
    let writes = matches!(kind, WorkloadKind::DiskToDisk | WorkloadKind::MemoryToDisk);
    let rows: Vec<Vec<Cell>> = [
        ("path, memory to memory", base.path, true, true),
        ("path, the other way", base.path_back, true, false),
        ("source disk, reading", base.source_disk, false, reads),
        ("destination disk, writing", base.destination_disk, false, writes),
    ]
    .into_iter()
    .map(|(name, rate, bits, compared)| (name.to_owned(), rate, bits, compared))
    .chain(processors(base))
    .filter_map(|(name, rate, bits, compared)| {
        let rate = rate?;
        let shown = if bits { say::rate(rate) } else { say::throughput(rate) };
        let share =
            if compared && rate > 0.0 { say::percent(summary.evidence.rate / rate) } else { "–".into() };
        Some(vec![text(name), number(shown), number(share)])
    })
    .collect();
    let idle: Vec<Vec<Cell>> = [
        ("round trip of the idle path", base.rtt.map(say::time)),
        ("loss on the idle path", base.loss.map(|loss| lost(loss, base.probes))),
        ("path measured by", Some(plain(&base.path_by, 100)).filter(|name| !name.is_empty())),
        (
            "segments sent again meanwhile",
            base.path_retransmitted.zip(base.path_streams).map(|(segments, streams)| match streams {
                1 => format!("{segments}, of one connection"),
                streams => format!("{segments}, of {streams} connections"),
            }),
        ),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(vec![text(name), number(value?), number("")]))
    .collect();
    let kinds: Vec<Vec<Cell>> = base
        .kind_shares()
        .iter()
        .map(|share| {
            let [name, shares @ ..] = kinds::row(share);
            std::iter::once(text(name)).chain(shares.map(number)).collect()
        })
        .collect();
    if rows.is_empty() && idle.is_empty() && sweep.is_none() && kinds.is_empty() {
        return;
    }
    out.raw("<h2 id=\"baselines\">What the parts reach by themselves</h2>");
    if !rows.is_empty() || !idle.is_empty() {
        table(out, &["part", "alone", "this transfer had"], rows.into_iter().chain(idle).collect());
    }
    if !kinds.is_empty() {
        let heads = ["kind of transfer", "rate", "of memory to memory", "of its slowest part alone"];
        table(out, &heads, kinds);
    }
    let Some(sweep) = sweep else { return };
    gallery(out, &[sweep]);
    let points = base.streams.iter().take(100).map(|point| {
        let gain = point.bytes_per_second / 1e6 / (point.kernel_load * 100.0);
        vec![
            number(point.streams.to_string()),
            number(say::rate(point.bytes_per_second)),
            number(if point.error > 0.0 { format!("± {}", say::rate(point.error)) } else { String::new() }),
            number(say::percent(point.kernel_load)),
            number(if gain.is_finite() { format!("{gain:.2}") } else { "–".into() }),
        ]
    });
    table(
        out,
        &["streams", "rate", "error", "kernel load", "MB/s for each % of kernel load"],
        points.collect(),
    );
}
