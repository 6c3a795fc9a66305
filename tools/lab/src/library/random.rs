//! Random paths: each path is drawn from a seed.
//!
//! - Round trip time: 5 to 300 ms, uniform over its logarithm, as are all ranges below.
//! - Rate: 20 Mbit/s to 1 Gbit/s in both directions.
//! - Queue: drop-tail, 0.05 to 2 bandwidth-delay products, at least [`LEAST_QUEUE`] packets.
//! - Loss: none on two paths of five, otherwise 1e-6 to 5e-3; in bursts of 2 to 8 packets on a
//!   third of the paths with loss.
//! - Cross traffic: none on two paths of three. Of the others, half have 1 to 4 flows in each
//!   direction, and half have 2 to 8 flows with busy and idle periods.
//! - Congestion control: cubic on half of the paths, reno and bbr on a quarter each.
//! - Buffers: Linux's own limits on three paths of four, otherwise 128 KiB to 2 MiB at the sender,
//!   the receiver or both.
//!
//! Each quantity has random numbers of its own, made of the seed and its name, so that a range that
//! is added or changed later leaves the other quantities as they were.

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::emulator::Rate;
use crate::scenario::{Document, ScenarioError, Size};

/// Round trip times, in milliseconds.
const ROUND_TRIP: [f64; 2] = [5.0, 300.0];
/// Rates, in Mbit/s.
const RATE: [f64; 2] = [20.0, 1000.0];
/// Queue lengths, in bandwidth-delay products.
const QUEUE: [f64; 2] = [0.05, 2.0];
/// Least queue length, in packets.
const LEAST_QUEUE: u32 = 10;
/// Share of lost packets, on a path with loss.
const LOSS: [f64; 2] = [1e-6, 5e-3];
/// Limits of buffers in bytes, if they are not Linux's own.
const BUFFER: [f64; 2] = [131_072.0, 2_097_152.0];

/// Bits of a packet of the largest size.
const PACKET: f64 = 1500.0 * 8.0;

/// A random path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RandomPath {
    /// The seed, which determines everything else.
    pub seed: u32,
    /// Round trip time without queueing, in milliseconds.
    pub round_trip: f64,
    /// Rate in kbit/s.
    pub rate: u64,
    /// Queue length in packets.
    pub queue: u32,
    /// Share of lost packets; 0 on paths without loss.
    pub loss: f64,
    /// Mean length of a burst of losses; 1 if losses are independent.
    pub burst: u32,
    /// Number of flows in each direction that share the path.
    pub flows: u32,
    /// Mean seconds for which such a flow is busy, and then idle; `None` if it is always busy.
    pub on_off: Option<[f64; 2]>,
    /// Congestion control of all hosts.
    pub congestion: &'static str,
    /// Maximum receive buffer at both ends in bytes, if it is restricted.
    pub receive: Option<u64>,
    /// Maximum send buffer at both ends in bytes, if it is restricted.
    pub send: Option<u64>,
}

impl RandomPath {
    /// Draws the path of a seed.
    pub fn draw(seed: u32) -> Self {
        let dice = Dice(seed);
        let round_trip = rounded(dice.within("round trip", ROUND_TRIP), 3);
        let rate = rounded(dice.within("rate", RATE) * 1e3, 3);
        let product = rate * round_trip / PACKET;
        // Float casts saturate, so the result is never out of range.
        let queue = (product * dice.within("queue", QUEUE)).round().max(f64::from(LEAST_QUEUE)) as u32;
        let loss = if dice.even("has loss") < 0.4 { 0.0 } else { rounded(dice.within("loss", LOSS), 2) };
        let bursts = loss > 0.0 && dice.even("bursts") < 1.0 / 3.0;
        let (flows, on_off) = match (dice.even("cross traffic"), dice.even("kind of cross traffic")) {
            (others, _) if others >= 1.0 / 3.0 => (0, None),
            (_, kind) if kind < 0.5 => (dice.count("flows", 1, 4), None),
            _ => {
                let seconds = |name| rounded(dice.within(name, [0.5, 5.0]), 2);
                (dice.count("flows", 2, 8), Some([seconds("on"), seconds("off")]))
            }
        };
        let congestion = match dice.even("congestion") {
            x if x < 0.5 => "cubic",
            x if x < 0.75 => "reno",
            _ => "bbr",
        };
        let restricted = dice.even("restricted") < 0.25;
        let end = dice.count("restricted end", 0, 2);
        let buffer = |name: &str, other: u32| {
            (restricted && end != other).then(|| (dice.within(name, BUFFER) / 4096.0).round() as u64 * 4096)
        };
        Self {
            seed,
            round_trip,
            rate: rate as u64,
            queue,
            loss,
            burst: if bursts { dice.count("burst", 2, 8) } else { 1 },
            flows,
            on_off,
            congestion,
            receive: buffer("receive", 1),
            send: buffer("send", 2),
        }
    }

