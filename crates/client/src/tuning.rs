//! The thread that samples the paths of a run ten times a second.

use std::sync::atomic::Ordering;
use std::time::Instant;

use ropewalk_tuning::tuner::Work;

use crate::Event;
use crate::context::Context;
use crate::tune::{Load, Processors};

/// Samples the paths until the run is over. `hire` starts another worker and returns whether it
/// could.
pub(crate) fn drive(ctx: &Context, hire: &dyn Fn() -> bool) {
    let mut processors = Processors::default();
    while ctx.tune.wait() {
        let now = Instant::now();
        let used = ctx.tune.used().clone();
        for path in used {
            let left = ctx.report.left();
            let work = left.map(|(files, bytes)| Work { files, bytes });
            let ends = left.filter(|_| ctx.report.knows_all()).map(|left| left.1);
            let (waiting, workers) = (ctx.queue.has_waiting(), ctx.sessions.load(Ordering::Relaxed));
            let step = path.step(now, &mut processors, Load { work, ends, waiting, workers });
            for _ in 0..step.hire {
                let workers = ctx.sessions.fetch_add(1, Ordering::Relaxed) + 1;
                if !hire() {
                    ctx.sessions.fetch_sub(1, Ordering::Relaxed);
                    break;
                }
                ctx.report.sessions(workers);
            }
            if let Some(change) = step.stack {
                ctx.report.event(Event::Stack {
                    path: path.path_tuner().ends.name(),
                    stack: change.stack.to_owned(),
                    bits_per_second: 8.0 * change.rate,
                    reason: change.reason.into(),
                    why: change.why,
                });
            }
            if let Some((decision, rate)) = step.decision {
                ctx.report.event(Event::Tuned {
                    path: path.path_tuner().ends.name(),
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
