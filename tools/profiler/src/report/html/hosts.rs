//! Sections for experts: stages, profilers' shares, loads, connections, collectors.

use super::devices::{connections, devices, programs};
use super::markup::{Cell, Markup, details, number, table, text};
use super::short;
use crate::profile::{CollectorState, HostProfile, Profile, ShareKind, StageTime, Stages};
use crate::report::ends::Load;
use crate::report::say;
use crate::report::summary::{self, Summary, host_name, role};

/// Most rows of a table. This keeps the page small, however large the profile is.
pub(super) const ROWS: usize = 40;

pub(super) fn title(host: &HostProfile) -> String {
    format!("{} ({})", host_name(host), role(host.role))
}

pub(super) fn stages(out: &mut Markup, profile: &Profile) {
    let with: Vec<(&HostProfile, &Stages)> = profile
        .hosts
        .iter()
        .filter_map(|host| Some((host, host.stages.as_ref().filter(|stages| stages.stream_seconds > 0.0)?)))
        .collect();
    if with.is_empty() {
        return;
    }
    out.raw("<h2 id=\"stages\">Where the streams' time went</h2><p class=\"faint\">Of the time that streams were there, as the \
             engine measured: <i class=\"c0\"></i>at work <i class=\"c1\"></i>waiting. The rest was spent between stages.</p>");
    for (host, stages) in with {
        out.element("h3", &title(host));
        let rows = [
            ("reading the source", stages.source),
            ("checksum", stages.checksum),
            ("encryption", stages.encryption),
            ("network", stages.socket),
            ("writing the destination", stages.destination),
        ];
        let rows = rows.into_iter().filter(|(_, time)| time.spent() > 0.0);
        table(
            out,
            &["stage", "", "busy", "waited"],
            rows.map(|(name, time)| stage(name, time, stages.stream_seconds)).collect(),
        );
    }
}

fn stage(name: &str, time: StageTime, all: f64) -> Vec<Cell> {
    let mut bar = Markup::default();
    bar.bar(&[("c0", time.busy / all), ("c1", time.waited / all)]);
    let shown = |seconds: f64| number(format!("{} ({})", say::percent(seconds / all), say::time(seconds)));
    vec![text(name), Cell::Part(bar), shown(time.busy), shown(time.waited)]
}

pub(super) fn profilers(out: &mut Markup, profile: &Profile) {
    let with: Vec<_> =
        profile.hosts.iter().filter_map(|host| Some((host, host.profiler.as_ref()?))).collect();
    if with.is_empty() {
        return;
    }
    out.raw("<h2 id=\"profiler\">What the processors worked on</h2><p class=\"faint\">Shares of the work, not of the time: an idle \
             machine has shares too.</p>");
    for (host, profiler) in with {
        out.element("h3", &title(host));
        let lost = if profiler.lost > 0 { format!(", {} lost", profiler.lost) } else { String::new() };
        let samples = say::things(profiler.samples, "sample");
        out.element("p class=\"faint\"", &format!("{samples} of {}{lost}", short(&profiler.event)));
        let mut shares: Vec<_> = profiler.shares.iter().collect();
        shares.sort_by(|a, b| b.share.total_cmp(&a.share));
        let rows = shares.iter().take(ROWS).map(|part| {
            let mut bar = Markup::default();
            bar.bar(&[("c0", part.share)]);
            vec![
                text(part_kind(part.kind)),
                text(short(&part.name)),
                Cell::Part(bar),
                number(say::percent(part.share)),
            ]
        });
        table(out, &["where", "name", "", "share"], rows.collect());
        let mut functions = Markup::default();
        let rows = profiler.functions.iter().take(ROWS).map(|one| {
            let share = number(say::percent(one.share));
            vec![share, text(short(&one.function)), text(short(&one.object)), text(short(&one.program))]
        });
        table(&mut functions, &["share", "function", "in", "for program"], rows.collect());
        details(out, &format!("Functions on {}", host_name(host)), &functions);
    }
}

fn part_kind(kind: ShareKind) -> &'static str {
    match kind {
        ShareKind::Kernel => "kernel",
        ShareKind::Module => "kernel module",
        ShareKind::Driver => "driver",
        ShareKind::Interrupt => "interrupts",
        ShareKind::Library => "library",
        ShareKind::Program => "program",
    }
}

