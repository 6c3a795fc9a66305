//! Samples the host with `sar`, and reads the recording with `sadf`. Both are programs of sysstat.

use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::child::{self, Guarded, Place};
use super::files::Root;
use super::proc::{MOST, MOST_SAMPLES, memory};
use super::{Collector, Unavailable, keep, keep_file};
use crate::profile::{
    CollectorName, DiskUse, HostProfile, InterfaceUse, MemoryUse, Processor, SystemSample, TcpUse,
};

const GRACE: Duration = Duration::from_secs(5);
const CONVERT: Duration = Duration::from_secs(60);
const LARGEST: u64 = 256 << 20;
/// The activities: processors, memory, swap, disks by name, network with errors, TCP, switches,
/// load, interrupts.
const WHAT: [&str; 14] =
    ["-u", "ALL", "-P", "ALL", "-r", "ALL", "-S", "-d", "-n", "DEV,EDEV,TCP,ETCP", "-w", "-q", "-I", "SUM"];

/// Runs `sar`; at the end, `sadf` converts its file to JSON.
pub(super) struct Sysstat {
    seconds: u64,
    longest: u64,
    raw: bool,
    running: Option<(Guarded, Place)>,
}

impl Sysstat {
    /// Samples once every `interval`, in whole seconds because `sar` knows no others. `sar` ends by
    /// itself after `longest` if Ropewalk was killed meanwhile.
    pub(super) fn new(interval: Duration, longest: Duration, raw: bool) -> Self {
        Self { seconds: interval.as_secs().max(1), longest: longest.as_secs(), raw, running: None }
    }
}

impl Collector for Sysstat {
    fn name(&self) -> CollectorName {
        CollectorName::Sysstat
    }

    fn start(&mut self) -> Result<(), Unavailable> {
        let place = Place::new("ropewalk-sar-")?;
        let mut command = Command::new("sar");
        command.args(WHAT).arg("-o").arg(place.file("sar"));
        command.arg(self.seconds.to_string()).arg((self.longest / self.seconds).max(1).to_string());
        self.running = Some((Guarded::start(command, Stdio::null())?, place));
        Ok(())
    }

    fn stop(&mut self) {
        if let Some((sar, _)) = &mut self.running {
            // An error is not lost: it shows again when `sar` is waited for.
            let _ = sar.ask(Signal::INT);
        }
    }

    fn finish(self: Box<Self>, profile: &mut HostProfile) -> Result<String, Unavailable> {
        let seconds = self.seconds as f64;
        let Some((mut sar, place)) = self.running else {
            return Err(Unavailable::Failed("sar was not started".into()));
        };
        let died = sar.ask(Signal::INT).map_err(|error| Unavailable::of("sar", &error))?;
        sar.stop(Signal::INT, GRACE).map_err(|error| Unavailable::of("sar", &error))?;
        let mut command = Command::new("sadf");
        command.arg("-j").arg(place.file("sar")).arg("--").args(WHAT);
        let output = child::run(command, CONVERT, LARGEST);
        if died && !matches!(&output, Ok(output) if output.status.success()) {
            return Err(sar.failure("ended early"));
        }
        let output = output?;
        if self.raw {
            keep_file(profile, "sar", &place.file("sar"));
            keep(profile, "sadf.json", &output.text);
        }
        if !output.status.success() {
            return Err(Unavailable::Failed(format!("sadf: {}", output.errors)));
        }
        let (version, mut samples) = parse(&output.text, seconds)?;
        // sysstat does not report the size of the memory.
        let total = memory(&Root::default().read("proc/meminfo").unwrap_or_default()).total;
        samples.iter_mut().for_each(|sample| sample.memory.total = total);
        profile.system = samples;
        if died { Err(sar.failure("ended early")) } else { Ok(version) }
    }
}

/// Parses the output of `sadf -j`. Returns the version of the host's kernel, as a description, and
/// the samples.
///
/// # Errors
/// The text is not such a file.
pub fn parse(json: &str, interval: f64) -> Result<(String, Vec<SystemSample>), Unavailable> {
    let nonsense = |what: &str| Unavailable::Failed(format!("sadf did not write what is expected: {what}"));
    let all: Value = serde_json::from_str(json).map_err(|error| nonsense(&error.to_string()))?;
    let host = &all["sysstat"]["hosts"][0];
    let rows = host["statistics"].as_array().ok_or_else(|| nonsense("no statistics"))?;
    let mut time = 0.0;
    let mut samples = Vec::new();
    for row in rows.iter().take(MOST_SAMPLES) {
        let seconds =
            row["timestamp"]["interval"].as_f64().filter(|&seconds| seconds > 0.0).unwrap_or(interval);
        time += seconds;
        samples.push(sample(row, time, seconds));
    }
    Ok((format!("sysstat of {}", host["release"].as_str().unwrap_or("an unknown kernel")), samples))
}

