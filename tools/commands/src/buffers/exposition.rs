//! Aggregates for Prometheus, in its text format 0.0.4. No label contains a peer, a path, a program
//! or a user.

use std::fmt::Write;

use ropewalk_buffers::{Direction, Flow, LimitedBy, Snapshot, tcp_memory};

/// The quantity of a connection that is summed.
type Amount<'a> = &'a dyn Fn(&Flow) -> f64;

const DIRECTIONS: [Direction; 2] = [Direction::Out, Direction::In];

/// Returns the snapshot as text. `granted` is the budget and the sum of the grants, if there is a
/// negotiation.
pub(super) fn exposition(snapshot: &Snapshot, granted: Option<(u64, u64)>) -> String {
    let mut out = Page(String::new());
    let sum = |direction, own, of: Amount<'_>| -> f64 {
        let of_kind = |flow: &&Flow| flow.direction == direction && flow.own == own;
        // The sum of no floats is -0, and adding 0 makes it 0.
        snapshot.connections.iter().filter(of_kind).map(of).sum::<f64>() + 0.0
    };
    let families: [(&str, &str, Amount<'_>); 5] = [
        ("connections", "TCP connections.", &|_| 1.0),
        ("demand_bytes", "Buffer that connections could use, payload.", &|flow| flow.demand_bytes as f64),
        ("size_bytes", "Size of their buffers, as the kernel counts.", &|flow| {
            flow.kernel_buffer_bytes as f64
        }),
        ("queued_bytes", "Bytes in their buffers, as the kernel counts.", &|flow| {
            flow.kernel_queued_bytes as f64
        }),
        ("rate_bytes_per_second", "Rate of their payload.", &|flow| flow.bytes_per_second),
    ];
    for (name, help, of) in families {
        out.family(name, help);
        for direction in DIRECTIONS {
            for (own, owner) in [(true, "ropewalk"), (false, "other")] {
                let labels = format!("direction=\"{}\",owner=\"{owner}\"", direction.name());
                out.sample(name, &labels, sum(direction, own, of));
            }
        }
    }
    out.family("limited_connections", "Connections by the limit of their sender.");
    for by in LimitedBy::ALL {
        let count = snapshot.connections.iter().filter(|flow| flow.limited_by == by).count();
        out.sample("limited_connections", &format!("by=\"{}\"", by.name()), count as f64);
    }
    let ceilings = [(Direction::Out, snapshot.ceilings.send), (Direction::In, snapshot.ceilings.receive)];
    out.family("autotune_max_bytes", "The limit of the kernel's autotuning (tcp_wmem, tcp_rmem).");
    for (direction, limits) in ceilings {
        out.sample("autotune_max_bytes", &label(direction), limits.autotune as f64);
    }
    out.family("setsockopt_max_bytes", "The most that programs can set (wmem_max, rmem_max).");
    for (direction, limits) in ceilings {
        out.sample("setsockopt_max_bytes", &label(direction), limits.setsockopt as f64);
    }
    if let Some(bytes) = tcp_memory() {
        out.family("tcp_memory_bytes", "Memory of all TCP sockets of the machine.");
        out.sample("tcp_memory_bytes", "", bytes as f64);
    }
    if let Some((budget, granted)) = granted {
        out.family("budget_bytes", "Memory to divide among connections, payload.");
        out.sample("budget_bytes", "", budget as f64);
        out.family("granted_bytes", "Memory granted to connections, payload.");
        out.sample("granted_bytes", "", granted as f64);
    }
    out.0
}

fn label(direction: Direction) -> String {
    format!("direction=\"{}\"", direction.name())
}

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP ropewalk_buffer_{name} {help}\n# TYPE ropewalk_buffer_{name} gauge");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "ropewalk_buffer_{name}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};

    use ropewalk_buffers::{Analyzer, Measure};

    use super::*;

    #[test]
    fn exposition_contains_no_addresses() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = client.local_addr().unwrap().port().to_string();
        let snapshot = Analyzer::new().unwrap().look(Measure::Window, |_, _| None).unwrap();
        let text = exposition(&snapshot, Some((1000, 900)));
        assert!(text.contains("\nropewalk_buffer_granted_bytes 900\n"), "{text}");
        assert!(text.contains("ropewalk_buffer_connections{direction=\"out\",owner=\"other\"} "));
        assert!(!text.contains("127.0.0.1") && !text.contains(&port));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let value = line.rsplit_once(' ').unwrap().1;
            assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0 && value.is_finite()), "{line}");
        }
    }
}
