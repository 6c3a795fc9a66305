//! The data of sweeps as it is stored in a profile.

use serde::{Deserialize, Serialize};

use super::spread::outliers;
use crate::profile::{Check, ProfileError, Role, Share, SweepPoint, share, wrong};

/// All sweeps of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sweeps {
    /// Number of rounds that were requested. Each round has every point once.
    pub rounds: u32,
    /// Number of runs that were requested.
    pub runs_wanted: u32,
    /// Seed of the random numbers for the order of the runs in each round.
    #[serde(default)]
    pub seed: u32,
    /// The reason if the sweep ended before all runs were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken_off: Option<String>,
    #[serde(default)]
    pub curves: Vec<Curve>,
}

/// One setting varied, with all others unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Curve {
    pub knob: Knob,
    #[serde(default)]
    pub way: Way,
    /// Descriptions for people: source and destination, and the other settings.
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub held: String,
    /// In the order in which they were given.
    pub points: Vec<CurvePoint>,
}

/// The setting that is varied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// Socket buffers at both ends, in bytes.
    Buffer,
    /// Connections for each file.
    #[default]
    Streams,
    /// Payload of a block, in bytes.
    Block,
    /// Number of files in flight at the same time.
    Files,
    /// The kind of source and destination.
    Workload,
}

/// The direction of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// From the profile's source to its destination.
    #[default]
    Forth,
    Back,
}

/// One value of the setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CurvePoint {
    /// As it was given: `auto`, `bdp`, `64K`.
    pub name: String,
    /// Streams, files, or bytes. Absent if the program or the kernel chooses the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
    /// The side that refused the value, and the reason; there are no runs then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Rates of the runs that ended well and are no outliers.
    #[serde(default)]
    pub rate: Spread,
    /// Rates of all runs that ended well, if some of them are outliers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with_outliers: Option<Spread>,
    /// The hosts, source first: means over the same runs as `rate`.
    #[serde(default)]
    pub ends: Vec<EndLoad>,
    /// In the order of time.
    #[serde(default)]
    pub runs: Vec<CurveRun>,
}

/// One transfer of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CurveRun {
    /// Start of the run, in seconds since the profile's time zero.
    pub time: f64,
    /// Counted from 1.
    pub round: u32,
    /// Bytes of payload.
    pub bytes: u64,
    pub seconds: f64,
    pub bytes_per_second: f64,
    /// Whether the rate is far from the other runs of the point.
    #[serde(default)]
    pub outlier: bool,
    /// The error if the run failed. A failed run does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Rates of repeated runs, in bytes per second. All are 0 without runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Spread {
    pub runs: u32,
    pub mean: f64,
    pub median: f64,
    /// Standard deviation (n - 1); 0 for one run.
    pub deviation: f64,
    /// Half-width of the 95 % confidence interval of the mean (Student's t); absent for one run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<f64>,
    pub least: f64,
    pub most: f64,
}

/// The load of a host at one point: means over its runs. Shares of processor time refer to all
/// processors together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EndLoad {
    pub role: Role,
    #[serde(default)]
    pub host: String,
    /// Number of runs in which the load was measured.
    pub runs: u32,
    /// Share of the processors' time spent working: the mean, and the highest of one sample.
    pub load: f64,
    pub peak: f64,
    /// Share of the processors' time in the kernel, including interrupts.
    pub kernel: f64,
    /// Per second, all devices together.
    pub disk_transfers: f64,
    pub disk_read: f64,
    pub disk_written: f64,
    pub packets_received: f64,
    pub packets_sent: f64,
    pub retransmitted: f64,
    /// Largest buffers of its data connections, in bytes as the kernel counts: the effect of the
    /// requested size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<u64>,
    /// The location of the work, as shares of it; largest first.
    #[serde(default)]
    pub shares: Vec<Share>,
}

