//! The distribution of streams among the workers on a path, and the number of missing workers.

use super::*;

impl State {
    pub(super) fn target(&self) -> u32 {
        match self.stack.driver() {
            Some(_) => stacks::STREAMS,
            None => {
                let first = self.first.filter(|_| self.decisions == 0);
                first.unwrap_or(self.decision.knobs.connections()).max(1)
            }
        }
    }

    /// The first number, which follows from the round trip, is of each of so many addresses, as far
    /// as `cap` allows. A tuner accepts up to four times what it asked for.
    pub(super) fn begin_at(&mut self, addresses: u32, cap: u32) {
        if self.decisions == 0 && addresses > 1 {
            let first = self.decision.knobs.connections();
            self.first = Some(first.saturating_mul(addresses.min(4)).min(cap).max(first));
            self.dealt = self.target();
        }
    }

    /// Whether streams have left because little data remains. `ends`: the remaining bytes, if all
    /// are known; `streams`: the present streams.
    pub(super) fn is_ending(&self, ends: Option<u64>, streams: u32) -> bool {
        let soon = self.reached.last().map(|&(_, rate, _)| rate * ENDING.as_secs_f64());
        self.sized
            && streams < self.target()
            && ends.zip(soon).is_some_and(|(left, soon)| left as f64 <= soon)
    }

    /// Number of participants among which the first streams are divided.
    pub(super) fn to_come(&self) -> u32 {
        if self.decisions == 0 { self.expected } else { 1 }
    }

    /// The measured rate of a session with this many streams, or the expected one; `None` if
    /// unknown.
    pub(super) fn rate(&mut self, id: u64, streams: u32) -> Option<f64> {
        let own = self
            .participant(id)
            .filter(|participant| participant.streams == streams)
            .and_then(|participant| participant.own.rate);
        own.or_else(|| self.typical_rate(streams))
    }

    /// The share of this many streams in the rate of the last span, in bytes per second.
    pub(super) fn typical_rate(&self, streams: u32) -> Option<f64> {
        let share = |&(all, rate, _): &Reached| rate * f64::from(streams) / f64::from(all.max(1));
        self.reached.last().map(share)
    }

    /// Files in flight; `None` if there is only one.
    pub(super) fn files(&self) -> Option<u32> {
        Some(self.decision.knobs.files).filter(|files| *files > 1)
    }

    pub(super) fn participant(&mut self, id: u64) -> Option<&mut ParticipantState> {
        self.participants.iter_mut().find(|participant| participant.id == id)
    }

    /// Raises the number of streams at once. Lowers it at once only if the path forces it: streams
    /// that leave take their windows along, and the others need many round trips to use the
    /// capacity.
    pub(super) fn follow(&mut self) {
        let target = self.target();
        let forced = matches!(
            self.decision.reason,
            Reason::Yielding { .. } | Reason::WindowTooSmall { .. } | Reason::StatedShare { .. }
        );
        if target >= self.dealt || forced {
            self.dealt = target;
        }
        self.deal();
    }

    /// Whether streams can come and go within some session, because a Ropewalk program sends.
    pub(super) fn is_elastic(&self) -> bool {
        self.participants.iter().any(|participant| participant.stream_control.is_elastic())
    }

    /// Removes some streams if there are more than decided.
    pub(super) fn descend(&mut self, now: Instant, rtt: Duration) {
        let step = DESCENT.max(DESCENT_ROUND_TRIPS * rtt);
        if self.dealt > self.target() && now.saturating_duration_since(self.descended) >= step {
            self.descended = now;
            self.dealt = (self.dealt - (self.dealt / DESCENT_PART).max(1)).max(self.target());
            self.deal();
        }
    }

    /// Distributes the streams that no fixed channel has among the others.
    pub(super) fn deal(&mut self) {
        let fixed: u32 = self
            .participants
            .iter()
            .filter(|participant| !participant.stream_control.is_elastic())
            .map(|participant| participant.streams)
            .sum();
        let mut left = self.dealt.saturating_sub(fixed);
        let congestion = self.decision.congestion.map(|control| control.name());
        let to_come = self.to_come();
        let mut elastic: Vec<&mut ParticipantState> = self
            .participants
            .iter_mut()
            .filter(|participant| participant.stream_control.is_elastic())
            .collect();
        // Participants with a low limit leave the rest to the others.
        elastic.sort_by_key(|participant| participant.most);
        let count = elastic.len().max(to_come as usize);
        for (n, participant) in elastic.into_iter().enumerate() {
            let share = left.div_ceil((count - n) as u32).clamp(1, participant.most.max(1));
            participant.streams = participant.stream_control.turn(share, congestion);
            left = left.saturating_sub(participant.streams);
        }
    }

