//! Sending the last blocks of a slow stream again on faster ones, without I/O.
//!
//! A [`Resend`] belongs to one [`Sender`](crate::mode_e::Sender). It records which bytes each
//! stream carries, and drops those that the peer has acknowledged. After all blocks are assigned,
//! it finds the stream that would delay the end of the transfer most, and gives its bytes to a
//! stream that is free, the last bytes first. A stream is abandoned when each byte that it may
//! still have to deliver was given to another stream afterwards, so that of all streams that carry
//! a byte the last one is never abandoned.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::mode_e::{Header, Rate};
use crate::range::RangeSet;

/// The state of a stream's connection, as the caller has observed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes of this transfer, headers included, that the peer has acknowledged at least.
    pub acknowledged: u64,
    pub round_trip: Duration,
    /// The connection has lost so many packets, or has made so little progress, that its last
    /// packets may need timeouts.
    pub doubtful: bool,
}

/// A stream that needs this much longer than a round trip delays the end of the transfer.
const LATE: Duration = Duration::from_millis(200);
/// A stream gets bytes of another one if it delivers them this many times sooner.
const SOONER: f64 = 2.0;
/// A block that is sent again takes its stream this long, within the limits below.
const PIECE: Duration = Duration::from_millis(50);
const LEAST_PIECE: u64 = 16 << 10;
const MOST_PIECE: u64 = 256 << 10;
/// The part of a transfer that is sent again at most, and its limit in bytes. Receivers keep these
/// bytes in memory.
const SHARE: u64 = 20;
const MOST: u64 = 8 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Resend {
    total: u64,
    /// Bytes that may still be sent again.
    budget: u64,
    used: bool,
    carriers: Vec<Carrier>,
}

/// The next action of a stream for which no unassigned block is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Sends again bytes of the stream with this index.
    Help(usize),
    Wait,
    End,
}

/// The bytes that one stream carries.
#[derive(Debug, Default)]
struct Carrier {
    /// Ranges of the file that may be unacknowledged, and where each ends among the bytes of the
    /// connection.
    log: VecDeque<(Range<u64>, u64)>,
    /// Bytes assigned to the connection, headers included.
    dealt: u64,
    /// Bytes of `log` that were given to other streams after this stream had got them.
    covered: RangeSet,
    rate: Rate,
    backlog: Backlog,
    /// Other streams have begun to carry its bytes.
    helped: bool,
    announced: bool,
    abandoned: bool,
}

impl Carrier {
    /// Time until the peer has acknowledged all, in seconds.
    fn time(&self) -> f64 {
        let left = self.dealt - self.backlog.acknowledged.min(self.dealt);
        match self.rate {
            _ if self.log.is_empty() => 0.0,
            Rate::Measured(rate) => left as f64 / rate as f64,
            Rate::Unmeasured | Rate::Pending => 0.0,
        }
    }

    /// The part of [`Carrier::time`] that a faster stream would not need.
    fn delay(&self) -> f64 {
        (self.time() - self.backlog.round_trip.as_secs_f64()).max(0.0)
    }

    fn push(&mut self, range: Range<u64>) {
        self.dealt += Header::LEN as u64 + (range.end - range.start);
        self.covered.remove(range.clone());
        self.log.push_back((range, self.dealt));
    }

    fn acknowledge(&mut self, position: u64) {
        self.backlog.acknowledged = self.backlog.acknowledged.max(position);
        while let Some((range, end)) = self.log.front_mut() {
            if *end > position {
                range.start = range.start.max(range.end.saturating_sub(*end - position));
                break;
            }
            self.log.pop_front();
        }
    }

    /// The bytes that the stream alone may have to deliver.
    fn uncovered(&self) -> RangeSet {
        let mut left: RangeSet = self.log.iter().map(|(range, _)| range.clone()).collect();
        left.subtract(&self.covered);
        left
    }
}

impl Resend {
    pub(super) fn new(total: u64) -> Self {
        Self { total, budget: (total / SHARE).min(MOST), used: false, carriers: Vec::new() }
    }

    pub(super) fn add_stream(&mut self) {
        self.carriers.push(Carrier::default());
    }

    pub(super) fn forget(&mut self, stream: usize) {
        self.carriers[stream] = Carrier::default();
    }

    pub(super) fn set_rate(&mut self, stream: usize, rate: Rate) {
        self.carriers[stream].rate = rate;
    }

