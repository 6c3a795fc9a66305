//! The goodput and loss of N streams on a path at one time.

use ropewalk_tuning::model::{loss_of_window, window_of_loss};

/// Size of a packet of the landscapes including headers, in bytes.
pub const PACKET: f64 = 1500.0;

/// How goodput depends on the number of streams.
#[derive(Clone, Debug, PartialEq)]
pub enum Curve {
    /// Ito, Ohsaki, Imase (GridNets 2005), Eq. (12): windows until the link is full, then loss.
    Ito {
        /// Packets per second.
        capacity: f64,
        /// Fraction of packets that the path loses without congestion.
        loss: f64,
    },
    /// Goodputs measured in a packet simulator: numbers of streams with packets per millisecond.
    /// Between them linear interpolation; beyond the last a slow decline.
    Table(&'static [(u32, f64)]),
    /// A link shared with other flows, in proportion to the number of streams: N / (N + others)
    /// e^(-decline N).
    Shared { capacity: f64, others: f64, decline: f64 },
}

/// A path at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    pub curve: Curve,
    /// Round-trip time in seconds.
    pub rtt: f64,
    /// Maximum number of packets in flight of one stream.
    pub window: f64,
    /// The rate of the end hosts in bytes per second, and by how much each additional stream
    /// reduces it.
    pub ends: Option<Ends>,
}

/// A limit other than the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ends {
    pub rate: f64,
    pub decline: f64,
}

impl Path {
    /// Goodput of `n` streams in bytes per second.
    pub fn goodput(&self, n: u32) -> f64 {
        let streams = f64::from(n);
        let packets = match self.curve {
            Curve::Ito { capacity, loss } => {
                let window = if loss > 0.0 { self.window.min(window_at(loss)) } else { self.window };
                let windows = streams * window / self.rtt * (1.0 - loss);
                windows.min(capacity * (1.0 - loss_of_window(capacity * self.rtt / streams).max(loss)))
            }
            Curve::Table(points) => 1e3 * interpolate(points, streams),
            Curve::Shared { capacity, others, decline } => {
                let share = streams / (streams + others) * (-decline * streams).exp();
                (streams * self.window / self.rtt).min(capacity * share)
            }
        };
        let network = PACKET * packets;
        self.ends.map_or(network, |ends| network.min(ends.rate * (-ends.decline * (streams - 1.0)).exp()))
    }

    /// Fraction of packets that `n` streams lose.
    pub fn loss(&self, n: u32) -> f64 {
        let per_stream = self.goodput(n) / PACKET * self.rtt / f64::from(n);
        match self.curve {
            Curve::Ito { loss, .. } if per_stream > 0.98 * self.window.min(window_at(loss)) => loss,
            _ if per_stream > 0.98 * self.window
                || self.ends.is_some_and(|ends| self.goodput(n) >= ends.rate) =>
            {
                0.0
            }
            _ => loss_of_window(per_stream).min(1.0),
        }
    }

    /// The smallest number of streams up to `most` with the highest goodput, and that goodput.
    pub fn best(&self, most: u32) -> (u32, f64) {
        let mut best = (1, self.goodput(1));
        for n in 2..=most {
            let goodput = self.goodput(n);
            if goodput > best.1 {
                best = (n, goodput);
            }
        }
        best
    }
}

/// Mean window at a loss; without loss there is no limit.
fn window_at(loss: f64) -> f64 {
    window_of_loss(loss).unwrap_or(f64::INFINITY)
}

fn interpolate(points: &[(u32, f64)], n: f64) -> f64 {
    let after = points.partition_point(|point| f64::from(point.0) < n);
    match (points.get(after.wrapping_sub(1)), points.get(after)) {
        (Some(&(n0, g0)), Some(&(n1, g1))) => {
            g0 + (g1 - g0) * (n - f64::from(n0)) / (f64::from(n1) - f64::from(n0))
        }
        (None, Some(&(n1, g1))) => g1 * n / f64::from(n1),
        (Some(&(last, g)), None) => g * (-0.0005 * (n - f64::from(last))).exp(),
        (None, None) => 0.0,
    }
}
