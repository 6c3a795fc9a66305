//! One measurement of one host, from its start to its end: starts all collectors, stops them, and
//! assembles their results into a [`HostProfile`].

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::facts::{self, Root};
use super::owners::Owners;
use super::perf::Perf;
use super::proc::Proc;
use super::programs::Programs;
use super::sysstat::Sysstat;
use super::tcp::{Sockets, Tcp};
use super::{Collector, Unavailable, report};
use crate::profile::{CollectorName, CollectorReport, CollectorState, HostProfile, Role, SCHEMA};

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct Options {
    pub role: Role,
    /// After this time, measuring programs end by themselves if Ropewalk was killed meanwhile.
    pub longest: Duration,
    /// Sampling interval of processors, memory, disks and network.
    pub interval: Duration,
    /// Use sysstat if it is installed, in addition to /proc.
    pub sysstat: bool,
    /// Use perf if it is installed and allowed.
    pub perf: bool,
    /// The connections that are sampled.
    pub sockets: Sockets,
    /// The processes that move the data.
    pub programs: Vec<u32>,
    /// Paths whose file systems matter.
    pub paths: Vec<PathBuf>,
    /// Keep the tools' own files.
    pub raw: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            role: Role::Source,
            longest: Duration::from_secs(24 * 3600),
            interval: Duration::from_secs(1),
            sysstat: true,
            perf: true,
            sockets: Sockets::default(),
            programs: Vec::new(),
            paths: Vec::new(),
            raw: false,
        }
    }
}

/// A running measurement. Dropping it ends everything that it started.
pub struct Collection {
    /// `sysstat` comes after `proc`: its figures replace those of `proc`.
    running: Vec<Box<dyn Collector>>,
    profile: HostProfile,
    began: Instant,
}

impl Collection {
    /// Starts all collectors that can be started.
    pub fn start(options: &Options) -> Self {
        let root = Root::default();
        let facts = facts::gather(&root, &options.paths);
        let tcp = Tcp::new(options.sockets.clone());
        let carrying = tcp.carrying();
        let mut wanted: Vec<Box<dyn Collector>> =
            vec![Box::new(Proc::new(root.clone(), options.interval)), Box::new(tcp)];
        if options.sysstat {
            wanted.push(Box::new(Sysstat::new(options.interval, options.longest, options.raw)));
        }
        if options.perf {
            wanted.push(Box::new(Perf::new(root.clone(), options.longest, options.raw)));
        }
        wanted.push(if options.programs.is_empty() {
            Box::new(Owners::new(root, carrying))
        } else {
            Box::new(Programs::new(root, &options.programs))
        });
        let facts_report = CollectorReport {
            name: CollectorName::Facts,
            state: CollectorState::Used,
            detail: String::new(),
        };
        Self::start_all(
            wanted,
            HostProfile {
                schema: SCHEMA,
                role: options.role,
                facts,
                collectors: vec![facts_report],
                ..HostProfile::default()
            },
        )
    }

    fn start_all(wanted: Vec<Box<dyn Collector>>, mut profile: HostProfile) -> Self {
        // The clock is after the epoch, unless it is very wrong.
        profile.started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let began = Instant::now();
        let mut running = Vec::new();
        for mut collector in wanted {
            match collector.start() {
                Ok(()) => running.push(collector),
                Err(error) => profile.collectors.push(report(collector.name(), &Err(error))),
            }
        }
        Self { running, profile, began }
    }

    /// Ends the measurement and returns the results.
    pub fn finish(mut self) -> HostProfile {
        let mut profile = self.profile;
        profile.measured = Some(self.began.elapsed().as_secs_f64());
        // Reading the output of the tools takes some time. All collectors stop first, so that none
        // of this work is counted as the transfer's.
        self.running.iter_mut().for_each(|collector| collector.stop());
        for collector in self.running {
            let name = collector.name();
            let before = std::mem::take(&mut profile.system);
            let result: Result<String, Unavailable> = collector.finish(&mut profile);
            // Only proc and sysstat fill this field. If sysstat has no samples or failed halfway,
            // the samples of proc are kept.
            if profile.system.is_empty() || result.is_err() && !before.is_empty() {
                profile.system = before;
            }
            profile.collectors.push(report(name, &result));
        }
        profile
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::profile::SystemSample;

    struct Fake {
        start: Result<(), Unavailable>,
        finish: Result<String, Unavailable>,
        samples: usize,
        /// How many of all collectors have stopped.
        stopped: Arc<AtomicUsize>,
    }

    impl Collector for Fake {
        fn name(&self) -> CollectorName {
            CollectorName::Sysstat
        }

        fn start(&mut self) -> Result<(), Unavailable> {
            self.start.clone()
        }

        fn stop(&mut self) {
            self.stopped.fetch_add(1, Ordering::Relaxed);
        }

        fn finish(self: Box<Self>, profile: &mut HostProfile) -> Result<String, Unavailable> {
            profile.system =
                vec![SystemSample { time: self.samples as f64, ..SystemSample::default() }; self.samples];
            self.finish.map(|text| format!("{text}{} stopped", self.stopped.load(Ordering::Relaxed)))
        }
    }

    fn run(fakes: Vec<Fake>) -> HostProfile {
        let fakes = fakes.into_iter().map(|fake| Box::new(fake) as Box<dyn Collector>).collect();
        Collection::start_all(fakes, HostProfile::default()).finish()
    }

    fn fake(samples: usize) -> Fake {
        Fake { start: Ok(()), finish: Ok(String::new()), samples, stopped: Arc::default() }
    }

    #[test]
    fn collection_when_a_collector_fails_reports_it_and_keeps_the_rest() {
        let denied = Fake { start: Err(Unavailable::Denied("no".into())), ..fake(9) };
        let died = Fake { finish: Err(Unavailable::Failed("died".into())), ..fake(0) };
        let profile = run(vec![denied, fake(3), died]);
        let states: Vec<_> = profile.collectors.iter().map(|report| report.state).collect();
        assert_eq!(states, [CollectorState::Denied, CollectorState::Used, CollectorState::Failed]);
        assert_eq!((profile.system.len(), profile.collectors[0].detail.as_str()), (3, "no"));
    }

    #[test]
    fn collection_finish_stops_all_collectors_first() {
        let stopped = Arc::new(AtomicUsize::new(0));
        let all = (0..3).map(|_| Fake { stopped: Arc::clone(&stopped), ..fake(1) });
        let profile = run(all.collect());
        assert_eq!(profile.collectors[0].detail, "3 stopped");
    }

    #[test]
    fn collection_when_two_fill_system_keeps_the_later_complete_one() {
        assert_eq!(run(vec![fake(3), fake(5)]).system.len(), 5);
        // A collector that failed halfway does not replace complete samples.
        let died = Fake { finish: Err(Unavailable::Failed("died".into())), ..fake(1) };
        assert_eq!(run(vec![fake(3), died]).system.len(), 3);
        let died = Fake { finish: Err(Unavailable::Failed("died".into())), ..fake(1) };
        assert_eq!(run(vec![died]).system.len(), 1);
    }
}
