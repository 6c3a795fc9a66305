//! A layer that limits the speed of each connection by a token bucket, with the options of GCT's
//! driver `rate`: `rate:rate=3M;burst=6M`.
//!
//! The two directions have buckets of their own. A call moves at most as many bytes as there are
//! tokens. Without tokens, a non-blocking call fails with `WouldBlock`, and the readiness of the
//! connection is that of a timer; a blocking call waits, until its time limit or until the
//! connection is aborted. The bytes on the network are the same as without the layer, so the peer
//! need not have it.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_protocol::stack::DriverOption;
use ropewalk_transport::{Breaker, Connection, ConnectionHandle, Endpoint, Interest, Readiness, timespec};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::layer::Ready;
use crate::{Handshake, Layer};

/// How often tokens are added, unless the options say otherwise.
const PERIOD: Duration = Duration::from_millis(10);
/// The longest wait of a blocking call without a time limit. It is repeated.
const UNLIMITED: Duration = Duration::from_secs(3600);

/// Limits the speed of connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateLayer {
    read: Option<Limit>,
    write: Option<Limit>,
}

/// The limit of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    /// Bytes per second.
    rate: u64,
    period: Duration,
    /// The most bytes that a pause saves up.
    burst: u64,
}

/// The options of one direction.
#[derive(Clone, Copy, Default)]
struct Wanted {
    rate: Option<u64>,
    period: Option<u64>,
    burst: Option<u64>,
}

impl RateLayer {
    /// The name in stack strings.
    pub const NAME: &str = "rate";

    /// Makes the layer from the options of a stack string: `rate`, `period` and `burst`, and the
    /// same for one direction with `read_` or `write_`. Rates are bytes per second, with a suffix
    /// K, M, G or T (powers of 1024) if wanted; periods are microseconds.
    ///
    /// # Errors
    /// Returns the key of an option that there is not, or whose value is no positive number.
    pub fn parse(options: &[DriverOption]) -> Result<Arc<dyn Layer>, String> {
        Ok(Arc::new(Self::of(options)?))
    }

    fn of(options: &[DriverOption]) -> Result<Self, String> {
        let (mut read, mut write) = (Wanted::default(), Wanted::default());
        for option in options {
            let key = option.key();
            let value = number(option.value()).ok_or_else(|| key.clone())?;
            let (both, name) = match (key.strip_prefix("read_"), key.strip_prefix("write_")) {
                (Some(name), _) => (&mut [&mut read][..], name),
                (_, Some(name)) => (&mut [&mut write][..], name),
                _ => (&mut [&mut read, &mut write][..], key.as_str()),
            };
            for wanted in both {
                *match name {
                    "rate" => &mut wanted.rate,
                    "period" => &mut wanted.period,
                    "burst" => &mut wanted.burst,
                    _ => return Err(key),
                } = Some(value);
            }
        }
        Ok(Self { read: read.limit(), write: write.limit() })
    }
}

impl Wanted {
    fn limit(self) -> Option<Limit> {
        let rate = self.rate?;
        Some(Limit {
            rate,
            period: self.period.map_or(PERIOD, Duration::from_micros),
            // As in GCT.
            burst: self.burst.unwrap_or(rate.saturating_mul(2)),
        })
    }
}

/// A positive number of bytes, with a suffix if it has one.
fn number(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let last = text.chars().last()?.to_ascii_uppercase();
    let shift = "KMGT".find(last).map_or(0, |at| 10 * (at as u32 + 1));
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    digits.parse().ok().filter(|n| *n > 0).and_then(|n: u64| n.checked_mul(1 << shift))
}

impl Layer for RateLayer {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn begin(&self, inner: Box<dyn Connection>, _: bool) -> io::Result<Box<dyn Handshake>> {
        let now = Instant::now();
        let mut limited = Limited {
            inner,
            read: self.read.map(|limit| Gate::new(limit, now)).transpose()?,
            write: self.write.map(|limit| Gate::new(limit, now)).transpose()?,
            time_limit: None,
            nonblocking: false,
            aborted: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        };
        limited.set_nonblocking(true)?;
        Ok(Box::new(Ready::new(limited)))
    }
}

/// A token bucket. It holds at most one burst, and starts full.
struct Bucket {
    limit: Limit,
    tokens: u64,
    /// Tokens have been added up to this time.
    filled: Instant,
}

impl Bucket {
    fn new(limit: Limit, now: Instant) -> Self {
        Self { limit, tokens: limit.burst, filled: now }
    }

