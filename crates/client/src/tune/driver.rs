//! The thread that looks at the lanes ten times a second.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ropewalk_tuning::tuner::Work;

use super::Tune;
use super::pressure::Processors;
use crate::Event;
use crate::context::Context;

const TICK: Duration = Duration::from_millis(100);

impl Tune {
    /// Until the run is over. `hire` begins a further worker.
    pub(crate) fn drive(&self, ctx: &Context, hire: &dyn Fn() -> bool) {
        let mut processors = Processors::default();
        while self.wait() {
            let now = Instant::now();
            let lanes = self.lanes().clone();
            for lane in lanes {
                let left = ctx.report.left();
                let work = left.map(|(files, bytes)| Work { files, bytes });
                let ends = left.filter(|_| ctx.report.knows_all()).map(|left| left.1);
                let workers = ctx.sessions.load(Ordering::Relaxed);
                let step = lane.step(now, &mut processors, (work, ends), ctx.queue.has_waiting(), workers);
                for _ in 0..step.hire {
                    let workers = ctx.sessions.fetch_add(1, Ordering::Relaxed) + 1;
                    if !hire() {
                        ctx.sessions.fetch_sub(1, Ordering::Relaxed);
                        break;
                    }
                    ctx.report.sessions(workers);
                }
                if let Some((decision, rate)) = step.decision {
                    ctx.report.event(Event::Tuned {
                        path: lane.ends.name(),
                        streams: decision.knobs.connections(),
                        files: decision.knobs.files,
                        pipeline: decision.knobs.pipeline,
                        congestion_control: decision.congestion.map(|control| control.name().into()),
                        bits_per_second: 8.0 * rate,
                        reason: decision.reason.name().into(),
                        why: decision.reason.to_string(),
                    });
                }
            }
        }
    }

    /// Waits for the next tick; `false` when the run is over. Without lanes it is not woken.
    fn wait(&self) -> bool {
        let mut lanes = self.lanes();
        let is_over = || *self.over.lock();
        while lanes.is_empty() && !is_over() {
            self.changed.wait(&mut lanes);
        }
        if is_over() {
            return false;
        }
        let until = Instant::now() + TICK;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if is_over() {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            self.changed.wait_for(&mut lanes, left);
        }
    }
}
