//! The runs of a sweep.

use std::collections::BTreeMap;

use anyhow::anyhow;
use ropewalk_client::{Auto, Location, Options, Pair};
use ropewalk_profiler::profile::{Baselines, Profile, Workload};
use ropewalk_profiler::sweep::{Curve, CurvePoint, Knob, Sweeps, Way};

use super::knob::{Value, What};
use super::size::bdp;
use crate::exit::usage;
use crate::profiling::Kind;
use crate::units;

/// Shortest meaningful run in seconds: TCP finds its rate in a few round trips of up to some
/// hundred milliseconds.
const SHORT: f64 = 3.0;

/// The requested sweep.
pub(crate) struct Design<'a> {
    pub(crate) knobs: &'a [(Knob, Vec<Value>)],
    pub(crate) rounds: u32,
    /// Whether the reverse direction is measured as well.
    pub(crate) both: bool,
    /// The named pair; if `kind` is set, it determines what is copied instead.
    pub(crate) pair: &'a Pair,
    pub(crate) kind: Option<Kind>,
    /// Amount of data from memory.
    pub(crate) size: u64,
    pub(crate) options: &'a Options,
}

/// All runs.
pub(crate) struct Plan {
    /// Points without runs.
    pub(super) sweeps: Sweeps,
    /// The transfer of each point: curve, point, and pair with options. Refused points have none.
    pub(super) trials: Vec<Trial>,
}

pub(super) struct Trial {
    pub(super) curve: usize,
    pub(super) point: usize,
    pub(super) pair: Pair,
    pub(super) options: Options,
}

impl Design<'_> {
    /// # Errors
    /// The sweep is not possible, or would destroy data.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.kind.is_some() && self.knobs.iter().any(|(knob, _)| *knob == Knob::Workload) {
            return Err(usage("--sweep workload and --workload exclude each other"));
        }
        if self.options.dry_run || self.options.selection.sync.is_some() {
            return Err(usage("--sweep repeats the same copy: not with --dry-run or --sync"));
        }
        let other = self.knobs.iter().any(|(knob, _)| *knob != Knob::Workload);
        if self.both && other {
            self.way(Way::Back, self.kind).map_err(usage)?;
        }
        Ok(())
    }

    /// The ends in this direction. Data at the source is never overwritten.
    fn way(&self, way: Way, kind: Option<Kind>) -> Result<Pair, String> {
        if way == Way::Forth {
            return Ok(self.pair.clone());
        }
        let writes = kind.is_none_or(Kind::writes_disk);
        if writes && !matches!(self.pair.source, Location::Measure { .. }) {
            return Err(format!(
                "the reverse direction would overwrite {}: only mem-mem and disk-mem work in both \
                 directions",
                self.pair.source.in_events(self.options)
            ));
        }
        Ok(Pair {
            source: self.pair.destination.clone(),
            destination: self.pair.source.clone(),
            window: None,
        })
    }

    fn transfer(&self, way: Way, kind: Option<Kind>) -> anyhow::Result<(Pair, Options)> {
        let pair = self.way(way, kind).map_err(|error| anyhow!(error))?;
        Ok(match kind {
            Some(kind) => (kind.pair(&pair, self.size, self.options)?, kind.options(self.options)),
            None => (pair, self.options.clone()),
        })
    }
}

impl Plan {
    /// Makes the plan from the first run, whose `profile` contains the round trip, and the streams
    /// and files that the program chose: they stay constant while another setting changes.
    /// `refusals` are the buffer sizes that an end refuses.
    pub(crate) fn new(
        design: &Design<'_>,
        profile: &Profile,
        baselines: &Baselines,
        refusals: &dyn Fn(&[u64]) -> BTreeMap<u64, String>,
    ) -> Self {
        let mut plan =
            Self { sweeps: Sweeps { rounds: design.rounds, ..Sweeps::default() }, trials: Vec::new() };
        let bdp = bdp(profile, baselines, design.options.tuning.capacity);
        let numbers = |values: &[Value]| -> Vec<u64> {
            let of = |value: &Value| match value.what {
                What::Number(bytes) => Some(bytes),
                What::Bdp => bdp.as_ref().ok().map(|one| one.0),
                What::Auto | What::Kind(_) => None,
            };
            values.iter().filter_map(of).collect()
        };
        for (knob, values) in design.knobs {
            let refused = match knob {
                Knob::Buffer => refusals(&numbers(values)),
                _ => BTreeMap::new(),
            };
            let ways: &[Way] = if design.both { &[Way::Forth, Way::Back] } else { &[Way::Forth] };
            for &way in ways {
                plan.curve(design, &profile.workload, (*knob, way), values, bdp.as_ref(), &refused);
            }
        }
        let runs = plan.trials.len() * design.rounds as usize;
        plan.sweeps.runs_wanted = u32::try_from(runs).unwrap_or(u32::MAX);
        plan
    }

