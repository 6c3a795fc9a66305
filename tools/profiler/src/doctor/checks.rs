//! The checks, each with the value that was found, the value that is wanted, and the reason.

use serde::Serialize;

use super::{Goal, Wanted};
use crate::profile::{Facts, Interface};
use crate::verdict::text;

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The name of a setting (`net.ipv4.tcp_rmem`), or a text like `interface eth0: MTU`.
    pub name: String,
    pub state: CheckState,
    pub found: String,
    pub wanted: String,
    pub why: &'static str,
    /// The value that would make the setting good. Absent if it is good already, or if it is not a
    /// setting that can simply be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    Good,
    /// The host cannot reach the goal with this.
    Bad,
    /// This costs speed under some circumstances.
    Advice,
    /// The value could not be found out.
    Unknown,
}

/// Runs all checks of a host for a goal.
pub fn checks(facts: &Facts, goal: &Goal) -> Vec<Check> {
    let wanted = Wanted::of(goal);
    let mut all = settings(facts, &wanted);
    all.push(memory(facts, goal));
    for interface in facts.interfaces.iter().filter(|interface| interface.default_route) {
        link(&mut all, interface, goal, &wanted);
    }
    if !facts.interfaces.iter().any(|interface| interface.default_route) {
        all.push(Check {
            name: "interface".into(),
            state: CheckState::Unknown,
            found: "no default route".into(),
            wanted: "an interface to look at".into(),
            why: "speed, MTU, rings and offloads belong to the interface that the data takes",
            set: None,
        });
    }
    host(&mut all, facts, goal);
    all
}

fn settings(facts: &Facts, wanted: &Wanted) -> Vec<Check> {
    let hidden_why =
        "the most that a program may ask for by SO_RCVBUF and SO_SNDBUF; most programs should not ask";
    let mut all = vec![
        triple(
            facts,
            "net.ipv4.tcp_rmem",
            wanted.autotune,
            "to where autotuning lets a receive buffer grow; what is in flight has to fit",
        ),
        triple(
            facts,
            "net.ipv4.tcp_wmem",
            wanted.autotune,
            "to where autotuning lets a send buffer grow; what is in flight has to fit",
        ),
        at_least(facts, "net.core.rmem_max", wanted.setsockopt, hidden_why),
        at_least(facts, "net.core.wmem_max", wanted.setsockopt, hidden_why),
        exactly(
            facts,
            "net.ipv4.tcp_window_scaling",
            "1",
            CheckState::Bad,
            "without it no window is larger than 64 KiB (RFC 7323)",
        ),
        exactly(
            facts,
            "net.ipv4.tcp_moderate_rcvbuf",
            "1",
            CheckState::Bad,
            "lets receive buffers grow with the path",
        ),
        exactly(
            facts,
            "net.ipv4.tcp_sack",
            "1",
            CheckState::Bad,
            "repairs several losses in one round trip (RFC 2018)",
        ),
        // The value 2 means timestamps without the random offset of each connection.
        or_two(exactly(
            facts,
            "net.ipv4.tcp_timestamps",
            "1",
            CheckState::Bad,
            "measures round trips, and tells old segments of a fast link from new ones (RFC 7323)",
        )),
        exactly(
            facts,
            "net.ipv4.tcp_no_metrics_save",
            "1",
            CheckState::Advice,
            "one bad transfer should not slow down the next to the same host",
        ),
        mtu_probing(facts),
        exactly(
            facts,
            "net.core.default_qdisc",
            "fq",
            CheckState::Advice,
            "paces packets, so that bursts do not overflow short queues; holds for interfaces that come up later",
        ),
        congestion(facts),
    ];
    all.extend(wanted.backlog.map(|packets| {
        at_least(
            facts,
            "net.core.netdev_max_backlog",
            packets,
            "packets that wait for a processor; more bursts fit at this rate",
        )
    }));
    all.extend(wanted.option_memory.map(|bytes| {
        at_least(facts, "net.core.optmem_max", bytes, "what sending without copying (MSG_ZEROCOPY) may hold")
    }));
    all
}

/// The check of a setting that is not visible. A network namespace may hide it; then it is a matter
/// of the host and not of this container.
fn unseen(name: &str, wanted: String, why: &'static str) -> Check {
    let found = "not to be seen here (a container's network namespace?)".to_owned();
    Check { name: name.into(), state: CheckState::Unknown, found, wanted, why, set: None }
}

