//! Runs tuners on the scenario families and summarizes their results.

use super::families::{Family, MOST, Scenario};
use super::landscape::PACKET;
use super::rng::Rng;
use super::run::{Outcome, World, oracle, run};
use ropewalk_tuning::tuner::{Connections, Kind, Options, OptionsError, Prior};

/// The first seed of the scenarios for the development of tuners.
pub const DEVELOPMENT_SEED: u64 = 2000;
/// The first seed of the scenarios for evaluation. Never change a tuner because of results on
/// these.
pub const EVALUATION_SEED: u64 = 50_000;

/// A tuner with its name, options and hints.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub name: String,
    pub kind: Kind,
    pub options: Options,
    /// Whether the tuner gets the negotiated window.
    pub window_known: bool,
    /// If set, the tuner gets the path's capacity with an error of this size (standard deviation of
    /// the logarithm).
    pub capacity_error: Option<f64>,
    /// If set, the tuner gets the result of an earlier transfer with an error of this size.
    pub memory_error: Option<f64>,
}

impl Candidate {
    /// A tuner with the options of the evaluation: 4 streams at first, chunks of 10 s.
    pub fn new(kind: Kind) -> Self {
        let options = Options { max_streams: MOST, ..Options::default() };
        Self {
            name: kind.name().to_owned(),
            kind,
            options,
            window_known: true,
            capacity_error: None,
            memory_error: None,
        }
    }

    /// A fixed number of streams.
    pub fn fixed(streams: u32) -> Self {
        let mut fixed = Self::new(Kind::Fixed);
        fixed.name = format!("fixed-{streams}");
        fixed.options.first_streams = streams;
        fixed
    }

    /// The same with connections that stay open between chunks.
    #[must_use]
    pub fn kept(mut self) -> Self {
        self.name.push_str("+kept");
        self.options.connections = Connections::Kept;
        self
    }

    /// The same without knowledge of the window.
    #[must_use]
    pub fn without_window(mut self) -> Self {
        self.name.push_str("-window");
        self.window_known = false;
        self
    }

    /// The same with a hint of the capacity, with an error of 30 %.
    #[must_use]
    pub fn hinted(mut self) -> Self {
        self.name.push_str("+hint");
        self.capacity_error = Some(0.3);
        self
    }

    /// The same with the result of an earlier transfer, with an error of 30 %.
    #[must_use]
    pub fn remembering(mut self) -> Self {
        self.name.push_str("+memory");
        self.memory_error = Some(0.3);
        self
    }

    /// Parses a name with its suffixes, such as `fixed-16` or `pilot-window+kept`; `None` if it is
    /// invalid.
    pub fn from_name(name: &str) -> Option<Self> {
        if let Some(base) = name.strip_suffix("+kept") {
            return Self::from_name(base).map(Self::kept);
        }
        if let Some(base) = name.strip_suffix("-window") {
            return Self::from_name(base).map(Self::without_window);
        }
        if let Some(base) = name.strip_suffix("+hint") {
            return Self::from_name(base).map(Self::hinted);
        }
        if let Some(base) = name.strip_suffix("+memory") {
            return Self::from_name(base).map(Self::remembering);
        }
        if let Some(streams) = name.strip_prefix("fixed-") {
            return streams.parse().ok().filter(|streams| (1..=MOST).contains(streams)).map(Self::fixed);
        }
        Kind::from_name(name).map(Self::new)
    }
}

/// The scenarios to run.
#[derive(Clone, Debug)]
pub struct Setup {
    pub families: Vec<Family>,
    /// Seeds count up from this one; the largest is followed by 0.
    pub first_seed: u64,
    pub draws: u64,
    pub noise: f64,
}

/// Results of one tuner in one family.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub family: Family,
    /// Mean of 1 - delivered / oracle.
    pub regret: f64,
    /// The regret that one run in ten exceeds.
    pub regret_p90: f64,
    /// Mean time in seconds until the used number of streams carries 95 % of the best rate for the
    /// first time; the whole duration if it never does.
    pub seconds_to_95: f64,
    /// Fraction of runs that spend most of their last 100 s with a number of streams that carries
    /// less than 95 % of the best rate.
    pub badly: f64,
    /// Time average of the number of streams, divided by the smallest number that carries 99 % of
    /// the best rate.
    pub streams: f64,
}

/// Results of one tuner in all families.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub name: String,
    pub rows: Vec<Row>,
}

impl Report {
    /// Mean regret over the families of the evaluation.
    pub fn regret(&self) -> f64 {
        let network = self.rows.iter().filter(|row| Family::NETWORK.contains(&row.family));
        mean(network.map(|row| row.regret))
    }

    /// The family with the largest mean regret.
    pub fn worst(&self) -> Option<&Row> {
        self.rows.iter().max_by(|a, b| a.regret.total_cmp(&b.regret))
    }
}

