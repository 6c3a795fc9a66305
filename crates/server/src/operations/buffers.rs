//! Socket buffers of data connections: the sizes that the client set (SBUF), or sizes that suit the
//! path (ABUF, GFD.20).
//!
//! ABUF is passive here: no bytes are sent to try sizes out. The path as earlier transfers and the
//! control connection have shown it is compared with the kernel's limits
//! ([`ropewalk_tuning::buffers::advise`]).

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use ropewalk_engine::Flow;
use ropewalk_protocol::server::ChannelOptions;
use ropewalk_transport::{Ceilings, LOCAL_BUFFER, PathStats, TcpInfo, Tuning, least_buffers};
use ropewalk_tuning::buffers::{Advice, Kernel, Leave, Path, Side, advise};

use crate::host::routes::Routes;
use crate::session::job::Job;

/// A shorter transfer does not show what a path can carry.
const TELLING: u64 = 1 << 20;
/// The kernel reports a round trip of more than an hour if it has not measured one.
const LONGEST: Duration = Duration::from_secs(600);

/// SO_SNDBUF and SO_RCVBUF of future connections; `None` leaves the size to autotuning.
#[derive(Clone, Copy)]
pub(super) struct Buffers {
    pub(super) send: Option<usize>,
    pub(super) receive: Option<usize>,
}

impl Buffers {
    /// The buffers of a channel with this peer. Sizes that the stack string names (`stack`) precede
    /// those of SBUF, and disable ABUF.
    pub(super) fn choose(job: &Job<'_>, options: &ChannelOptions, stack: &Tuning, peer: IpAddr) -> Self {
        let most = job.context.settings.config.data.max_socket_buffer;
        let size = |bytes: Option<u64>| bytes.map(|n| usize::try_from(n.min(most)).unwrap_or(usize::MAX));
        let named = |bytes: Option<usize>| bytes.map(|n| n as u64);
        let (send, receive) = (named(stack.send_buffer), named(stack.receive_buffer));
        let automatic = options.automatic_buffers.filter(|_| send.is_none() && receive.is_none());
        let Some(ceiling) = automatic else {
            return Self {
                send: size(send.or(options.send_buffer)),
                receive: size(receive.or(options.receive_buffer)),
            };
        };
        match advice(job, peer, ceiling.min(most)) {
            Ok([send, receive]) => {
                tracing::debug!(session = job.context.id, %peer, %send, %receive, "automatic buffers");
                Self { send: size(send.bytes()), receive: size(receive.bytes()) }
            }
            Err(_) => Self { send: None, receive: None },
        }
    }

    /// The larger of the sizes that are set.
    pub(super) fn larger(self) -> Option<usize> {
        self.send.max(self.receive)
    }
}

/// The reply to ABUF.
pub(super) fn report(job: &Job<'_>, ceiling: u64) -> String {
    // Within the host, the data plane sets the sizes that neither the client nor the settings
    // choose.
    let within = format!("within this host set to {} KiB, otherwise ", LOCAL_BUFFER >> 10);
    let within = if job.context.peer.ip() == job.context.local.ip() { &within } else { "" };
    if ceiling == 0 {
        return format!("off, {within}kernel autotuning sizes buffers.");
    }
    let ceiling = ceiling.min(job.context.settings.config.data.max_socket_buffer);
    let text = match advice(job, job.context.peer.ip(), ceiling) {
        Ok([send @ Advice::Leave { .. }, receive @ Advice::Leave { .. }]) => {
            within.to_owned() + &both(&send, &receive)
        }
        Ok([send, receive]) => both(&send, &receive),
        Err(text) => within.to_owned() + &text,
    };
    tracing::info!(session = job.context.id, user = job.context.user(), ceiling, "ABUF: {text}");
    format!("{text}.")
}

/// The advice for the send buffer and for the receive buffer.
fn advice(job: &Job<'_>, peer: IpAddr, ceiling: u64) -> Result<[Advice; 2], String> {
    let ceilings = Ceilings::read().map_err(|error| {
        tracing::warn!(%error, "buffers are left to the kernel");
        format!("left to kernel autotuning: {error}")
    })?;
    let mut path = job.host.routes.path(peer, Instant::now());
    if peer == job.context.peer.ip() {
        let control =
            TcpInfo::of(job.dialogue.control.as_fd()).and_then(|info| least_rtt(&PathStats::from(&info)));
        path.rtt = path.rtt.into_iter().chain(control).min();
    }
    // If no socket can be made, there will be no connection either.
    let [send, receive] = least_buffers().unwrap_or_default();
    let sides = [(Side::Send, ceilings.send, send), (Side::Receive, ceilings.receive, receive)];
    Ok(sides.map(|(side, limits, setsockopt_min)| {
        let (autotune_max, setsockopt_max) = (limits.autotune, limits.setsockopt);
        let kernel = Kernel { side, autotune_max, setsockopt_min, setsockopt_max };
        advise(path, kernel, ceiling)
    }))
}