    /// An announcement of the sweep, as far as the first run permits.
    pub(crate) fn announced(&self, first: &Workload) -> String {
        let Sweeps { rounds, runs_wanted, .. } = self.sweeps;
        let mut text = format!(
            "the first run took {}; {} follow: {} of {} each, in random order",
            units::time(first.seconds),
            units::count(runs_wanted.into(), "run"),
            units::count(rounds.into(), "round"),
            units::count(self.trials.len() as u64, "setting"),
        );
        if first.seconds < SHORT {
            text += ". Such short runs mainly measure the start of connections: copy more data";
        }
        text
    }

    fn curve(
        &mut self,
        design: &Design<'_>,
        first: &Workload,
        (knob, way): (Knob, Way),
        values: &[Value],
        bdp: Result<&(u64, String), &String>,
        refused: &BTreeMap<u64, String>,
    ) {
        let mut curve = Curve { knob, way, held: held(knob, first), ..Curve::default() };
        // The same for all points, unless the sweep varies kinds; it may ask servers.
        let common = (knob != Knob::Workload).then(|| design.transfer(way, design.kind));
        for value in values {
            let mut point = CurvePoint { name: value.name.clone(), ..CurvePoint::default() };
            point.value = match value.what {
                What::Number(number) => Some(number),
                What::Bdp => bdp.ok().map(|one| one.0),
                What::Auto | What::Kind(_) => None,
            };
            if let (What::Bdp, Ok((_, why))) = (value.what, bdp) {
                curve.held += &format!("; bdp is {why}");
            }
            let own;
            let transfer = match (&common, value.what) {
                (Some(common), _) => common,
                (None, What::Kind(kind)) => {
                    own = design.transfer(way, Some(kind));
                    &own
                }
                (None, _) => continue,
            };
            let cannot = match (value.what, bdp) {
                (What::Bdp, Err(why)) => Some(why.clone()),
                _ => point.value.and_then(|bytes| refused.get(&bytes).cloned()),
            };
            match (transfer, cannot) {
                (_, Some(why)) => point.refused = Some(why),
                (Err(error), None) => point.refused = Some(crate::message(error)),
                (Ok((pair, options)), None) => {
                    let mut options = options.clone();
                    hold(&mut options, first);
                    set(&mut options, knob, &point, value.what);
                    if curve.description.is_empty() && knob != Knob::Workload {
                        let place = |location: &Location| location.in_events(&options);
                        let text = format!("{} to {}", place(&pair.source), place(&pair.destination));
                        curve.description = text.chars().take(1000).collect();
                    }
                    let (curve, point) = (self.sweeps.curves.len(), curve.points.len());
                    self.trials.push(Trial { curve, point, pair: pair.clone(), options });
                }
            }
            curve.points.push(point);
        }
        self.sweeps.curves.push(curve);
    }
}

/// Fixes what the program chose in the first run; no transfer resumes an earlier one.
fn hold(options: &mut Options, first: &Workload) {
    if options.tuning.streams == Auto::Auto {
        options.tuning.streams = Auto::Set(first.streams.max(1));
    }
    if options.tuning.files == Auto::Auto {
        options.tuning.files = Auto::Set(first.files_in_flight.max(1));
    }
    options.recovery.resume = false;
}

fn set(options: &mut Options, knob: Knob, point: &CurvePoint, what: What) {
    let number = |most: u32| u32::try_from(point.value.unwrap_or(1)).unwrap_or(most).max(1);
    let automatic = what == What::Auto;
    match knob {
        Knob::Buffer => options.tuning.tcp_buffer = point.value,
        Knob::Streams if automatic => options.tuning.streams = Auto::Auto,
        Knob::Streams => options.tuning.streams = Auto::Set(number(u32::MAX)),
        Knob::Files if automatic => options.tuning.files = Auto::Auto,
        Knob::Files => options.tuning.files = Auto::Set(number(u32::MAX)),
        Knob::Block => options.data.block_size = number(u32::MAX) as usize,
        Knob::Workload => {}
    }
}