fn triple(facts: &Facts, name: &str, wanted: u64, why: &'static str) -> Check {
    let text = format!("third value at least {wanted}");
    let Some(values) = facts.numbers(name).filter(|values| values.len() == 3) else {
        return unseen(name, text, why);
    };
    let good = values[2] >= wanted;
    // The first two values are for idle and starting connections; they stay as they are.
    let set = (!good).then(|| format!("{} {} {wanted}", values[0], values[1]));
    let state = if good { CheckState::Good } else { CheckState::Bad };
    Check { name: name.into(), state, found: facts.sysctls[name].clone(), wanted: text, why, set }
}

fn at_least(facts: &Facts, name: &str, wanted: u64, why: &'static str) -> Check {
    let text = format!("at least {wanted}");
    let Some(&[value]) = facts.numbers(name).as_deref() else { return unseen(name, text, why) };
    let good = value >= wanted;
    let set = (!good).then(|| wanted.to_string());
    let state = if good { CheckState::Good } else { CheckState::Bad };
    Check { name: name.into(), state, found: value.to_string(), wanted: text, why, set }
}

fn exactly(facts: &Facts, name: &str, wanted: &str, otherwise: CheckState, why: &'static str) -> Check {
    let Some(value) = facts.sysctls.get(name) else { return unseen(name, wanted.into(), why) };
    let good = value == wanted;
    let state = if good { CheckState::Good } else { otherwise };
    let set = (!good).then(|| wanted.to_owned());
    Check { name: name.into(), state, found: value.clone(), wanted: wanted.into(), why, set }
}

fn mtu_probing(facts: &Facts) -> Check {
    let why = "finds the largest packet where ICMP is filtered (RFC 4821), as happens with jumbo frames";
    or_two(exactly(facts, "net.ipv4.tcp_mtu_probing", "1", CheckState::Advice, why))
}

/// Accepts the value 2 for settings in which it is as good as 1.
fn or_two(check: Check) -> Check {
    if check.found == "2" { Check { state: CheckState::Good, set: None, ..check } } else { check }
}

fn congestion(facts: &Facts) -> Check {
    let name = "net.ipv4.tcp_congestion_control";
    let (wanted, why) = ("cubic or bbr", "others grow too slowly on long paths, or give way to them");
    let Some(value) = facts.sysctls.get(name) else { return unseen(name, wanted.into(), why) };
    let good = ["cubic", "bbr", "bbr2", "bbr3"].contains(&value.as_str());
    let state = if good { CheckState::Good } else { CheckState::Advice };
    Check {
        name: name.into(),
        state,
        found: value.clone(),
        wanted: wanted.into(),
        why,
        set: (!good).then(|| "cubic".to_owned()),
    }
}

/// Checks net.ipv4.tcp_mem, in pages: above the second value the kernel takes memory from all
/// connections.
fn memory(facts: &Facts, goal: &Goal) -> Check {
    let (name, why) =
        ("net.ipv4.tcp_mem", "beyond the second value (in pages) all TCP of the host has to save memory");
    let needed = 4.0 * goal.bdp();
    let page = rustix::param::page_size() as f64;
    let wanted = format!("second value at least {:.0} ({})", needed / page, text::size(needed));
    let Some(values) = facts.numbers(name).filter(|values| values.len() == 3) else {
        return unseen(name, wanted, why);
    };
    let good = values[1] as f64 * page >= needed;
    let state = if good { CheckState::Good } else { CheckState::Advice };
    Check { name: name.into(), state, found: facts.sysctls[name].clone(), wanted, why, set: None }
}