    /// The name of the path in result files.
    pub fn name(&self) -> String {
        format!("random-{}", self.seed)
    }

    /// A description in one line.
    pub fn describe(&self) -> String {
        let bits = Rate::bits_per_second(self.rate * 1000).get().unwrap_or(0) as f64;
        let product = bits * self.round_trip / 1e3 / PACKET;
        let mut text = format!(
            "{} ms, {} Mbit/s, queue {} ({:.2} BDP)",
            self.round_trip,
            self.rate as f64 / 1e3,
            self.queue,
            f64::from(self.queue) / product
        );
        match (self.loss > 0.0, self.burst) {
            (false, _) => {}
            (true, 1) => text += &format!(", loss {:e}", self.loss),
            (true, burst) => text += &format!(", loss {:e} in bursts of {burst}", self.loss),
        }
        match (self.flows, self.on_off) {
            (0, _) => {}
            (flows, None) => text += &format!(", {flows} flows each way"),
            (flows, Some([on, off])) => text += &format!(", {flows} flows each way, {on} s on, {off} s off"),
        }
        text += &format!(", {}", self.congestion);
        for (what, most) in [("receive", self.receive), ("send", self.send)] {
            if let Some(most) = most {
                text += &format!(", {what} buffers up to {} KiB", most / 1024);
            }
        }
        text
    }

    /// The scenario, as the text of a TOML file.
    pub fn text(&self) -> String {
        let Self { seed, round_trip, rate, queue, congestion, .. } = self;
        let mut text = format!(
            "title = \"random path {seed}: {}\"\n\
             description = \"Drawn by `ropewalk lab match --random 1 --seed {seed}`.\"\nseed = {seed}\n\n\
             [kernel]\ncongestion = \"{congestion}\"\n",
            self.describe()
        );
        for (name, first, most) in [("tcp_rmem", 131_072, self.receive), ("tcp_wmem", 16_384, self.send)] {
            if let Some(most) = most {
                let [first, most] = [first.min(most), most].map(Size);
                text += &format!("{name} = [\"4KiB\", \"{first}\", \"{most}\"]\n");
            }
        }
        let loss = match (self.loss > 0.0, self.burst) {
            (false, _) => String::new(),
            (true, 1) => format!(", loss = {}", self.loss),
            (true, burst) => {
                format!(", loss = {{ model = \"bursts\", average = {}, length = {burst} }}", self.loss)
            }
        };
        text += &format!(
            "\n[hosts.left]\n[hosts.right]\n\n[[links]]\nbetween = [\"left\", \"right\"]\n\n[links.path]\n\
             round_trip = \"{round_trip}ms\"\nboth = {{ rate = \"{rate}kbit/s\", queue = {queue}{loss} }}\n"
        );
        let ways = if self.flows > 0 {
            &[("others", "right", "left"), ("others-back", "left", "right")][..]
        } else {
            &[]
        };
        for (name, from, to) in ways {
            text += &format!(
                "\n[[traffic]]\nname = \"{name}\"\nfrom = \"{from}\"\nto = \"{to}\"\nflows = {}\n",
                self.flows
            );
            if let Some([on, off]) = self.on_off {
                text += &format!("on = \"{on}s\"\noff = \"{off}s\"\nrandom = true\n");
            }
        }
        text
    }

    /// The scenario as a document that can be changed.
    ///
    /// # Errors
    /// The text is invalid, which tests exclude.
    pub fn document(&self) -> Result<Document, ScenarioError> {
        Document::parse(&self.text(), &self.name())
    }
}

/// Random numbers of a seed, one for each name.
struct Dice(u32);

impl Dice {
    /// A number from 0 to 1, excluding 1.
    fn even(&self, name: &str) -> f64 {
        const BITS: u32 = 53;
        let hash = xxh3_64_with_seed(name.as_bytes(), self.0.into());
        (hash >> (64 - BITS)) as f64 / (1_u64 << BITS) as f64
    }

    /// A number that is uniform over its logarithm.
    fn within(&self, name: &str, [least, most]: [f64; 2]) -> f64 {
        least * (most / least).powf(self.even(name))
    }

    /// A whole number from `least` to `most`, both included.
    fn count(&self, name: &str, least: u32, most: u32) -> u32 {
        least + (self.even(name) * f64::from(most - least + 1)) as u32
    }
}