impl CurvePoint {
    /// Marks outliers and computes the figures from the runs. `loads` has the loads of the runs in
    /// the same order; it may be shorter if nothing was measured.
    pub fn sum_up(&mut self, loads: &[Vec<EndLoad>]) {
        let good: Vec<usize> = (0..self.runs.len()).filter(|&at| self.runs[at].failed.is_none()).collect();
        let rates: Vec<f64> = good.iter().map(|&at| self.runs[at].bytes_per_second).collect();
        let marked = outliers(&rates);
        for (&at, &marked) in good.iter().zip(&marked) {
            self.runs[at].outlier = marked;
        }
        let kept: Vec<f64> =
            rates.iter().zip(&marked).filter(|(_, marked)| !**marked).map(|(rate, _)| *rate).collect();
        self.rate = Spread::of(&kept);
        self.with_outliers = (kept.len() < rates.len()).then(|| Spread::of(&rates));
        let counted = good.iter().zip(&marked).filter(|(_, marked)| !**marked).map(|(at, _)| *at);
        self.ends = EndLoad::mean(counted.filter_map(|at| loads.get(at)).flatten());
    }

    pub fn outliers(&self) -> impl Iterator<Item = &CurveRun> {
        self.runs.iter().filter(|run| run.outlier)
    }

    pub fn failures(&self) -> impl Iterator<Item = &CurveRun> {
        self.runs.iter().filter(|run| run.failed.is_some())
    }

    /// Rate in bytes per second for each share of the busier end's processors that the kernel used.
    pub fn rate_per_kernel_load(&self) -> Option<f64> {
        Some(self.rate.mean / self.kernel_load()?).filter(|rate| rate.is_finite() && self.rate.runs > 0)
    }

    /// Kernel load of the busier end.
    pub fn kernel_load(&self) -> Option<f64> {
        self.ends.iter().map(|end| end.kernel).max_by(f64::total_cmp)
    }
}

impl Sweeps {
    /// The curve of this setting in this direction.
    pub fn curve(&self, knob: Knob, way: Way) -> Option<&Curve> {
        self.curves.iter().find(|curve| curve.knob == knob && curve.way == way)
    }

    /// The sweep over streams in the form that the rules use.
    pub fn streams(&self) -> Vec<SweepPoint> {
        let points = self.curve(Knob::Streams, Way::Forth).into_iter().flat_map(|curve| &curve.points);
        let known = points.filter(|point| point.rate.runs > 0);
        known
            .filter_map(|point| {
                Some(SweepPoint {
                    streams: u32::try_from(point.value?).ok()?,
                    bytes_per_second: point.rate.mean,
                    error: point.rate.error().unwrap_or(0.0),
                    kernel_load: point.kernel_load().unwrap_or(0.0),
                })
            })
            .collect()
    }

    /// Number of runs that were made.
    pub fn runs_made(&self) -> usize {
        self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.runs.len()).sum()
    }
}

impl Knob {
    pub const ALL: [Self; 5] = [Self::Buffer, Self::Streams, Self::Block, Self::Files, Self::Workload];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffer => "buffer",
            Self::Streams => "streams",
            Self::Block => "block",
            Self::Files => "files",
            Self::Workload => "workload",
        }
    }

    /// Whether values are bytes.
    pub fn is_size(self) -> bool {
        matches!(self, Self::Buffer | Self::Block)
    }
}

/// Limits on curves, points of a curve, and runs of a point. Ropewalk makes no larger sweeps.
const CURVES: usize = 64;
const POINTS: usize = 1000;
const RUNS: usize = 10_000;

fn at_most(
    field: &'static str,
    expected: &'static str,
    most: usize,
    found: usize,
) -> Result<(), ProfileError> {
    if found <= most { Ok(()) } else { Err(wrong(field, expected, found)) }
}

impl Check for Sweeps {
    fn check(&self) -> Result<(), ProfileError> {
        at_most("sweeps.curves", "at most 64", CURVES, self.curves.len())?;
        for (number, curve) in self.curves.iter().enumerate() {
            if self.curves[..number].iter().any(|other| other.knob == curve.knob && other.way == curve.way) {
                return Err(wrong("sweeps.curves", "one of each setting and way", curve.knob.name()));
            }
            at_most("a curve's points", "at most 1000", POINTS, curve.points.len())?;
            curve.points.iter().try_for_each(Check::check)?;
        }
        Ok(())
    }
}

