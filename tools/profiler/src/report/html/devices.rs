//! Tables of one machine: processors, disks, interfaces, programs, connections.

use super::hosts::{ROWS, left_out, per_second};
use super::markup::{Cell, Markup, number, table, text};
use super::short;
use crate::profile::{ConnectionSample, HostProfile, Profile};
use crate::report::ends::{self, Load};
use crate::report::say;
use crate::report::summary::Summary;
use crate::verdict::moving;

pub(super) fn devices(out: &mut Markup, load: &Load) {
    let processors = load.processors.iter().take(ends::MOST).map(|(name, one)| {
        let mut bar = Markup::default();
        bar.bar(&[("c0", one.user), ("c1", one.system), ("c2", one.irq + one.softirq), ("c3", one.steal)]);
        let parts = [one.user, one.system, one.irq + one.softirq, one.steal, one.iowait, one.idle];
        let mut cells = vec![text(name.clone()), Cell::Part(bar)];
        cells.extend(parts.map(|share| number(say::percent(share))));
        cells
    });
    let heads = ["processor", "", "programs", "kernel", "interrupts", "stolen", "disk wait", "idle"];
    table(out, &heads, processors.collect());
    left_out(out, load.processors.len(), ends::MOST, "processor");
    let disks = load.disks.iter().take(ROWS).map(|disk| {
        vec![
            text(disk.name.clone()),
            number(say::percent(disk.utilisation)),
            number(per_second(disk.transfers)),
            number(say::throughput(disk.read)),
            number(say::throughput(disk.written)),
            number(say::count(disk.queue)),
            number(say::time(disk.wait)),
        ]
    });
    table(
        out,
        &["disk", "busy", "requests", "read", "written", "queue", "time of a request"],
        disks.collect(),
    );
    left_out(out, load.disks.len(), ROWS, "disk");
    let interfaces = load.interfaces.iter().take(ROWS).map(|one| {
        vec![
            text(one.name.clone()),
            number(say::rate(one.received_bytes)),
            number(say::rate(one.sent_bytes)),
            number(per_second(one.received_packets)),
            number(per_second(one.sent_packets)),
            number(per_second(one.errors)),
            number(per_second(one.dropped)),
        ]
    });
    let heads = ["interface", "in", "out", "packets in", "packets out", "errors", "dropped"];
    table(out, &heads, interfaces.collect());
    left_out(out, load.interfaces.len(), ROWS, "interface");
}

pub(super) fn programs(out: &mut Markup, host: &HostProfile) {
    let rows = host.programs.iter().take(ROWS).map(|program| {
        let share = |seconds: f64| number(say::percent(seconds / program.seconds));
        let allowed = program.processors.map(|number| number.to_string()).unwrap_or_default();
        vec![
            text(short(&program.name)),
            number(program.pid.to_string()),
            share(program.user),
            share(program.system),
            program.waited_for_processor.map_or_else(|| number("–"), share),
            number(allowed),
        ]
    });
    let heads = ["program", "process", "own code", "kernel", "waited for a processor", "processors allowed"];
    table(out, &heads, rows.collect());
    left_out(out, host.programs.len(), ROWS, "program");
}

pub(super) fn connections(out: &mut Markup, host: &HostProfile, profile: &Profile, summary: &Summary) {
    let carried = moving(&host.connections, host.role.sends());
    let rows = carried.iter().take(ROWS).enumerate().map(|(place, connection)| {
        let (first, last) = (connection.samples.first(), connection.samples.last());
        let since = |of: fn(&ConnectionSample) -> Option<u64>| {
            let grown = of(last?)?.saturating_sub(of(first?)?);
            Some(grown as f64)
        };
        let moved = if host.role.sends() { since(|one| one.acknowledged) } else { since(|one| one.received) };
        let length = last.zip(first).map_or(0.0, |(last, first)| last.time - first.time);
        let limited = |of: fn(&ConnectionSample) -> Option<f64>| {
            let share =
                last.and_then(of).zip(first.and_then(of)).map(|(last, first)| (last - first) / length);
            number(share.map_or_else(|| "–".into(), say::percent))
        };
        vec![
            number((place + 1).to_string()),
            text(format!("{} – {}", short(&connection.local), short(&connection.remote))),
            text(short(&connection.congestion)),
            number(moved.map_or_else(|| "–".into(), say::size)),
            number(moved.map_or_else(|| "–".into(), |bytes| say::rate(bytes / length))),
            number(last.map_or_else(|| "–".into(), |last| say::time(last.rtt))),
            number(since(|one| Some(one.retransmitted.into())).map_or_else(|| "–".into(), say::count)),
            limited(|one| one.window_limited),
            limited(|one| one.buffer_limited),
        ]
    });
    let heads = [
        "",
        "connection",
        "congestion control",
        "moved",
        "rate",
        "round trip",
        "sent again",
        "held by window",
        "held by buffer",
    ];
    table(out, &heads, rows.collect());
    left_out(out, carried.len(), ROWS, "connection");
    if host.connections_left_out > 0 {
        let more = say::things(host.connections_left_out, "connection");
        out.element("p class=\"faint\"", &format!("{more} more were there and not looked at"));
    }
    if let Some(path) =
        summary.evidence.path.as_ref().filter(|_| profile.source().is_some_and(|one| std::ptr::eq(one, host)))
    {
        let parts = [
            ("the program gave too little", path.application_limited),
            ("the receiver's window was used up", path.window_limited),
            ("the send buffer was full", path.buffer_limited),
            ("the congestion window was used up, or nothing limited", path.congestion_limited()),
        ];
        let said: Vec<String> =
            parts.iter().map(|(name, share)| format!("{} {name}", say::percent(*share))).collect();
        out.element("p", &format!("What held the connections, of their time: {}.", said.join("; ")));
    }
}
