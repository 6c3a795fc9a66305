//! The capacity of a scenario: the payload rate that its links and disks could carry. Reports show
//! goodput as a share of it.

use std::collections::BTreeMap;

use crate::emulator;
use crate::library::Direction;
use crate::scenario::{Host, Scenario};

/// Bytes of headers in a packet: IPv4, TCP, time stamps.
const HEADERS: f64 = 52.0;

/// Payload in bits per second that the links between `left` and `right` and their disks could
/// carry, as an average over the first `seconds`, without any other load. `segment` is the payload
/// of a packet in bytes.
///
/// Infinite if neither a link nor a disk has a limit.
pub fn capacity(scenario: &Scenario, direction: Direction, seconds: f64, segment: u32) -> f64 {
    let towards = match direction {
        Direction::Get => ["right", "left"],
        Direction::Put => ["left", "right"],
    };
    let links = way(scenario, towards).into_iter().map(|(link, forward)| {
        let link = &scenario.links[link];
        let rate = mean_rate(link, forward, seconds);
        let payload = f64::from(segment.max(1));
        let path = if forward { &link.path.forward } else { &link.path.backward };
        rate * payload / (payload + HEADERS + f64::from(path.overhead))
    });
    let disk = |host: &str, read: bool| {
        let limit = scenario.hosts.get(host).and_then(|host: &Host| host.disk.as_ref());
        limit.and_then(|disk| if read { disk.read } else { disk.write }).map(|rate| rate.0 as f64 * 8.0)
    };
    let disks = disk(towards[0], true).into_iter().chain(disk(towards[1], false));
    links.chain(disks).fold(f64::INFINITY, f64::min)
}

/// The links from one host to another, and whether the data passes each in the forward direction.
/// Hosts and links form a tree.
fn way(scenario: &Scenario, [from, to]: [&str; 2]) -> Vec<(usize, bool)> {
    let mut reached: BTreeMap<&str, Vec<(usize, bool)>> = BTreeMap::from([(from, vec![])]);
    for _ in 0..scenario.links.len() {
        for (number, link) in scenario.links.iter().enumerate() {
            let [first, second] = &link.between;
            for (here, there, forward) in [(first, second, true), (second, first, false)] {
                if let Some(before) = reached.get(here.as_str())
                    && !reached.contains_key(there.as_str())
                {
                    let mut way = before.clone();
                    way.push((number, forward));
                    reached.insert(there, way);
                }
            }
        }
    }
    reached.remove(to).unwrap_or_default()
}

fn mean_rate(link: &crate::scenario::Link, forward: bool, seconds: f64) -> f64 {
    let rate_of = |path: &emulator::Path| {
        let rate = if forward { path.forward.rate } else { path.backward.rate };
        rate.get().map_or(f64::INFINITY, |rate| rate as f64)
    };
    let mut changes: Vec<_> = link.changes.iter().collect();
    changes.sort_by_key(|change| change.at);
    let (mut path, mut since, mut sum) = (link.path.clone(), 0.0, 0.0);
    for change in changes {
        let at = change.at.as_secs_f64().min(seconds);
        sum += rate_of(&path) * (at - since);
        since = at;
        path = change.applied_to(&path).unwrap_or(path);
    }
    if since >= seconds {
        sum / seconds.max(f64::MIN_POSITIVE)
    } else {
        (sum + rate_of(&path) * (seconds - since)) / seconds
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::library::open;

    fn mbit(name: &str, direction: Direction, seconds: f64) -> f64 {
        capacity(&open(name).unwrap().scenario().unwrap(), direction, seconds, 1448) / 1e6
    }

    #[test]
    fn capacity_of_a_scenario_is_that_of_its_narrowest_part() {
        let payload = 1448.0 / 1500.0;
        for (name, direction, wanted) in [
            ("paper-100ms", Direction::Get, 100.0 * payload),
            ("asymmetric", Direction::Get, 200.0 * payload),
            ("asymmetric", Direction::Put, 10.0 * payload),
            ("slow-disk-source", Direction::Get, 20.0 * 8.388_608),
            ("slow-disk-destination", Direction::Put, 20.0 * 8.388_608),
            // 20 s at 200 Mbit/s, 10 s at 60 Mbit/s.
            ("changing-path", Direction::Get, (20.0 * 200.0 + 10.0 * 60.0) / 30.0 * payload),
        ] {
            let found = mbit(name, direction, 30.0);
            assert!((found / wanted - 1.0).abs() < 1e-6, "{name}: {found} instead of {wanted}");
        }
        assert!((mbit("changing-path", Direction::Get, 5.0) / (200.0 * payload) - 1.0).abs() < 1e-6);
    }
}