    pub(super) fn rate(&self, stream: usize) -> Rate {
        self.carriers[stream].rate
    }

    pub(super) fn set_backlog(&mut self, stream: usize, backlog: Backlog) {
        let carrier = &mut self.carriers[stream];
        carrier.acknowledge(backlog.acknowledged);
        carrier.backlog = Backlog { acknowledged: carrier.backlog.acknowledged, ..backlog };
        if carrier.helped && !carrier.log.is_empty() {
            carrier.abandoned |= carrier.uncovered().is_empty();
        }
    }

    /// Records a block that was assigned to `stream`.
    pub(super) fn carries(&mut self, stream: usize, range: Range<u64>) {
        let carrier = &mut self.carriers[stream];
        if carrier.rate == Rate::Unmeasured {
            // Nothing is known of what it has delivered.
            carrier.dealt += Header::LEN as u64 + (range.end - range.start);
        } else {
            carrier.push(range);
        }
    }

    /// Whether bytes were sent again, so that no connection serves another transfer.
    pub(super) fn is_used(&self) -> bool {
        self.used
    }

    pub(super) fn is_abandoned(&self, stream: usize) -> bool {
        self.carriers[stream].abandoned
    }

    /// Bytes that may be sent again for `stream`, in addition to what is planned for others.
    fn affords(&self, stream: usize, wanted: u64) -> bool {
        let others = self.carriers.iter().enumerate();
        let planned: u64 = others
            .filter(|(at, other)| *at != stream && other.helped && !other.abandoned)
            .map(|(_, other)| other.uncovered().len())
            .sum();
        planned.saturating_add(wanted) <= self.budget
    }

    /// Decides for a stream while no block is unassigned.
    pub(super) fn decide(&self, stream: usize) -> Decision {
        let free = &self.carriers[stream];
        let Rate::Measured(rate) = free.rate else { return Decision::End };
        let slowest = (0..self.carriers.len())
            .filter(|&at| at != stream && !self.carriers[at].log.is_empty())
            .filter(|&at| !self.carriers[at].abandoned && self.carriers[at].rate != Rate::Unmeasured)
            .max_by(|&a, &b| self.carriers[a].delay().total_cmp(&self.carriers[b].delay()));
        let Some(at) = slowest else { return Decision::End };
        let slow = &self.carriers[at];
        let late = slow.delay() > LATE.as_secs_f64();
        if !late && !slow.backlog.doubtful {
            return Decision::End;
        }
        let wanted = slow.uncovered().len();
        if wanted == 0 || !self.affords(at, wanted) {
            return Decision::End;
        }
        let piece = piece(rate).min(wanted) as f64 / rate.max(1) as f64;
        let sooner = free.backlog.round_trip.as_secs_f64().max(free.time()) + piece;
        if late && slow.time() > SOONER * sooner { Decision::Help(at) } else { Decision::Wait }
    }

    /// The header that states the size of the transfer, which precedes the first bytes that
    /// `stream` sends again.
    pub(super) fn announce(&mut self, stream: usize) -> Option<Header> {
        let carrier = &mut self.carriers[stream];
        if carrier.announced {
            return None;
        }
        carrier.announced = true;
        carrier.dealt += Header::LEN as u64;
        self.used = true;
        Some(Header::total(self.total))
    }

    /// Gives bytes of the stream `slow` to `stream`. Abandons `slow` if they were the last.
    pub(super) fn help(&mut self, stream: usize, slow: usize) -> Option<Range<u64>> {
        let Rate::Measured(rate) = self.carriers[stream].rate else { return None };
        let last = self.carriers[slow].uncovered().iter().next_back()?;
        let range = last.start.max(last.end.saturating_sub(piece(rate)))..last.end;
        self.budget = self.budget.saturating_sub(range.end - range.start);
        self.carriers[stream].push(range.clone());
        let carrier = &mut self.carriers[slow];
        carrier.helped = true;
        carrier.covered.insert(range.clone());
        carrier.abandoned = carrier.uncovered().is_empty();
        Some(range)
    }
}

/// The size of a block that a stream of this rate sends again, in bytes.
fn piece(rate: u64) -> u64 {
    ((rate as f64 * PIECE.as_secs_f64()) as u64).clamp(LEAST_PIECE, MOST_PIECE)
}