/// Both in one line.
fn both(send: &Advice, receive: &Advice) -> String {
    let suffices = |advice: &Advice| match advice {
        Advice::Leave { reason: Leave::Suffices { autotune_max, .. } } => Some(*autotune_max),
        _ => None,
    };
    if let (Some(a), Some(b)) = (suffices(send), suffices(receive)) {
        return if a <= b { send.to_string() } else { receive.to_string() };
    }
    if send.to_string() == receive.to_string() {
        return send.to_string();
    }
    let one = |side: Side, advice: &Advice| match advice {
        Advice::Set { .. } => advice.to_string(),
        other => format!(
            "{side} buffer {}",
            other.to_string().replacen(
                "kernel autotuning suffices",
                "left to kernel autotuning, which suffices",
                1
            )
        ),
    };
    format!("{}; {}", one(Side::Send, send), one(Side::Receive, receive))
}

fn least_rtt(stats: &PathStats) -> Option<Duration> {
    let known = |rtt: &Duration| !rtt.is_zero() && *rtt < LONGEST;
    stats.min_rtt.filter(known).or(stats.rtt.filter(known))
}

/// The path as the connections of a transfer show it.
pub(super) struct Sight {
    sends: bool,
    /// The time of the last look, and the bytes that each connection had received by then.
    before: Option<(Instant, Vec<(u64, u64)>)>,
    best: Option<(IpAddr, Path)>,
}

impl Sight {
    /// The time between two looks.
    const INTERVAL: Duration = Duration::from_secs(1);

    pub(super) fn new(sends: bool) -> Self {
        Self { sends, before: None, best: None }
    }

    pub(super) fn due(&self, now: Instant) -> bool {
        self.before.as_ref().is_none_or(|(at, _)| now.duration_since(*at) >= Self::INTERVAL)
    }

    pub(super) fn look(&mut self, flows: &[Flow], now: Instant) {
        for flow in flows {
            let rate = if self.sends { flow.stats.delivery_rate } else { self.received(flow, now) };
            let seen = Path { rtt: least_rtt(&flow.stats), rate: rate.filter(|rate| *rate > 0) };
            // Connections to other peers, if there are several stripes, count for the same path.
            let Some(ip) = flow.peer.ip() else { continue };
            let (_, best) = self.best.get_or_insert((ip, Path::default()));
            best.rtt = best.rtt.into_iter().chain(seen.rtt).min();
            best.rate = best.rate.max(seen.rate);
        }
        self.before = Some((now, flows.iter().map(|flow| (flow.id, flow.bytes)).collect()));
    }

    /// Bytes per second since the last look, or since the connection was made.
    fn received(&self, flow: &Flow, now: Instant) -> Option<u64> {
        let known = self.before.as_ref().and_then(|(at, bytes)| {
            let (_, bytes) = bytes.iter().find(|(id, _)| *id == flow.id)?;
            Some((now.duration_since(*at), *bytes))
        });
        let (time, before) = known.unwrap_or((flow.age, 0));
        // A shorter interval gives noise.
        let time = Some(time).filter(|time| *time >= Self::INTERVAL / 10)?;
        Some((flow.bytes.saturating_sub(before) as f64 / time.as_secs_f64()) as u64)
    }

    /// Keeps what was seen, after the transfer has ended.
    pub(super) fn tell(&self, routes: &Routes, bytes: u64) {
        if bytes >= TELLING
            && let Some((peer, path)) = self.best
        {
            routes.learn(peer, path, Instant::now());
        }
    }

    /// Whether a last look is useful.
    pub(super) fn telling(bytes: u64) -> bool {
        bytes >= TELLING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn advised(bdp: u64, autotune: [u64; 2]) -> String {
        let path = Path { rtt: Some(Duration::from_secs(1)), rate: Some(bdp) };
        let advice = |side, autotune_max| {
            let kernel = Kernel { side, autotune_max, setsockopt_min: 0, setsockopt_max: 64 * MIB };
            advise(path, kernel, 64 * MIB)
        };
        both(&advice(Side::Send, autotune[0]), &advice(Side::Receive, autotune[1]))
    }

    #[test]
    fn advice_for_both_buffers_fits_in_one_line() {
        assert_eq!(
            advised(0, [4 * MIB, 6 * MIB]),
            "left to kernel autotuning, nothing is known of the path yet"
        );
        assert_eq!(
            advised(MIB, [4 * MIB, 6 * MIB]),
            "kernel autotuning suffices (ceiling 4 MiB, path needs 1 MiB)"
        );
        assert_eq!(
            advised(MIB, [6 * MIB, 4 * MIB]),
            "kernel autotuning suffices (ceiling 4 MiB, path needs 1 MiB)"
        );
        assert_eq!(
            advised(8 * MIB, [4 * MIB, 32 * MIB]),
            "send buffer set to 16 MiB; net.ipv4.tcp_wmem's third value, 4 MiB, limits autotuning to 2 MiB of data, \
             the path needs 8 MiB or more; \
             receive buffer left to kernel autotuning, which suffices (ceiling 32 MiB, path needs 8 MiB)"
        );
    }
}