/// A text of the constant settings.
fn held(knob: Knob, first: &Workload) -> String {
    let parts = [
        (Knob::Streams, units::count(first.streams.max(1).into(), "stream")),
        (Knob::Files, format!("{} at a time", units::count(first.files_in_flight.max(1).into(), "file"))),
        (
            Knob::Block,
            first.block_size.map_or_else(String::new, |size| format!("blocks of {}", units::size(size))),
        ),
        (
            Knob::Buffer,
            first.socket_buffer.map_or_else(
                || "buffers left to the kernel".to_owned(),
                |size| format!("buffers of {}", units::size(size)),
            ),
        ),
    ];
    let parts = parts.into_iter().filter(|(own, text)| *own != knob && !text.is_empty());
    parts.map(|(_, text)| text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_client::parse_location;

    use super::super::Vary;
    use super::*;

    fn pair(source: &str, destination: &str) -> Pair {
        let place = |text: &str| parse_location(text).unwrap();
        Pair { source: place(source), destination: place(destination), window: None }
    }

    fn knobs(given: &[&str]) -> Vec<(Knob, Vec<Value>)> {
        let all: Vec<Vary> = given.iter().map(|text| text.parse().unwrap()).collect();
        Vary::expand(&all).unwrap()
    }

    fn design<'a>(
        knobs: &'a [(Knob, Vec<Value>)],
        pair: &'a Pair,
        options: &'a Options,
        both: bool,
    ) -> Design<'a> {
        Design { knobs, rounds: 3, both, pair, kind: None, size: 1 << 20, options }
    }

    #[test]
    fn plan_changes_one_setting_at_a_time() {
        let knobs = knobs(&["streams=1,auto,8", "buffer=auto,bdp,64K,1M", "block=64K"]);
        let (pair, options) = (pair("zero:1M", "null:"), Options::default());
        let first = Profile {
            workload: Workload {
                streams: 3,
                files_in_flight: 2,
                bytes: 1000,
                seconds: 1.0,
                ..Workload::default()
            },
            ..Profile::default()
        };
        let refusals = |asked: &[u64]| {
            assert_eq!(asked, [65536, 1 << 20]);
            BTreeMap::from([(1 << 20, "501 too large".to_owned())])
        };
        let plan =
            Plan::new(&design(&knobs, &pair, &options, false), &first, &Baselines::default(), &refusals);
        let curves = &plan.sweeps.curves;
        assert_eq!(curves.iter().map(|curve| curve.points.len()).collect::<Vec<_>>(), [3, 4, 1]);
        // No round trip, and a refusal.
        assert!(curves[1].points[1].refused.as_ref().unwrap().contains("round trip"));
        assert_eq!(curves[1].points[3].refused.as_deref(), Some("501 too large"));
        assert_eq!(plan.sweeps.runs_wanted, 18);
        let set: Vec<_> = plan
            .trials
            .iter()
            .map(|trial| {
                (trial.options.tuning.streams, trial.options.tuning.tcp_buffer, trial.options.data.block_size)
            })
            .collect();
        let (three, usual) = (Auto::Set(3), options.data.block_size);
        assert_eq!(
            set,
            [
                (Auto::Set(1), None, usual),
                (Auto::Auto, None, usual),
                (Auto::Set(8), None, usual),
                (three, None, usual),
                (three, Some(65536), usual),
                (three, None, 65536),
            ]
        );
        assert!(
            plan.trials
                .iter()
                .all(|trial| trial.options.tuning.files == Auto::Set(2) && !trial.options.recovery.resume)
        );
        assert!(curves[0].held.starts_with("2 files at a time"), "{}", curves[0].held);
        assert!(!curves[0].held.contains("stream") && curves[1].held.starts_with("3 streams"));
    }

    #[test]
    fn plan_refuses_to_overwrite_the_source() {
        let options = Options::default();
        let streams = knobs(&["streams"]);
        let (files, zeros) = (pair("/etc/hosts", "ftp://h/f"), pair("zero:1M", "ftp://h/f"));
        let error = design(&streams, &files, &options, true).check().unwrap_err();
        assert!(error.to_string().contains("would overwrite /etc/hosts"), "{error}");
        design(&streams, &files, &options, false).check().unwrap();
        design(&streams, &zeros, &options, true).check().unwrap();
        let memory = Design { kind: Some(Kind::DiskMem), ..design(&streams, &files, &options, true) };
        memory.check().unwrap();
        assert!(Design { kind: Some(Kind::MemDisk), ..memory }.check().is_err());

        let back = Plan::new(
            &design(&streams, &zeros, &options, true),
            &Profile::default(),
            &Baselines::default(),
            &|_| BTreeMap::new(),
        );
        assert_eq!(back.sweeps.curves[1].way, Way::Back);
        let trial = back.trials.iter().find(|trial| trial.curve == 1).unwrap();
        assert_eq!((&trial.pair.source, &trial.pair.destination), (&zeros.destination, &zeros.source));
    }

    #[test]
    fn plan_refuses_contradictory_options() {
        let pair = pair("zero:1M", "null:");
        let options = Options::default().with(|o| o.dry_run = true);
        let streams = knobs(&["streams"]);
        assert!(design(&streams, &pair, &options, false).check().is_err());
        let options = Options::default();
        let kinds = knobs(&["workload"]);
        let twice = Design { kind: Some(Kind::MemMem), ..design(&kinds, &pair, &options, false) };
        assert!(twice.check().unwrap_err().to_string().contains("exclude each other"));
    }
}