fn link(all: &mut Vec<Check>, interface: &Interface, goal: &Goal, wanted: &Wanted) {
    let mut add = |what: &str, found: Option<String>, good: bool, otherwise, wanted: String, why| {
        let state = match found {
            None => CheckState::Unknown,
            Some(_) if good => CheckState::Good,
            Some(_) => otherwise,
        };
        let found = found.unwrap_or_else(|| "not told".into());
        all.push(Check {
            name: format!("interface {}: {what}", interface.name),
            state,
            found,
            wanted,
            why,
            set: None,
        });
    };
    let speed = interface.speed.map(|bits| bits as f64 / 8.0);
    add(
        "speed",
        speed.map(text::link),
        speed.is_some_and(|speed| speed >= goal.rate * 0.99),
        CheckState::Bad,
        format!("at least {}", text::link(goal.rate)),
        "nothing is faster than the slowest link",
    );
    let mtu = interface.mtu;
    add(
        "MTU",
        mtu.map(|mtu| mtu.to_string()),
        mtu.is_some_and(|mtu| mtu >= 8000),
        CheckState::Advice,
        "9000, if all of the path takes it".into(),
        "six times fewer packets for the same bytes; at 1500 a single stream stays below about 10 to 20 Gbit/s",
    );
    let queue = interface.queue_length;
    add(
        "transmit queue",
        queue.map(|packets| packets.to_string()),
        queue.is_some_and(|packets| u64::from(packets) >= wanted.queue_length),
        CheckState::Advice,
        format!("at least {} packets (ip link set {} txqueuelen)", wanted.queue_length, interface.name),
        "bursts of a fast sender have to fit",
    );
    add(
        "queueing discipline",
        interface.qdisc.clone(),
        interface.qdisc.as_deref() == Some("fq"),
        CheckState::Advice,
        format!("fq (tc qdisc replace dev {} root fq)", interface.name),
        "paces packets, so that bursts do not overflow short queues",
    );
    let rings = interface.rings;
    let enough = |now: u32, most: u32| now >= most.min(8192);
    add(
        "rings",
        rings.map(|rings| {
            format!(
                "{} of {} received, {} of {} sent",
                rings.receive, rings.receive_most, rings.send, rings.send_most
            )
        }),
        rings.is_some_and(|rings| {
            enough(rings.receive, rings.receive_most) && enough(rings.send, rings.send_most)
        }),
        CheckState::Advice,
        format!("8192 or the most that the driver has (ethtool -G {})", interface.name),
        "what arrives while no processor looks has to fit",
    );
    for (name, wanted) in [
        ("generic-receive-offload", true),
        ("generic-segmentation-offload", true),
        ("tcp-segmentation-offload", true),
        ("large-receive-offload", false),
    ] {
        let state = interface.offloads.get(name).copied();
        let word = |on: bool| if on { "on" } else { "off" };
        add(
            name,
            state.map(|on| word(on).to_owned()),
            state == Some(wanted),
            CheckState::Advice,
            word(wanted).to_owned(),
            if wanted {
                "handles many packets as one"
            } else {
                "merges packets so that they cannot be forwarded, and hides losses"
            },
        );
    }
}