fn sample(row: &Value, time: f64, seconds: f64) -> SystemSample {
    let network = &row["network"];
    let (tcp, errors) = (&network["net-tcp"], &network["net-etcp"]);
    SystemSample {
        time,
        seconds,
        processors: list(&row["cpu-load"]).map(processor).collect(),
        memory: memory_use(&row["memory"]),
        disks: list(&row["disk"]).map(disk).collect(),
        interfaces: list(&network["net-dev"])
            .map(|interface| {
                let name = text(interface, "iface");
                let errors = list(&network["net-edev"]).find(|errors| text(errors, "iface") == name);
                interface_use(interface, errors.unwrap_or(&Value::Null))
            })
            .collect(),
        tcp: TcpUse {
            received: number(tcp, "iseg"),
            sent: number(tcp, "oseg"),
            retransmitted: number(errors, "retrans"),
        },
        context_switches: number(&row["process-and-context-switch"], "cswch"),
        interrupts: list(&row["interrupts"])
            .find(|row| text(row, "intr") == "sum")
            .map_or(0.0, |row| number(row, "all")),
    }
}

fn processor(row: &Value) -> Processor {
    let share = |name| number(row, name) / 100.0;
    Processor {
        name: text(row, "cpu").to_owned(),
        // Here, unlike in /proc/stat, user time does not contain the time of guests.
        user: share("usr") + share("nice") + share("guest") + share("gnice"),
        system: share("sys"),
        iowait: share("iowait"),
        irq: share("irq"),
        softirq: share("soft"),
        steal: share("steal"),
        idle: share("idle"),
    }
}

fn memory_use(row: &Value) -> MemoryUse {
    let bytes = |name| (number(row, name) * 1024.0) as u64;
    let swap_used = bytes("swpused");
    MemoryUse {
        total: 0,
        available: bytes("avail"),
        cached: bytes("cached"),
        dirty: bytes("dirty"),
        swap_total: swap_used + bytes("swpfree"),
        swap_used,
    }
}

fn disk(row: &Value) -> DiskUse {
    DiskUse {
        name: text(row, "disk-device").to_owned(),
        transfers: number(row, "tps"),
        read: number(row, "rkB") * 1024.0,
        written: number(row, "wkB") * 1024.0,
        queue: number(row, "aqu-sz"),
        wait: number(row, "await") / 1000.0,
        utilisation: (number(row, "util-percent") / 100.0).min(1.0),
    }
}

fn interface_use(row: &Value, errors: &Value) -> InterfaceUse {
    InterfaceUse {
        name: text(row, "iface").to_owned(),
        received_packets: number(row, "rxpck"),
        sent_packets: number(row, "txpck"),
        received_bytes: number(row, "rxkB") * 1024.0,
        sent_bytes: number(row, "txkB") * 1024.0,
        errors: number(errors, "rxerr") + number(errors, "txerr"),
        dropped: number(errors, "rxdrop") + number(errors, "txdrop"),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten().take(MOST)
}

fn text<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_default()
}

/// A number of a row. It is 0 if it is missing or if a counter went backwards.
fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or(0.0).max(0.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Written by sysstat 12.6.1.
    const RECORDED: &str = include_str!("../../tests/samples/sadf.json");

    #[test]
    fn parse_when_given_a_recorded_file_reads_samples() {
        let (host, samples) = parse(RECORDED, 1.0).unwrap();
        assert!(host.contains("6."), "{host}");
        let [first, second] = samples.as_slice() else { panic!("{}", samples.len()) };
        assert_eq!((first.time, second.time, second.seconds), (1.0, 2.0, 1.0));
        let all = &first.processors[0];
        assert_eq!((all.name.as_str(), all.user, all.system, all.idle), ("all", 0.29, 0.085, 0.6));
        assert_eq!((first.processors.len(), first.processors[1].name.as_str()), (3, "0"));
        let disk = &first.disks[0];
        assert_eq!((disk.name.as_str(), disk.read, disk.utilisation), ("vda", 34608.0 * 1024.0, 0.048));
        let eth0 = first.interfaces.iter().find(|interface| interface.name == "eth0").unwrap();
        assert_eq!((eth0.received_packets, eth0.sent_packets), (24.0, 26.0));
        assert_eq!(first.memory.available, 24_161_164 * 1024);
        assert_eq!((first.tcp.received, first.context_switches, first.interrupts), (21.0, 1401.0, 1186.0));
    }

    #[test]
    fn parse_when_not_sadf_fails_and_takes_gaps_as_zero() {
        for text in ["", "{}", "[]", r#"{"sysstat":{"hosts":[]}}"#] {
            assert!(parse(text, 1.0).is_err(), "{text}");
        }
        let odd = r#"{"sysstat":{"hosts":[{"statistics":[{"cpu-load":[{"cpu":7,"usr":"x","sys":-3}]}]}]}}"#;
        let (_, samples) = parse(odd, 2.0).unwrap();
        assert_eq!((samples[0].time, samples[0].processors[0].system), (2.0, 0.0));
    }
}
