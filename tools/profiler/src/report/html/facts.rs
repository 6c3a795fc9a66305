//! Settings and equipment, with the doctor's checks.

use super::hosts::{ROWS, left_out, title};
use super::markup::{Cell, Markup, details, number, table, text};
use super::short;
use crate::doctor::{Check, CheckState, Goal, checks};
use crate::profile::{HostProfile, Profile};
use crate::report::say;
use crate::report::summary::{Summary, host_name};

const SETTINGS: usize = 200;

/// Renders settings and equipment, with the doctor's checks for this path.
pub(super) fn facts(out: &mut Markup, profile: &Profile, summary: &Summary) {
    if profile.hosts.is_empty() {
        return;
    }
    out.raw("<h2 id=\"settings\">Settings and equipment</h2>");
    let evidence = &summary.evidence;
    let rate = evidence.capacity().or(evidence.peak).unwrap_or(evidence.rate);
    let goal = evidence
        .rtt
        .map(|rtt| Goal { rate, rtt })
        .filter(|goal| goal.rate > 0.0 && goal.bdp().is_finite() && goal.rate.is_finite());
    match &goal {
        Some(goal) => {
            let said = format!(
                "Checked as by `ropewalk doctor` for this path: {} over {}, {} on its way at a time.",
                say::rate(goal.rate),
                say::time(goal.rtt),
                say::size(goal.bdp())
            );
            out.raw("<p>").prose(&said).raw("</p>");
        }
        None => {
            out.element("p", "Without a round trip and a rate settings cannot be judged.");
        }
    }
    for host in &profile.hosts {
        out.element("h3", &title(host));
        let found = goal.as_ref().map(|goal| checks(&host.facts, goal)).unwrap_or_default();
        let count = |state| found.iter().filter(|check| check.state == state).count();
        if !found.is_empty() {
            let said = format!(
                "{} bad, {} to improve, {} unknown, {} good",
                count(CheckState::Bad),
                count(CheckState::Advice),
                count(CheckState::Unknown),
                count(CheckState::Good)
            );
            out.element("p", &said);
        }
        let (wrong, others): (Vec<&Check>, Vec<&Check>) =
            found.iter().partition(|check| matches!(check.state, CheckState::Bad | CheckState::Advice));
        check_table(out, &wrong);
        let mut inside = Markup::default();
        check_table(&mut inside, &others);
        details(out, "Other checks", &inside);
        let mut inside = Markup::default();
        equipment(&mut inside, host);
        details(out, &format!("Equipment and settings of {}", host_name(host)), &inside);
    }
}

fn check_table(out: &mut Markup, found: &[&Check]) {
    let rows = found.iter().map(|check| {
        let (class, word) = match check.state {
            CheckState::Bad => ("span class=\"BAD\"", "BAD"),
            CheckState::Advice => ("span class=\"improve\"", "improve"),
            CheckState::Unknown => ("span", "unknown"),
            CheckState::Good => ("span class=\"ok\"", "good"),
        };
        let mut state = Markup::default();
        state.element(class, word);
        vec![
            Cell::Part(state),
            text(short(&check.name)),
            text(short(&check.found)),
            text(short(&check.wanted)),
            text(check.why),
        ]
    });
    table(out, &["", "setting", "found", "wanted", "why"], rows.collect());
}

fn equipment(out: &mut Markup, host: &HostProfile) {
    let facts = &host.facts;
    let known = |value: u64, shown: String| if value == 0 { "–".to_owned() } else { shown };
    let mut rows = vec![
        ("kernel", short(&facts.kernel)),
        ("processors", format!("{} {}", facts.processors, short(&facts.processor_model))),
        ("NUMA nodes", facts.numa_nodes.to_string()),
        ("governors", short(&facts.governors.join(", "))),
        ("memory", known(facts.memory, say::size(facts.memory as f64))),
        ("open files", facts.open_files.map_or_else(|| "–".into(), |files| files.to_string())),
    ];
    rows.extend(facts.iommu_passthrough.map(|pass| ("iommu=pt", if pass { "yes" } else { "no" }.to_owned())));
    rows.push(("clock", clock(host)));
    table(out, &["", ""], rows.into_iter().map(|(name, value)| vec![text(name), text(value)]).collect());
    let interfaces = facts.interfaces.iter().take(ROWS).map(|one| {
        let off: Vec<&str> =
            one.offloads.iter().filter(|(_, on)| !**on).map(|(name, _)| name.as_str()).collect();
        let rings = one.rings.map(|rings| {
            format!(
                "{} of {} in, {} of {} out",
                rings.receive, rings.receive_most, rings.send, rings.send_most
            )
        });
        vec![
            text(format!("{}{}", short(&one.name), if one.default_route { " (default route)" } else { "" })),
            number(one.speed.map_or_else(|| "–".into(), |bits| say::rate(bits as f64 / 8.0))),
            number(one.mtu.map_or_else(|| "–".into(), |mtu| mtu.to_string())),
            text(short(one.qdisc.as_deref().unwrap_or("–"))),
            text(short(one.driver.as_deref().unwrap_or("–"))),
            text(rings.unwrap_or_else(|| "–".into())),
            text(short(&off.join(", "))),
        ]
    });
    table(
        out,
        &["interface", "speed", "MTU", "qdisc", "driver", "rings", "offloads that are off"],
        interfaces.collect(),
    );
    let disks = facts.disks.iter().take(ROWS).map(|one| {
        let kind = match one.rotational {
            Some(true) => "has platters",
            Some(false) => "no platters",
            None => "–",
        };
        vec![
            text(short(&one.name)),
            number(say::size(one.size as f64)),
            text(short(&one.model)),
            text(kind),
            text(short(&one.scheduler)),
        ]
    });
    table(out, &["disk", "size", "model", "kind", "scheduler"], disks.collect());
    let systems = facts.file_systems.iter().take(ROWS).map(|one| {
        [&one.path, &one.mounted, &one.kind, &one.device, &one.options].map(|part| text(short(part))).into()
    });
    table(out, &["path", "mounted at", "file system", "device", "options"], systems.collect());
    let settings =
        facts.sysctls.iter().take(SETTINGS).map(|(name, value)| vec![text(short(name)), text(short(value))]);
    table(out, &["setting", "value"], settings.collect());
    left_out(out, facts.sysctls.len(), SETTINGS, "setting");
}

fn clock(host: &HostProfile) -> String {
    let clock = host.clock;
    if clock.offset_seconds == 0.0 && clock.error_seconds == 0.0 {
        return "that of this report".into();
    }
    let way = if clock.offset_seconds < 0.0 { "behind" } else { "ahead" };
    format!(
        "{} {way}, known to ± {}; times here are corrected for it",
        say::time(clock.offset_seconds.abs()),
        say::time(clock.error_seconds)
    )
}