/// Rounds to `digits` significant decimal digits.
fn rounded(value: f64, digits: i32) -> f64 {
    let exponent = digits - 1 - value.abs().log10().floor() as i32;
    // Division by a whole power of ten returns the same number as parsing the decimal text.
    let scale = 10_f64.powi(exponent.abs());
    if exponent >= 0 { (value * scale).round() / scale } else { (value / scale).round() * scale }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SEEDS: std::ops::Range<u32> = 0..1000;

    #[test]
    fn random_path_depends_only_on_its_seed() {
        // The path must never change, because results are stored by seed.
        assert_eq!(RandomPath::draw(1).describe(), FIRST);
        let drawn: Vec<RandomPath> = SEEDS.map(RandomPath::draw).collect();
        for path in drawn.iter().rev() {
            assert_eq!(*path, RandomPath::draw(path.seed));
        }
        let mut texts: Vec<String> = drawn.iter().map(RandomPath::text).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), drawn.len());
    }

    const FIRST: &str = "42 ms, 281 Mbit/s, queue 144 (0.15 BDP), loss 7.4e-5 in bursts of 3, 6 flows each way, 4.3 s on, 0.56 s off, bbr, \
         receive buffers up to 316 KiB";

    #[test]
    fn random_paths_of_many_seeds_fill_their_ranges() {
        let all: Vec<RandomPath> = SEEDS.map(RandomPath::draw).collect();
        let spans = |name: &str, [least, most]: [f64; 2], values: Vec<f64>| {
            // Rounding may exceed the range slightly.
            assert!(values.iter().all(|x| (least * 0.99..=most * 1.01).contains(x)), "{name}");
            let span = |x: &f64| (x / least).ln() / (most / least).ln();
            for part in 0..10 {
                let part = f64::from(part) / 10.0;
                assert!(values.iter().any(|x| (part..part + 0.1).contains(&span(x))), "{name}: {part}");
            }
        };
        let of = |value: &dyn Fn(&RandomPath) -> Option<f64>| all.iter().filter_map(value).collect();
        spans("round trip", ROUND_TRIP, of(&|path| Some(path.round_trip)));
        spans("rate", RATE, of(&|path| Some(path.rate as f64 / 1e3)));
        spans("loss", LOSS, of(&|path| (path.loss > 0.0).then_some(path.loss)));
        spans("receive", BUFFER, of(&|path| path.receive.map(|bytes| bytes as f64)));
        spans("send", BUFFER, of(&|path| path.send.map(|bytes| bytes as f64)));
        let products = |path: &RandomPath| {
            let product = path.rate as f64 * path.round_trip / PACKET;
            (path.queue > LEAST_QUEUE && product > 200.0).then(|| f64::from(path.queue) / product)
        };
        spans("queue", QUEUE, of(&products));
        assert!(all.iter().all(|path| path.queue >= LEAST_QUEUE));

        let share = |what: &dyn Fn(&RandomPath) -> bool| {
            all.iter().filter(|path| what(path)).count() as f64 / all.len() as f64
        };
        for (name, share, wanted) in [
            ("loss", share(&|path| path.loss > 0.0), 0.6),
            ("bursts", share(&|path| path.burst > 1), 0.2),
            ("cross traffic", share(&|path| path.flows > 0), 1.0 / 3.0),
            ("on and off", share(&|path| path.on_off.is_some()), 1.0 / 6.0),
            ("cubic", share(&|path| path.congestion == "cubic"), 0.5),
            ("reno", share(&|path| path.congestion == "reno"), 0.25),
            ("restricted", share(&|path| path.receive.is_some() || path.send.is_some()), 0.25),
            ("restricted at both", share(&|path| path.receive.is_some() && path.send.is_some()), 1.0 / 12.0),
        ] {
            // Four standard deviations of a share of a thousand paths.
            assert!((share - wanted).abs() < 0.065, "{name}: {share} of the paths instead of {wanted}");
        }
    }

    #[test]
    fn random_path_as_a_scenario_has_the_drawn_values() {
        for seed in SEEDS {
            let path = RandomPath::draw(seed);
            let scenario = path.document().and_then(|document| document.scenario());
            let scenario = scenario.unwrap_or_else(|error| panic!("{error}\n{}", path.text()));
            let way = &scenario.links[0].path.backward;
            assert_eq!(scenario.seed, u64::from(seed));
            assert_eq!(way.rate.get(), Some(path.rate * 1000));
            assert!((way.delay.as_secs_f64() * 2e3 - path.round_trip).abs() < 1e-5, "{}", path.text());
            assert!((way.loss.average() - path.loss).abs() < 1e-9, "{}", path.text());
            assert_eq!(scenario.traffic.len(), if path.flows > 0 { 2 } else { 0 });
            assert_eq!(scenario.kernel.congestion.as_deref(), Some(path.congestion));
            assert_eq!(scenario.kernel.tcp_rmem.map(|sizes| sizes[2].0), path.receive);
            assert_eq!(scenario.kernel.tcp_wmem.map(|sizes| sizes[2].0), path.send);
        }
    }
}
