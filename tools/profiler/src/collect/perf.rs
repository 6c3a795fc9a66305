//! Runs `perf record` during the transfer and evaluates it with `perf report`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::child::{self, Guarded, Place};
use super::files::Root;
use super::subsystems::subsystem;
use super::{Collector, Unavailable, keep};
use crate::profile::{CollectorName, FunctionShare, HostProfile, ProfilerShares, Share, ShareKind};
use crate::verdict::CauseKind;
use crate::verdict::function_kind;

/// Samples per second of each processor. It is no round number, so that sampling does not run in
/// step with timers; the cost is well below 1 %.
const FREQUENCY: &str = "99";
const GRACE: Duration = Duration::from_secs(10);
/// The command that perf runs once it takes samples: it creates the file `$1` and sleeps for the
/// length of the measurement.
const BEGIN: &str = r#": > "$1"; exec sleep "$2""#;
const REPORT: Duration = Duration::from_secs(120);
const LARGEST: u64 = 64 << 20;
/// Limit on the size of the recording. Without it, a host with many processors would fill its disk
/// in a day. At the limit perf ends, and the report covers what was recorded until then.
const MOST_DATA: &str = "--max-size=256M";
/// Limits on the functions and parts that are kept.
const FUNCTIONS: usize = 100;
const PARTS: usize = 100;
/// Separates the fields; perf replaces this character in names.
const BETWEEN: char = '^';

/// Samples all processors with perf.
pub(super) struct Perf {
    root: Root,
    longest: Duration,
    raw: bool,
    running: Option<(Guarded, Place, &'static str)>,
}

impl Perf {
    /// perf ends by itself after `longest` if Ropewalk was killed meanwhile.
    pub(super) fn new(root: Root, longest: Duration, raw: bool) -> Self {
        Self { root, longest, raw, running: None }
    }
}

impl Collector for Perf {
    fn name(&self) -> CollectorName {
        CollectorName::Perf
    }

    fn start(&mut self) -> Result<(), Unavailable> {
        let place = Place::new("ropewalk-perf-")?;
        let event = if counts_cycles()? { "cycles" } else { "cpu-clock" };
        let mut command = recording(event, knows_sizes(&help()?));
        let begun = place.file("begun");
        command.arg(place.file("perf")).args(["--", "sh", "-c", BEGIN, "sh"]);
        command.arg(&begun).arg(self.longest.as_secs().to_string());
        let mut perf = Guarded::start(command, Stdio::null())?;
        let deadline = Instant::now() + GRACE;
        // perf first looks at all processes; this must not become a part of the measurement.
        while !begun.exists() && Instant::now() < deadline {
            let step = Duration::from_millis(10);
            if perf.wait(step).map_err(|error| Unavailable::of("perf", &error))? {
                break;
            }
        }
        self.running = Some((perf, place, event));
        Ok(())
    }

    fn stop(&mut self) {
        if let Some((perf, ..)) = &mut self.running {
            // An error is not lost: it shows again when perf is waited for.
            let _ = perf.ask(Signal::INT);
        }
    }