/// Runs every candidate on the same scenarios.
///
/// # Errors
/// The options of a candidate are not valid.
pub fn evaluate(setup: &Setup, candidates: &[Candidate]) -> Result<Vec<Report>, OptionsError> {
    let mut reports: Vec<Report> =
        candidates.iter().map(|c| Report { name: c.name.clone(), rows: Vec::new() }).collect();
    for &family in &setup.families {
        let mut scores: Vec<Vec<Score>> = vec![Vec::new(); candidates.len()];
        // Seeds are only labels: the last is followed by 0.
        for seed in (0..setup.draws).map(|draw| setup.first_seed.wrapping_add(draw)) {
            let judge = Judge::new(family.draw(seed));
            for (candidate, scores) in candidates.iter().zip(&mut scores) {
                let world = World {
                    noise: setup.noise,
                    seed,
                    connections: candidate.options.connections,
                    window_known: candidate.window_known,
                };
                let options = judge.told(candidate, seed);
                let mut tuner = candidate.kind.build(&options)?;
                scores.push(judge.score(&run(&judge.scenario, world, tuner.as_mut())));
            }
        }
        for (report, scores) in reports.iter_mut().zip(scores) {
            report.rows.push(summary(family, &scores));
        }
    }
    Ok(reports)
}

#[derive(Clone, Copy, Debug)]
struct Score {
    regret: f64,
    seconds_to_95: f64,
    badly: bool,
    streams: f64,
}

fn summary(family: Family, scores: &[Score]) -> Row {
    let mut regrets: Vec<f64> = scores.iter().map(|score| score.regret).collect();
    regrets.sort_by(f64::total_cmp);
    Row {
        family,
        regret: mean(regrets.iter().copied()),
        regret_p90: regrets.get(regrets.len() * 9 / 10).copied().unwrap_or(f64::NAN),
        seconds_to_95: mean(scores.iter().map(|score| score.seconds_to_95)),
        badly: mean(scores.iter().map(|score| f64::from(u8::from(score.badly)))),
        streams: mean(scores.iter().map(|score| score.streams)),
    }
}

/// The arithmetic mean; NaN if there are no values.
pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value, count + 1));
    sum / count as f64
}

/// Knows the true properties of a scenario.
struct Judge {
    scenario: Scenario,
    oracle: f64,
    /// For each phase the best goodput, and the smallest number of streams with 99 % of it.
    best: Vec<(f64, u32)>,
}

impl Judge {
    fn new(scenario: Scenario) -> Self {
        let best = scenario
            .phases
            .iter()
            .map(|(_, path)| {
                let (most, goodput) = path.best(MOST);
                (goodput, (1..most).find(|&n| path.goodput(n) >= 0.99 * goodput).unwrap_or(most))
            })
            .collect();
        Self { oracle: oracle(&scenario), scenario, best }
    }

    /// The options of a candidate with its hints for this scenario.
    fn told(&self, candidate: &Candidate, seed: u64) -> Options {
        let mut options = candidate.options.clone();
        let path = &self.scenario.phases[0].1;
        let (best, fewest) = self.best[0];
        let mut rng = Rng::new(seed ^ 0x0bad_4177);
        // The control connection has measured the round-trip time.
        options.rtt = Some(path.rtt);
        if let Some(error) = candidate.capacity_error {
            options.capacity = Some(best * rng.lognormal(error));
            options.window = candidate.window_known.then_some(path.window * PACKET);
        }
        if let Some(error) = candidate.memory_error {
            let wrong = rng.lognormal(error);
            let streams = ((f64::from(fewest) * wrong).round() as u32).clamp(1, MOST);
            let rate = path.goodput(streams);
            options.prior = Some(Prior { streams, rate, min_rtt: Some(path.rtt), age: 86_400.0 });
        }
        options
    }

    /// The rate of `streams` at a second, divided by the best rate.
    fn efficiency(&self, streams: u32, second: usize) -> f64 {
        let phase = self.scenario.phase(second);
        self.scenario.phases[phase].1.goodput(streams) / self.best[phase].0
    }

    fn score(&self, outcome: &Outcome) -> Score {
        let end = self.scenario.seconds as f64;
        let tail = end - 100.0;
        let (mut seconds_to_95, mut good, mut ratio) = (end, 0.0, 0.0);
        for step in &outcome.steps {
            let middle = (step.start + 0.5 * step.seconds) as usize;
            let fine = self.efficiency(step.streams, middle) >= 0.95;
            if fine {
                seconds_to_95 = step.start.min(seconds_to_95);
            }
            let late = (step.start + step.seconds - step.start.max(tail)).max(0.0);
            if fine {
                good += late;
            }
            let fewest = self.best[self.scenario.phase(middle)].1;
            ratio += step.seconds * f64::from(step.streams) / f64::from(fewest);
        }
        Score {
            regret: 1.0 - outcome.delivered / self.oracle,
            seconds_to_95,
            badly: good < 50.0,
            streams: ratio / end,
        }
    }
}