    /// Adds the tokens of all periods that have passed, and returns how many there are.
    fn fill(&mut self, now: Instant) -> u64 {
        let Limit { rate, period, burst } = self.limit;
        let periods = now.saturating_duration_since(self.filled).as_nanos() / period.as_nanos();
        if periods > 0 {
            let passed = periods.saturating_mul(period.as_nanos());
            let added = u128::from(rate).saturating_mul(passed) / 1_000_000_000;
            if added == 0 {
                // A slow rate gets its first token later.
                return self.tokens;
            }
            self.tokens = u64::try_from(added).unwrap_or(u64::MAX).saturating_add(self.tokens).min(burst);
            self.filled += Duration::from_nanos(u64::try_from(passed).unwrap_or(u64::MAX));
        }
        self.tokens
    }

    fn take(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_sub(tokens);
    }

    /// The time until there is a token; zero if there is one, or if [`Bucket::fill`] would add one.
    fn wait(&self, now: Instant) -> Duration {
        if self.tokens > 0 {
            return Duration::ZERO;
        }
        let Limit { rate, period, .. } = self.limit;
        let token = Duration::from_nanos(1_000_000_000_u64.div_ceil(rate));
        let periods = u32::try_from(token.as_nanos().div_ceil(period.as_nanos())).unwrap_or(u32::MAX);
        period.saturating_mul(periods).saturating_sub(now.saturating_duration_since(self.filled))
    }
}

/// A bucket, and a timer to wait for its next token.
struct Gate {
    bucket: Bucket,
    timer: OwnedFd,
}

impl Gate {
    fn new(limit: Limit, now: Instant) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { bucket: Bucket::new(limit, now), timer })
    }

    /// Returns what to wait for until there is a token; `None` if there is one.
    fn closed(&self, now: Instant) -> Option<Readiness<'_>> {
        let wait = self.bucket.wait(now);
        if wait.is_zero() {
            return None;
        }
        let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(wait) };
        // If the timer cannot be set, the caller must not wait for it.
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).ok()?;
        Some((self.timer.as_fd(), PollFlags::IN))
    }
}

struct Limited {
    inner: Box<dyn Connection>,
    read: Option<Gate>,
    write: Option<Gate>,
    time_limit: Option<Duration>,
    nonblocking: bool,
    /// Readable if a breaker has aborted the connection.
    aborted: Arc<OwnedFd>,
}

impl Limited {
    fn gate(&mut self, interest: Interest) -> Option<&mut Gate> {
        match interest {
            Interest::Read => self.read.as_mut(),
            Interest::Write => self.write.as_mut(),
        }
    }

    /// The number of bytes that may move now. In blocking mode, this waits until there is one.
    fn allowance(&mut self, interest: Interest) -> io::Result<usize> {
        let until = self.time_limit.map(|limit| Instant::now() + limit);
        loop {
            let now = Instant::now();
            let Some(gate) = self.gate(interest) else { return Ok(usize::MAX) };
            let tokens = gate.bucket.fill(now);
            if tokens > 0 {
                return Ok(usize::try_from(tokens).unwrap_or(usize::MAX));
            }
            let wait = gate.bucket.wait(now);
            let left = until.map_or(UNLIMITED, |until| until.saturating_duration_since(now));
            if self.nonblocking || left.is_zero() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let mut fds = [PollFd::new(&*self.aborted, PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&timespec(wait.min(left))))?;
            if fds[0].revents().contains(PollFlags::IN) {
                // The connection itself reports how it has ended.
                return Ok(usize::MAX);
            }
        }
    }

    fn spend(&mut self, interest: Interest, bytes: usize) {
        if let Some(gate) = self.gate(interest) {
            gate.bucket.take(bytes as u64);
        }
    }
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(self.allowance(Interest::Read)?);
        let n = self.inner.read(&mut buffer[..most])?;
        self.spend(Interest::Read, n);
        Ok(n)
    }
}

impl Write for Limited {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let most = data.len().min(self.allowance(Interest::Write)?);
        let n = self.inner.write(&data[..most])?;
        self.spend(Interest::Write, n);
        Ok(n)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut left = self.allowance(Interest::Write)?;
        let mut parts = Vec::with_capacity(data.len());
        for part in data {
            let part = &part[..part.len().min(left)];
            left -= part.len();
            parts.push(IoSlice::new(part));
        }
        let n = self.inner.write_vectored(&parts)?;
        self.spend(Interest::Write, n);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl Connection for Limited {
    fn readiness(&self, interest: Interest) -> Readiness<'_> {
        let gate = match interest {
            Interest::Read => &self.read,
            Interest::Write => &self.write,
        };
        let closed = gate.as_ref().and_then(|gate| gate.closed(Instant::now()));
        closed.unwrap_or_else(|| self.inner.readiness(interest))
    }