    fn finish(self: Box<Self>, profile: &mut HostProfile) -> Result<String, Unavailable> {
        let Some((mut perf, place, event)) = self.running else {
            return Err(Unavailable::Failed("perf was not started".into()));
        };
        let failed = |error| Unavailable::of("perf", &error);
        let died = perf.ask(Signal::INT).map_err(failed)?;
        perf.stop(Signal::INT, GRACE).map_err(failed)?;
        let mut command = Command::new("perf");
        command.args(["report", "--stdio", "--no-children", "-g", "none"]);
        command.args(["-F", "overhead,sample,comm,dso,sym", "-t", &BETWEEN.to_string(), "-i"]);
        command.arg(place.file("perf"));
        let output = match child::run(command, REPORT, LARGEST) {
            Ok(output) if output.status.success() => output,
            _ if died => return Err(perf.failure("ended early")),
            Ok(output) => return Err(Unavailable::Failed(format!("perf report: {}", output.errors))),
            Err(error) => return Err(error),
        };
        if self.raw {
            keep(profile, "perf-report.txt", &output.text);
        }
        let mut shares = parse(&output.text, &drivers(&self.root))
            .ok_or_else(|| Unavailable::Failed("perf took no samples of programs".into()))?;
        if shares.event.is_empty() {
            shares.event = event.to_owned();
        }
        let detail = format!("{} samples of {}", shares.samples, shares.event);
        profile.profiler = Some(shares);
        if died { Err(perf.failure("ended early")) } else { Ok(detail) }
    }
}

/// The `perf record` command, up to the `-o` whose file name is missing.
fn recording(event: &str, bounded: bool) -> Command {
    let mut command = Command::new("perf");
    command.args(["record", "-q", "-a", "-F", FREQUENCY, "-e", event]);
    command.args(bounded.then_some(MOST_DATA)).arg("-o");
    command
}

/// Whether perf can limit the size of its recording: since perf 5.5.
fn knows_sizes(help: &str) -> bool {
    help.split_whitespace().any(|word| word == "--max-size")
}

/// The options of `perf record`, which it prints to standard error.
fn help() -> Result<String, Unavailable> {
    let mut command = Command::new("sh");
    command.args(["-c", "exec perf record -h 2>&1"]);
    Ok(child::run(command, REPORT, LARGEST)?.text)
}

/// Whether there is a hardware counter; virtual machines often have none.
fn counts_cycles() -> Result<bool, Unavailable> {
    let mut command = Command::new("perf");
    command.args(["stat", "-x", ",", "-e", "cycles", "--", "true"]);
    let output = child::run(command, REPORT, LARGEST)?;
    Ok(output.status.success()
        && !output.errors.contains("not supported")
        && !output.errors.contains("not counted"))
}

/// Names of kernel modules that drive devices.
fn drivers(root: &Root) -> BTreeSet<String> {
    let modules = root.names("sys/module").into_iter();
    modules.filter(|name| !root.names(&format!("sys/module/{name}/drivers")).is_empty()).collect()
}

/// Parses the output of `perf report -F overhead,sample,comm,dso,sym -t ^`; `drivers` are the
/// modules that drive devices. Returns `None` if all samples are of idle processors.
pub fn parse(report: &str, drivers: &BTreeSet<String>) -> Option<ProfilerShares> {
    let mut event = String::new();
    let mut lost = 0;
    let mut functions: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for line in report.lines() {
        if let Some(comment) = line.strip_prefix('#') {
            let quoted = comment.split_once("of event '").and_then(|(_, rest)| rest.split('\'').next());
            if let (Some(name), true) = (quoted, event.is_empty()) {
                event = name.chars().take(64).collect();
            }
            let number = comment.trim().strip_prefix("Total Lost Samples: ");
            lost += number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
            continue;
        }
        let fields: Vec<&str> = line.split(BETWEEN).map(str::trim).collect();
        let [_, count, program, object, symbol] = *fields.as_slice() else { continue };
        let Ok(count) = count.parse::<u64>() else { continue };
        // `[k] name` is in the kernel, `[.] name` in a program.
        let function = symbol.split_once("] ").map_or(symbol, |(_, name)| name);
        if !idles(program, function) {
            let sum = functions.entry((function, object, program)).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    let samples: u64 = functions.values().fold(0, |sum, &count| sum.saturating_add(count));
    if samples == 0 {
        return None;
    }
    let share = |count: u64| count as f64 / samples as f64;
    let mut parts: BTreeMap<(ShareKind, &str), u64> = BTreeMap::new();
    for (&(function, object, _), &count) in &functions {
        *parts.entry(part(function, object, drivers)).or_default() += count;
    }
    let mut shares: Vec<Share> = parts
        .into_iter()
        .map(|((kind, name), count)| Share { kind, name: short(name), share: share(count) })
        .collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares.truncate(PARTS);
    let mut functions: Vec<FunctionShare> = functions
        .into_iter()
        .map(|((function, object, program), count)| FunctionShare {
            function: short(function),
            object: short(object),
            program: short(program),
            share: share(count),
        })
        .collect();
    functions.sort_by(|a, b| b.share.total_cmp(&a.share));
    functions.truncate(FUNCTIONS);
    Some(ProfilerShares { event, samples, lost, shares, functions })
}

/// Shortens a name: names of templates may be long.
fn short(name: &str) -> String {
    name.chars().take(200).collect()
}

/// Whether a sample is of an idle processor. A processor without work runs `swapper`, in which
/// interrupts are served too.
fn idles(program: &str, function: &str) -> bool {
    let name = function.to_ascii_lowercase();
    program == "swapper" && ["idle", "halt", "mwait", "hlt"].iter().any(|part| name.contains(part))
}

fn part<'a>(function: &str, object: &'a str, drivers: &BTreeSet<String>) -> (ShareKind, &'a str) {
    let file = object.rsplit('/').next().unwrap_or(object);
    let bracketed = object.strip_prefix('[').and_then(|rest| rest.split(']').next());
    match bracketed {
        Some(name) if name.starts_with("kernel") || name.starts_with("guest.kernel") => {
            if function_kind(function) == Some(CauseKind::CpuInterrupt) {
                (ShareKind::Interrupt, "interrupts")
            } else {
                subsystem(function).unwrap_or((ShareKind::Kernel, "kernel"))
            }
        }
        // Code that the kernel provides to programs, and code for which perf knows no file.
        Some("vdso" | "unknown" | "heap" | "stack" | "vsyscall") => (ShareKind::Program, object),
        Some(name) if drivers.contains(name) => (ShareKind::Driver, name),
        Some(name) => (ShareKind::Module, name),
        None if file.contains(".so") => (ShareKind::Library, file),
        None => (ShareKind::Program, file),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Written by perf 6.1.
    const RECORDED: &str = include_str!("../../tests/samples/perf-report.txt");

    #[test]
    fn parse_when_given_a_recorded_report_sums_shares() {
        let shares = parse(RECORDED, &BTreeSet::new()).unwrap();
        assert_eq!(shares.event, "cpu-clock");
        // In 193 of its 270 samples the processor was idle.
        assert_eq!((shares.samples, shares.lost), (77, 0));
        assert!((shares.shares.iter().map(|part| part.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert_eq!(shares.functions[0].function, "LZ4_decompress_safe_withPrefix64k");
        assert!(shares.shares.iter().any(|part| part.kind == ShareKind::Kernel));
        assert!(shares.shares.iter().any(|part| part.kind == ShareKind::Library && part.name == "libc.so.6"));
    }

    #[test]
    fn recording_when_perf_knows_max_size_is_bounded() {
        let words = |bounded| {
            let command = recording("cycles", bounded);
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        // The usage as perf 6.1 and perf 5.4 print it.
        let new = "        --max-size <size>\n                          Limit the maximum size of the output file\n";
        let old = "        --mmap-flush <number>\n        --no-bpf-event    record bpf events\n";
        assert!(words(knows_sizes(new)).contains(&"--max-size=256M".to_owned()));
        assert_eq!(words(knows_sizes(old)).last().unwrap(), "-o");
        assert!(!words(knows_sizes(old)).iter().any(|word| word.contains("size")));
        // The installed perf also prints its usage, unless it is old. Without perf there is nothing
        // to check.
        if counts_cycles().is_ok() {
            assert!(help().unwrap().contains("--freq"));
        }
    }

    #[test]
    fn parse_assigns_parts_by_kind() {
        let text = "\
            # Samples: 10  of event 'cycles:P'\n\
            40.00%^4^server^[tg3]^[k] tg3_poll\n\
            20.00%^2^server^[nfs]^[k] nfs_writepages\n\
            10.00%^1^swapper^[kernel.kallsyms]^[k] net_rx_action\n\
            10.00%^1^server^[kernel.kallsyms]^[k] tcp_sendmsg\n\
            10.00%^1^server^libcrypto.so.3^[.] aesni_encrypt\n\
            10.00%^1^server^/usr/bin/ropewalk^[.] main\n\
            nonsense^x\n\n";
        let shares = parse(text, &["tg3".to_owned()].into()).unwrap();
        let of = |kind| {
            shares.shares.iter().find(|part| part.kind == kind).map(|part| (part.name.as_str(), part.share))
        };
        assert_eq!(of(ShareKind::Driver), Some(("tg3", 0.4)));
        assert_eq!(of(ShareKind::Module), Some(("nfs", 0.2)));
        assert_eq!(of(ShareKind::Interrupt), Some(("interrupts", 0.1)));
        assert_eq!(of(ShareKind::Kernel), Some(("kernel", 0.1)));
        assert_eq!(of(ShareKind::Library), Some(("libcrypto.so.3", 0.1)));
        assert_eq!(of(ShareKind::Program), Some(("ropewalk", 0.1)));
        assert_eq!(shares.event, "cycles:P");
        // A kernel with the driver built in.
        let text = "50%^1^server^[kernel.kallsyms]^[k] tg3_tx\n50%^1^server^[kernel.kallsyms]^[k] tcp_ack\n";
        let shares = parse(text, &BTreeSet::new()).unwrap().shares;
        assert!(shares.iter().any(|part| part.kind == ShareKind::Driver && part.name == "tg3"), "{shares:?}");
        assert_eq!(parse("", &BTreeSet::new()), None);
    }
}