    /// Streams of a further worker whose number cannot be changed later.
    pub(super) fn each(&self) -> u32 {
        (self.target() / 8).clamp(1, FIXED_MOST)
    }

    /// Workers that would bring the missing streams, in addition to those that are being hired.
    pub(super) fn missing(&mut self, workers: u32, now: Instant, rtt: Duration) -> u32 {
        // Stop counting hired workers that have not logged in by this deadline.
        let patience = LOG_IN + LOG_IN_ROUND_TRIPS * rtt;
        self.coming.retain(|&hired| now.saturating_duration_since(hired) < patience);
        if self.participants.iter().any(|participant| {
            participant.stream_control.is_elastic() && participant.most > participant.streams
        }) {
            return 0;
        }
        let most = self
            .participants
            .iter()
            .map(|participant| participant.most)
            .min()
            .unwrap_or(1)
            .clamp(1, FIXED_MOST);
        let each = self.each().min(most);
        let opening = self.participants.iter().filter(|participant| participant.streams == 0).count()
            + self.coming.len();
        let taken: u32 = self.participants.iter().map(|participant| participant.streams).sum();
        let missing = self.target().saturating_sub(taken).div_ceil(each);
        missing
            .saturating_sub(u32::try_from(opening).unwrap_or(u32::MAX))
            .min(MOST_WORKERS.saturating_sub(workers))
    }

    /// Workers that would bring the decided number of files in flight, in addition to those that
    /// are being hired.
    pub(super) fn missing_files(&self, workers: u32, work: Option<Work>) -> u32 {
        let worth = work.map_or(0, |work| u32::try_from(work.files / FILES_EACH).unwrap_or(u32::MAX));
        let here = u32::try_from(self.participants.len() + self.coming.len()).unwrap_or(u32::MAX);
        let missing = self.files().unwrap_or(1).min(worth).saturating_sub(here);
        missing.min(MOST_WORKERS.saturating_sub(workers))
    }

    /// The kernel's figures of all connections, and the bytes that have arrived.
    pub(super) fn totals(&mut self, now: Instant, rtt: Duration, moved: u64) -> Totals {
        let mut totals = Totals { delivered: moved, ..Totals::default() };
        totals.keep(&self.gone);
        for participant in &mut self.participants {
            let busy = participant.is_busy(now, rtt);
            participant.add_to(&mut totals);
            let streams = match &participant.progress {
                Some(progress) => {
                    participant.used =
                        Some(progress.streams()).filter(|now| *now > 0).unwrap_or(participant.used);
                    // Between two small files it has those of the last one.
                    if participant.arrives(now, rtt) { participant.used.max(1) } else { progress.streams() }
                }
                // Between two servers.
                None => participant.heard.streams().unwrap_or(participant.streams),
            };
            totals.streams += if busy { streams } else { 0 };
        }
        totals
    }
}

impl ParticipantState {
    /// Adds everything but the streams.
    pub(super) fn add_to(&mut self, totals: &mut Totals) {
        if let Some(progress) = &self.progress {
            totals.add(progress, &mut self.counter, matches!(self.stream_control, StreamControl::Here(..)));
        }
        totals.storage += self.storage;
        totals.looks = totals.looks.saturating_add(self.looks);
        totals.behind = totals.behind.saturating_add(self.behind);
        totals.hear(&self.heard);
    }

    /// Whether data moves, or has moved recently.
    pub(super) fn is_busy(&self, now: Instant, rtt: Duration) -> bool {
        self.moving || self.arrives(now, rtt)
    }

    fn arrives(&self, now: Instant, rtt: Duration) -> bool {
        let pause = PAUSE.max(PAUSE_ROUND_TRIPS * rtt);
        self.arrived.is_some_and(|arrived| now.saturating_duration_since(arrived) < pause)
    }
}