impl Check for CurvePoint {
    fn check(&self) -> Result<(), ProfileError> {
        at_most("a point's runs", "at most 10000", RUNS, self.runs.len())?;
        at_most("a point's ends", "at most two", 2, self.ends.len())?;
        let good = self.runs.iter().filter(|run| run.failed.is_none()).count();
        for spread in [Some(&self.rate), self.with_outliers.as_ref()].into_iter().flatten() {
            spread.check()?;
            at_most("a spread's runs", "not more than ended well", good, spread.runs as usize)?;
        }
        for end in &self.ends {
            share("a point's load", end.load)?;
            share("a point's peak load", end.peak)?;
            share("a point's kernel load", end.kernel)?;
            end.shares.iter().try_for_each(|part| share("a share", part.share))?;
        }
        Ok(())
    }
}

impl Check for Spread {
    fn check(&self) -> Result<(), ProfileError> {
        // The deviation of numbers from a to b is at most that of two of them, (b - a) / √2.
        let ordered = self.least <= self.median
            && self.median <= self.most
            && self.least <= self.mean
            && self.mean <= self.most
            && self.deviation <= (self.most - self.least) * 0.75;
        if ordered {
            Ok(())
        } else {
            Err(wrong("a spread", "least, mean, median and most in order", self.mean))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn point(rates: &[f64]) -> CurvePoint {
        let run = |&bytes_per_second| CurveRun { bytes_per_second, ..CurveRun::default() };
        CurvePoint { runs: rates.iter().map(run).collect(), ..CurvePoint::default() }
    }

    #[test]
    fn sum_up_when_there_are_outliers_keeps_both_figures() {
        let mut one = point(&[100.0, 101.0, 99.0, 60.0, 100.5]);
        one.runs.push(CurveRun { failed: Some("reset".into()), ..CurveRun::default() });
        let load = |kernel| vec![EndLoad { kernel, runs: 1, ..EndLoad::default() }];
        let loads: Vec<_> = [0.2, 0.2, 0.4, 0.9, 0.4, 0.9].map(load).into();
        one.sum_up(&loads);
        assert_eq!((one.rate.runs, one.with_outliers.unwrap().runs), (4, 5));
        assert!(one.rate.mean > 100.0 && one.with_outliers.unwrap().mean < 93.0);
        assert_eq!((one.outliers().count(), one.failures().count()), (1, 1));
        // Runs that do not count for the rate do not count for the load either.
        assert!((one.kernel_load().unwrap() - 0.3).abs() < 1e-9, "{:?}", one.ends);
        assert!((one.rate_per_kernel_load().unwrap() - one.rate.mean / 0.3).abs() < 1e-9);
        one.check().unwrap();

        let mut none = point(&[]);
        none.sum_up(&[]);
        assert_eq!((none.rate, none.with_outliers, none.kernel_load()), (Spread::default(), None, None));
        none.check().unwrap();
    }

    #[test]
    fn check_when_sweep_is_impossible_fails() {
        let spread = Spread { runs: 1, mean: 5.0, median: 5.0, least: 6.0, most: 7.0, ..Spread::default() };
        assert!(spread.check().is_err());
        let wide =
            Spread { runs: 2, mean: 5.0, median: 5.0, least: 4.0, most: 6.0, deviation: 2.0, interval: None };
        assert!(wide.check().is_err());
        let mut more = point(&[1.0]);
        more.rate = Spread { runs: 2, ..Spread::default() };
        assert!(more.check().unwrap_err().to_string().contains("not more than ended well"));
        let mut twice = Sweeps { curves: vec![Curve::default(); 2], ..Sweeps::default() };
        assert!(twice.check().unwrap_err().to_string().contains("one of each"));
        twice.curves[1].way = Way::Back;
        twice.check().unwrap();
        twice.curves[1].points = vec![CurvePoint::default(); 1001];
        assert!(twice.check().is_err());
    }
}
