//! Other programs, or other guests of the machine, use the processor.
//!
//! The kernel counts how long a program was ready to run but had to wait (proc(5), schedstat). A
//! quarter of a second per second of the transfer is a sign, three quarters are proof, if the
//! program waited at least half as long as it ran. A program with many threads also waits for its
//! own threads; it then shows as busy (`cpu`). Time that other guests of the machine take (steal)
//! counts from 10 % of all processors, and in full from 40 %.
//!
//! A program that waits may have the time to do so. If both ends wait, the end that TCP indicates
//! counts (as in `cpu`). If TCP indicates neither, a full path or a full buffer is the better
//! explanation, so the confidence is less than half.

use super::cpu::shown;
use crate::verdict::figures::ramp;
use crate::verdict::text::percent;
use crate::verdict::{Cause, CauseKind, End, Evidence, Rule};

pub(super) struct CpuCompeting;

impl Rule for CpuCompeting {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let found = evidence.ends().filter_map(|end| {
            let cause = judge(end)?;
            Some(Cause { confidence: cause.confidence * (0.45 + 0.55 * shown(evidence, end)), ..cause })
        });
        found.max_by(|a, b| a.confidence.total_cmp(&b.confidence))
    }
}

fn judge(end: &End) -> Option<Cause> {
    let waits = end.programs.iter().filter_map(|program| {
        let waited = program.waited_for_processor? / program.seconds;
        let ran = (program.user + program.system) / program.seconds;
        // A program that has its processors to itself waits for its own threads.
        let processors = program.processors.map_or(end.processors, f64::from).max(1.0);
        let alone = ran / processors >= 0.9;
        (program.seconds > 0.0 && waited >= 0.5 * ran && !alone).then_some((
            program.name.as_str(),
            waited,
            ran,
        ))
    });
    let wait = waits.max_by(|a, b| a.1.total_cmp(&b.1));
    let steal = end.all.as_ref().map_or(0.0, |all| all.steal);
    let of_wait = wait.map_or(0.0, |wait| ramp(wait.1, 0.25, 0.75));
    let of_steal = ramp(steal, 0.1, 0.4);
    let confidence = 0.95 * of_wait.max(of_steal);
    if confidence == 0.0 {
        return None;
    }
    let (kind, evidence, advice) = match wait {
        Some((name, waited, ran)) if of_wait >= of_steal => (
            CauseKind::CpuCompeting,
            format!(
                "{name} was ready to run but waited for a processor {} of the time, and ran {}",
                percent(waited),
                percent(ran)
            ),
            "move the other work elsewhere, or let the transfer use other processors (taskset, CPUAffinity=, cgroup limits)",
        ),
        _ => (
            CauseKind::CpuSteal,
            format!("other guests of the machine took {} of its processors", percent(steal)),
            "nothing within this machine: have whoever runs the one beneath give it processors of its own, or move guests or the \
             transfer elsewhere",
        ),
    };
    Some(Cause { kind, host: Some(end.name.clone()), confidence, evidence, advice: advice.into() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::{Processor, Program};
    use crate::verdict::rules::samples::{quiet, starved};

    fn waiting(waited: f64, ran: f64) -> Evidence {
        let mut evidence = starved();
        evidence.source.as_mut().unwrap().programs = vec![Program {
            name: "ropewalk".into(),
            seconds: 10.0,
            user: ran * 10.0,
            waited_for_processor: Some(waited * 10.0),
            processors: Some(1),
            ..Program::default()
        }];
        evidence
    }

    #[test]
    fn cpu_competing_when_program_waits_is_found() {
        let cause = CpuCompeting.judge(&waiting(0.6, 0.4)).unwrap();
        assert!(cause.confidence > 0.6 && cause.evidence.contains("60 %"), "{cause:?}");
    }

    #[test]
    fn cpu_competing_when_program_waits_for_itself_is_none() {
        assert_eq!(CpuCompeting.judge(&waiting(0.6, 0.99)), None);
        assert_eq!(CpuCompeting.judge(&waiting(0.05, 0.02)), None);
        assert_eq!(CpuCompeting.judge(&quiet()), None);
        let mut never_ran = waiting(1.0, 0.0);
        never_ran.source.as_mut().unwrap().programs[0].seconds = 0.0;
        assert_eq!(CpuCompeting.judge(&never_ran), None);
    }

    #[test]
    fn cpu_competing_when_both_ends_wait_follows_tcp() {
        let mut evidence = waiting(0.9, 0.1);
        let programs = evidence.source.as_ref().unwrap().programs.clone();
        evidence.destination.as_mut().unwrap().programs = programs;
        // The receiver waits as long, but leaves no data unread.
        assert_eq!(CpuCompeting.judge(&evidence).unwrap().host.as_deref(), Some("left"));
        evidence.path.as_mut().unwrap().application_limited = 0.0;
        evidence.destination.as_mut().unwrap().unread = Some(14e6);
        assert_eq!(CpuCompeting.judge(&evidence).unwrap().host.as_deref(), Some("right"));
        // Neither end keeps the path waiting.
        evidence.destination.as_mut().unwrap().unread = Some(0.0);
        assert!(CpuCompeting.judge(&evidence).unwrap().confidence < 0.5);
    }

    #[test]
    fn cpu_competing_when_time_is_stolen_finds_steal() {
        let mut evidence = quiet();
        evidence.destination.as_mut().unwrap().all = Some(Processor { steal: 0.5, ..Processor::default() });
        let cause = CpuCompeting.judge(&evidence).unwrap();
        assert!(cause.kind == CauseKind::CpuSteal && cause.evidence.contains("guests"), "{cause:?}");
        assert!(!cause.advice.contains("taskset"), "{cause:?}");
    }
}