fn host(all: &mut Vec<Check>, facts: &Facts, goal: &Goal) {
    let found = facts.governors.join(", ");
    if !facts.governors.is_empty() {
        let good = found == "performance";
        all.push(Check {
            name: "processor governor".into(),
            state: if good { CheckState::Good } else { CheckState::Advice },
            found,
            wanted: "performance".into(),
            why: "a processor that slept is slow to wake for the next packet",
            set: None,
        });
    }
    let streams = Wanted::streams(goal);
    if streams > 1 {
        all.push(Check {
            name: "window".into(),
            state: CheckState::Advice,
            found: format!("{} in flight", text::size(goal.bdp())),
            wanted: format!("at least {streams} streams"),
            why: "no TCP window is larger than 1 GiB (RFC 7323)",
            set: None,
        });
    }
    if let (Some(passthrough), true) = (facts.iommu_passthrough, goal.bits() >= 95e9) {
        all.push(Check {
            name: "IOMMU".into(),
            state: if passthrough { CheckState::Good } else { CheckState::Advice },
            found: if passthrough { "passed through" } else { "translates" }.into(),
            wanted: "iommu=pt on the kernel's command line".into(),
            why: "translating each packet's address costs much at this rate",
            set: None,
        });
    }
    let files = facts.open_files;
    all.push(Check {
        name: "open files of a process".into(),
        state: match files {
            None => CheckState::Good,
            Some(files) if files >= 1024 => CheckState::Good,
            Some(_) => CheckState::Advice,
        },
        found: files.map_or_else(|| "unlimited".into(), |files| files.to_string()),
        wanted: "at least 1024".into(),
        why: "each stream and each file in flight is one",
        set: None,
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::Rings;

    const GOAL: Goal = Goal { rate: 1.25e9, rtt: 0.08 };

    /// The settings of a Debian installation of 2025.
    fn usual() -> Facts {
        let sysctls = [
            ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
            ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
            ("net.ipv4.tcp_mem", "300000 400000 600000"),
            ("net.core.rmem_max", "212992"),
            ("net.core.wmem_max", "212992"),
            ("net.core.netdev_max_backlog", "1000"),
            ("net.core.default_qdisc", "fq_codel"),
            ("net.ipv4.tcp_window_scaling", "1"),
            ("net.ipv4.tcp_moderate_rcvbuf", "1"),
            ("net.ipv4.tcp_sack", "1"),
            ("net.ipv4.tcp_timestamps", "1"),
            ("net.ipv4.tcp_no_metrics_save", "0"),
            ("net.ipv4.tcp_mtu_probing", "0"),
            ("net.ipv4.tcp_congestion_control", "cubic"),
        ];
        Facts {
            sysctls: sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            open_files: Some(1024),
            interfaces: vec![Interface {
                name: "ens1".into(),
                default_route: true,
                speed: Some(10_000_000_000),
                mtu: Some(1500),
                queue_length: Some(1000),
                qdisc: Some("fq_codel".into()),
                rings: Some(Rings { receive: 1024, receive_most: 4096, send: 1024, send_most: 4096 }),
                offloads: [("generic-receive-offload".into(), true), ("large-receive-offload".into(), true)]
                    .into(),
                ..Interface::default()
            }],
            ..Facts::default()
        }
    }

    fn state(all: &[Check], name: &str) -> CheckState {
        all.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("{name}")).state
    }

    #[test]
    fn checks_when_host_has_defaults_find_what_is_missing() {
        let all = checks(&usual(), &GOAL);
        for (name, wanted) in [
            ("net.ipv4.tcp_rmem", CheckState::Bad),
            ("net.core.wmem_max", CheckState::Bad),
            ("net.core.netdev_max_backlog", CheckState::Bad),
            ("net.ipv4.tcp_sack", CheckState::Good),
            ("net.core.default_qdisc", CheckState::Advice),
            ("net.ipv4.tcp_mem", CheckState::Good),
            ("interface ens1: speed", CheckState::Good),
            ("interface ens1: MTU", CheckState::Advice),
            ("interface ens1: rings", CheckState::Advice),
            ("interface ens1: generic-receive-offload", CheckState::Good),
            ("interface ens1: large-receive-offload", CheckState::Advice),
            ("interface ens1: tcp-segmentation-offload", CheckState::Unknown),
        ] {
            assert_eq!(state(&all, name), wanted, "{name}");
        }
        let rmem = all.iter().find(|check| check.name == "net.ipv4.tcp_rmem").unwrap();
        assert_eq!(rmem.set.as_deref(), Some("4096 131072 134217728"));
        assert!(all.iter().all(|check| !check.why.is_empty() && !check.wanted.is_empty()));
    }

    #[test]
    fn checks_when_proposals_are_set_find_nothing() {
        let mut facts = usual();
        for check in checks(&facts, &GOAL) {
            facts.sysctls.extend(check.set.map(|value| (check.name, value)));
        }
        let all = checks(&facts, &GOAL);
        assert!(all.iter().all(|check| check.state != CheckState::Bad && check.set.is_none()), "{all:?}");
        // Larger values are not reduced.
        facts.sysctls.insert("net.core.rmem_max".into(), "2147483647".into());
        facts.sysctls.insert("net.ipv4.tcp_mtu_probing".into(), "2".into());
        assert!(checks(&facts, &GOAL).iter().all(|check| check.set.is_none()));
        facts.sysctls.insert("net.ipv4.tcp_timestamps".into(), "2".into());
        let all = checks(&facts, &GOAL);
        assert_eq!(state(&all, "net.ipv4.tcp_timestamps"), CheckState::Good);
        assert!(all.iter().all(|check| check.set.is_none()));
        facts.sysctls.insert("net.ipv4.tcp_timestamps".into(), "0".into());
        assert_eq!(state(&checks(&facts, &GOAL), "net.ipv4.tcp_timestamps"), CheckState::Bad);
    }

    #[test]
    fn checks_when_facts_are_missing_or_invalid_are_unknown() {
        let all = checks(&Facts::default(), &GOAL);
        assert!(all.iter().all(|check| check.set.is_none() && check.state != CheckState::Bad));
        let mut facts = usual();
        facts.sysctls.insert("net.ipv4.tcp_rmem".into(), "many".into());
        facts.sysctls.insert("net.core.rmem_max".into(), "1 2 3".into());
        let all = checks(&facts, &GOAL);
        assert_eq!(state(&all, "net.ipv4.tcp_rmem"), CheckState::Unknown);
        assert_eq!(state(&all, "net.core.rmem_max"), CheckState::Unknown);
    }

    #[test]
    fn checks_when_link_is_long_and_fast_include_its_own() {
        let mut facts = usual();
        facts.iommu_passthrough = Some(false);
        let all = checks(&facts, &Goal { rate: 12.5e9, rtt: 0.2 });
        assert_eq!(state(&all, "window"), CheckState::Advice);
        assert_eq!(state(&all, "IOMMU"), CheckState::Advice);
        assert_eq!(state(&all, "interface ens1: speed"), CheckState::Bad);
        assert!(all.iter().any(|check| check.name == "net.core.optmem_max"));
    }
}