/// Renders the loads side by side, and all details of each host folded.
pub(super) fn machines(out: &mut Markup, profile: &Profile, summary: &Summary) {
    let loads: Vec<(&HostProfile, Option<Load>)> =
        profile.hosts.iter().map(|host| (host, Load::of(host, profile))).collect();
    if loads.is_empty() {
        return;
    }
    out.raw("<h2 id=\"machines\">The machines</h2>");
    let row = |name: &str, of: &dyn Fn(&Load) -> String| -> Vec<Cell> {
        let values = loads.iter().map(|(_, load)| number(load.as_ref().map_or_else(|| "–".into(), of)));
        std::iter::once(text(name)).chain(values).collect()
    };
    let rows = vec![
        row("mean load", &|load| say::percent(load.mean)),
        row("peak load", &|load| say::percent(load.peak)),
        row("kernel load", &|load| say::percent(load.kernel)),
        row("busiest processor", &|load| {
            load.busiest().map_or_else(
                || "–".into(),
                |(name, one)| format!("{} (number {})", say::percent(one.busy()), name),
            )
        }),
        row("waiting for disks", &|load| say::percent(load.iowait)),
        row("stolen by other guests", &|load| say::percent(load.steal)),
        row("requests to disks", &|load| per_second(load.disks.iter().map(|disk| disk.transfers).sum())),
        row("read from disks", &|load| say::throughput(load.disks.iter().map(|disk| disk.read).sum())),
        row("written to disks", &|load| say::throughput(load.disks.iter().map(|disk| disk.written).sum())),
        row("packets received", &|load| {
            per_second(load.interfaces.iter().map(|one| one.received_packets).sum())
        }),
        row("packets sent", &|load| per_second(load.interfaces.iter().map(|one| one.sent_packets).sum())),
        row("errors and drops", &|load| {
            per_second(load.interfaces.iter().map(|one| one.errors + one.dropped).sum())
        }),
        row("TCP segments sent again", &|load| per_second(load.segments_retransmitted)),
        row("interrupts", &|load| per_second(load.interrupts)),
        row("context switches", &|load| per_second(load.context_switches)),
        row("memory used at most", &|load| of(load.memory.used, load.memory.total)),
        row("swap used at most", &|load| of(load.memory.swap_used, load.memory.swap_total)),
    ];
    let mut heads = vec![String::new()];
    heads.extend(loads.iter().map(|(host, _)| title(host)));
    table(out, &heads.iter().map(String::as_str).collect::<Vec<_>>(), rows);
    for (host, load) in &loads {
        let mut inside = Markup::default();
        if let Some(load) = load {
            devices(&mut inside, load);
        }
        programs(&mut inside, host);
        connections(&mut inside, host, profile, summary);
        details(out, &format!("{}: processors, disks, interfaces, connections", host_name(host)), &inside);
    }
}

pub(super) fn per_second(value: f64) -> String {
    say::count(value) + "/s"
}

fn of(used: u64, total: u64) -> String {
    if total == 0 {
        "–".into()
    } else {
        format!("{} of {}", say::size(used as f64), say::size(total as f64))
    }
}

pub(super) fn left_out(out: &mut Markup, all: usize, most: usize, what: &str) {
    if let Some(more) = all.checked_sub(most).filter(|&more| more > 0) {
        out.element("p class=\"faint\"", &format!("{} more left out", say::things(more as u64, what)));
    }
}

pub(super) fn collectors(out: &mut Markup, profile: &Profile, summary: &Summary) {
    out.raw("<h2 id=\"collectors\">How it was measured</h2>");
    let rows = profile.hosts.iter().flat_map(|host| {
        host.collectors.iter().take(ROWS).map(|report| {
            let mut state = Markup::default();
            let class = if report.state == CollectorState::Used {
                "span class=\"ok\""
            } else {
                "span class=\"improve\""
            };
            state.element(class, summary::state(report.state));
            vec![
                text(host_name(host)),
                text(summary::collector(report.name)),
                Cell::Part(state),
                text(short(&report.detail)),
            ]
        })
    });
    table(out, &["machine", "collector", "", "detail"], rows.collect());
    if summary.missing.is_empty() {
        return;
    }
    out.element("h3", "Not measured").raw("<ul>");
    for what in summary.missing.iter().take(ROWS) {
        out.element("li", what);
    }
    out.raw("</ul>");
}