    fn peer_closed(&self) -> bool {
        self.inner.peer_closed()
    }

    /// Without a token, buffered bytes cannot be read, so the caller has to wait.
    fn buffered(&self) -> usize {
        let closed = self.read.as_ref().is_some_and(|gate| gate.closed(Instant::now()).is_some());
        if closed { 0 } else { self.inner.buffered() }
    }

    fn set_time_limit(&mut self, limit: Duration) -> io::Result<()> {
        self.time_limit = Some(limit);
        self.inner.set_time_limit(limit)
    }

    fn set_nonblocking(&mut self, on: bool) -> io::Result<()> {
        self.nonblocking = on;
        self.inner.set_nonblocking(on)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.inner.finish()
    }

    fn reset_on_drop(&mut self) -> io::Result<()> {
        self.inner.reset_on_drop()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        let (inner, aborted) = (self.inner.breaker()?, Arc::downgrade(&self.aborted));
        Ok(Breaker::new(move || {
            inner.break_off();
            if let Some(aborted) = aborted.upgrade() {
                // This fails only if the counter is full, and then it is readable.
                let _ = rustix::io::write(&*aborted, &1_u64.to_ne_bytes());
            }
        }))
    }

    fn local_addr(&self) -> io::Result<Endpoint> {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> io::Result<Endpoint> {
        self.inner.peer_addr()
    }

    fn sealing(&self) -> Duration {
        self.inner.sealing()
    }

    fn handle(&self) -> Arc<dyn ConnectionHandle> {
        self.inner.handle()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn bucket(rate: u64, period: Duration, burst: u64, now: Instant) -> Bucket {
        Bucket::new(Limit { rate, period, burst }, now)
    }

    #[test]
    fn bucket_fills_by_whole_periods_up_to_its_burst() {
        let start = Instant::now();
        let mut bucket = bucket(1000, SECOND / 10, 250, start);
        assert_eq!(bucket.fill(start), 250);
        bucket.take(250);
        assert_eq!(bucket.wait(start), SECOND / 10);
        assert_eq!(bucket.fill(start + SECOND / 11), 0);
        assert_eq!(bucket.wait(start + SECOND * 99 / 1000), SECOND / 1000);
        assert_eq!(bucket.fill(start + SECOND / 8), 100);
        assert_eq!(bucket.wait(start + SECOND / 8), Duration::ZERO);
        // The rest of the period before counts.
        assert_eq!(bucket.fill(start + SECOND / 5), 200);
        assert_eq!(bucket.fill(start + 20 * SECOND), 250);
    }

    #[test]
    fn bucket_of_a_slow_rate_gets_its_token_later() {
        let start = Instant::now();
        let mut bucket = bucket(3, SECOND / 100, 1, start);
        bucket.take(1);
        assert_eq!(bucket.wait(start), SECOND * 34 / 100);
        assert_eq!(bucket.fill(start + SECOND / 3), 0);
        assert_eq!(bucket.fill(start + SECOND * 34 / 100), 1);
    }

    #[test]
    fn rates_of_an_hour_are_exact() {
        let start = Instant::now();
        let mut bucket = bucket(3 << 20, PERIOD, u64::MAX, start);
        bucket.tokens = 0;
        for step in 1..=3600 * 7 {
            bucket.fill(start + SECOND * step / 7);
        }
        let error = bucket.tokens.abs_diff(3600 * (3 << 20));
        assert!(error < 3600 * 7, "{error}");
    }

    #[test]
    fn options_are_those_of_gct() {
        let parse = |text: &str| {
            let stack: ropewalk_protocol::stack::StackSpec = format!("rate:{text}").parse().unwrap();
            RateLayer::of(stack.drivers()[0].options()).map(|layer| (layer.read, layer.write))
        };
        let limit = |rate, micros, burst| Some(Limit { rate, period: Duration::from_micros(micros), burst });
        let both = limit(3 << 20, 10_000, 6 << 20);
        assert_eq!(parse("rate=3M"), Ok((both, both)));
        let both = limit(1000, 100_000, 1 << 30);
        assert_eq!(parse("rate=1000;period=100000;burst=1g"), Ok((both, both)));
        assert_eq!(parse("read_rate=1k;write_burst=5"), Ok((limit(1024, 10_000, 2048), None)));
        assert_eq!(parse(""), Ok((None, None)));
        for (text, key) in
            [("rat=1", "rat"), ("rate=0", "rate"), ("read_period=x", "read_period"), ("burst=M", "burst")]
        {
            assert_eq!(parse(text), Err(key.to_owned()), "{text}");
        }
    }
}
