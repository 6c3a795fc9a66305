//! A processor is the limit, and the kind of work that it does.
//!
//! A processor is a limit if the busiest one was busy for 80 to 97 % of the time (samples of a
//! second blur higher values), or if the program that moves the data used 75 to 95 % of all
//! processors that it may use.
//!
//! A host may be busy with other work while the network is the limit. So unless interrupts take the
//! time, or the program's own share is the evidence, TCP has to confirm it: a sender whose program
//! has too little to send (20 to 60 % of samples, or 70 to 40 % of the congestion window and no
//! other limit), or a receiver that leaves data unread (by the scale of `destination_disk`). If
//! neither is known, the confidence counts 70 %.
//!
//! The busiest processor may also work for other programs. So if the programs that move the data
//! were sampled, one of them must have worked, or waited for a processor, for 40 to 80 % of the
//! time of one processor.
//!
//! After the data has moved, files are read again if their checksums cannot be combined. If nothing
//! moved for 20 to 50 % of the time, while the programs of both ends together worked for 30 to 60 %
//! of that, one after the other, the cause is checksums.
//!
//! The kind of work is determined as follows:
//! - by the profiler's functions, if there are any (a kind with at least 30 % of the work; copying
//!   comes last, because the kernel copies during all other work);
//! - otherwise by the times of Ropewalk's own engine (checksums or encryption with 30 % of the
//!   streams' time);
//! - otherwise by the kind of processor time: interrupts with half of the processor's work; the
//!   kernel with half of the program's work, if that is known (for a transfer the kernel copies to
//!   and from sockets and files); otherwise the program.
//!
//! Only sampled functions identify the kind with certainty. If the program waited long for the
//! processor, `cpu_competing` is the better explanation.

use super::destination_disk::backlog;
use crate::profile::{FunctionShare, Processor, Program, ShareKind};
use crate::verdict::figures::ramp;
use crate::verdict::text::percent;
use crate::verdict::{Cause, CauseKind, End, Evidence, Rule};

pub(super) struct Cpu;

/// Parts of functions' names, in lower case. The first kind that matches counts.
const NAMES: [(CauseKind, &[&str]); 4] = [
    (
        CauseKind::CpuEncryption,
        &["aes", "gcm", "ghash", "chacha", "poly1305", "evp_cipher", "evp_encrypt", "evp_decrypt"],
    ),
    (CauseKind::CpuChecksum, &["crc32", "adler", "md5", "sha1", "sha2", "sha5", "blake", "xxh"]),
    (CauseKind::CpuInterrupt, &["softirq", "net_rx_action", "napi_", "_interrupt", "handle_irq", "_poll_rx"]),
    (
        CauseKind::CpuCopy,
        &[
            "copy_user",
            "copy_to_iter",
            "copy_from_iter",
            "copy_from_user",
            "copy_to_user",
            "memmove",
            "memcpy",
            "rep_movs",
            "copy_page",
            "clear_page",
            "csum_",
        ],
    ),
];

/// The kind of work that a function does, if its name shows it.
pub(crate) fn kind_of(function: &str) -> Option<CauseKind> {
    let name = function.to_ascii_lowercase();
    NAMES.iter().find(|(_, parts)| parts.iter().any(|part| name.contains(part))).map(|&(kind, _)| kind)
}

impl Rule for Cpu {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        evidence
            .ends()
            .filter_map(|end| judge(evidence, end))
            .chain(afterwards(evidence))
            .max_by(|a, b| a.confidence.total_cmp(&b.confidence))
    }
}

/// Returns how far processors limit an end, the share that shows it, and whether that share is the
/// program's own.
pub(super) fn hot(end: &End) -> (f64, f64, bool) {
    let busiest = end.busiest.as_ref().or(end.all.as_ref()).map_or(0.0, Processor::busy);
    let program = end.programs.iter().filter(|program| program.seconds > 0.0).map(|program| {
        let processors = program.processors.map_or(end.processors, f64::from).max(1.0);
        (program.user + program.system) / (program.seconds * processors)
    });
    let program = program.fold(0.0, f64::max);
    let of_busiest = ramp(busiest, 0.8, 0.97);
    let of_program = ramp(program, 0.75, 0.95);
    if of_program > of_busiest { (of_program, program, true) } else { (of_busiest, busiest, false) }
}

/// How far TCP shows that the program of an end is too slow.
pub(super) fn shown(evidence: &Evidence, end: &End) -> f64 {
    let sends = evidence.source.as_ref() == Some(end);
    let path = evidence.path.as_ref().filter(|_| sends);
    // On a path of microseconds, some data is in flight in every sample.
    let starved = path.map(|path| ramp(path.application_limited, 0.2, 0.6).max(evidence.handed_little()));
    let behind = backlog(end).filter(|_| !sends).map(|share| ramp(share, 0.2, 0.67));
    starved.or(behind).unwrap_or(0.7)
}

/// How far the programs that move the data take part in the work.
fn takes_part(end: &End) -> f64 {
    let known = end.programs.iter().filter(|program| program.seconds > 0.0);
    let shares = known.map(|program| {
        (program.user + program.system + program.waited_for_processor.unwrap_or(0.0)) / program.seconds
    });
    shares.reduce(f64::max).map_or(1.0, |share| ramp(share, 0.4, 0.8))
}

/// The program of an end that worked most.
fn worker(end: &End) -> Option<&Program> {
    let known = end.programs.iter().filter(|program| program.seconds > 0.0 && worked(program) > 0.0);
    known.max_by(|a, b| worked(a).total_cmp(&worked(b)))
}

fn worked(program: &Program) -> f64 {
    program.user + program.system
}

/// How far the program's own work keeps the processor busy. It does not if the program waited for
/// others for half to twice as long as it ran, unless it ran for 50 to 80 % of the time of its
/// processors, and thus waited for its own threads.
fn own_work(end: &End) -> f64 {
    let Some(program) = worker(end) else { return 1.0 };
    let processors = program.processors.map_or(end.processors, f64::from).max(1.0);
    let share = ramp(worked(program) / program.seconds / processors, 0.5, 0.8);
    let waited = program.waited_for_processor.unwrap_or(0.0) / worked(program);
    share.max(1.0 - ramp(waited, 0.5, 2.0))
}

fn judge(evidence: &Evidence, end: &End) -> Option<Cause> {
    let (limit, share, of_program) = hot(end);
    let (kind, sure, why) = kind(end)?;
    let needs_proof = kind != CauseKind::CpuInterrupt && !of_program;
    let proof = || shown(evidence, end) * takes_part(end) * own_work(end);
    let limit = if needs_proof { limit * proof() } else { limit };
    (limit > 0.0).then(|| Cause {
        kind,
        host: Some(end.name.clone()),
        confidence: limit * sure,
        evidence: format!("the busiest processor (or the program's share) was at {}; {why}", percent(share)),
        advice: advice(kind).to_owned(),
    })
}

/// Finds checksums that are computed after all data has moved.
fn afterwards(evidence: &Evidence) -> Option<Cause> {
    let after = 1.0 - evidence.moving?;
    let work = |end: &End| {
        let program = end.programs.iter().filter(|program| program.seconds > 0.0);
        program.map(|program| program.user).fold(0.0, f64::max)
    };
    let end = evidence.ends().max_by(|a, b| work(a).total_cmp(&work(b)))?;
    let share = evidence.ends().map(work).sum::<f64>() / (after * evidence.seconds);
    let confidence = 0.9 * ramp(after, 0.2, 0.5) * ramp(share, 0.3, 0.6);
    (confidence > 0.0).then(|| Cause {
        kind: CauseKind::CpuChecksum,
        host: Some(end.name.clone()),
        confidence,
        evidence: format!(
            "{} of the time was over when all data had come, and programs computed for {} of the rest",
            percent(1.0 - after),
            percent(share.min(1.0))
        ),
        advice: "take a checksum that is computed while data moves: CRC32C, or ADLER32 with other servers (`--checksum auto`)"
            .into(),
    })
}

fn kind(end: &End) -> Option<(CauseKind, f64, String)> {
    by_functions(end)
        .or_else(|| by_stages(end))
        .or_else(|| by_time(end.busiest.as_ref().or(end.all.as_ref())?, worker(end)))
}

fn by_functions(end: &End) -> Option<(CauseKind, f64, String)> {
    let profiler = end.profiler.as_ref().filter(|profiler| profiler.samples >= 100)?;
    let of = |wanted: CauseKind| -> f64 {
        let matches = |part: &&FunctionShare| kind_of(&part.function) == Some(wanted);
        let named: f64 = profiler.functions.iter().filter(matches).map(|part| part.share).sum();
        let interrupts = profiler.shares.iter().filter(|part| part.kind == ShareKind::Interrupt);
        let interrupts: f64 = interrupts.map(|part| part.share).sum();
        if wanted == CauseKind::CpuInterrupt { named.max(interrupts) } else { named }
    };
    let (kind, share) = NAMES.iter().map(|&(kind, _)| (kind, of(kind))).find(|&(_, share)| share >= 0.3)?;
    let what = name(kind);
    Some((kind, 0.95, format!("{what} took {} of the work ({} samples)", percent(share), profiler.samples)))
}

fn by_stages(end: &End) -> Option<(CauseKind, f64, String)> {
    let kinds = [
        (CauseKind::CpuChecksum, end.stage(|stages| stages.checksum.busy)?),
        (CauseKind::CpuEncryption, end.stage(|stages| stages.encryption.busy)?),
    ];
    let (kind, share) = kinds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).filter(|kind| kind.1 >= 0.3)?;
    Some((kind, 0.9, format!("{} took {} of the streams' time", name(kind), percent(share))))
}

fn by_time(processor: &Processor, worker: Option<&Program>) -> Option<(CauseKind, f64, String)> {
    let busy = processor.busy();
    if busy <= 0.0 {
        return None;
    }
    let interrupts = (processor.irq + processor.softirq) / busy;
    if interrupts >= 0.5 {
        let why = format!("interrupts took {} of its work", percent(interrupts));
        return Some((CauseKind::CpuInterrupt, 0.85, why));
    }
    // Other programs may have worked on the same processor, so the program's own times are
    // preferred.
    let (system, user, whose) = worker.map_or_else(
        || (processor.system / busy, processor.user / busy, "its work"),
        |program| (program.system / worked(program), program.user / worked(program), "the program's work"),
    );
    Some(if system >= 0.5 {
        (CauseKind::CpuCopy, 0.75, format!("the kernel took {} of {whose}", percent(system)))
    } else {
        (CauseKind::CpuProgram, 0.7, format!("programs took {} of {whose}", percent(user)))
    })
}

fn name(kind: CauseKind) -> &'static str {
    match kind {
        CauseKind::CpuChecksum => "checksums",
        CauseKind::CpuEncryption => "encryption",
        CauseKind::CpuInterrupt => "serving interrupts",
        CauseKind::CpuCopy => "copying",
        _ => "programs",
    }
}

fn advice(kind: CauseKind) -> &'static str {
    match kind {
        CauseKind::CpuChecksum => {
            "use CRC32C, which the processor computes itself, or more streams on more processors"
        }
        CauseKind::CpuEncryption => {
            "use more streams, which are encrypted side by side; an AES-GCM cipher on a processor with AES instructions; \
             or protect integrity only, where the site allows it"
        }
        CauseKind::CpuInterrupt => {
            "spread the card's queues over processors (irqbalance or RSS/RPS), raise interrupt coalescing, larger MTU, GRO on"
        }
        CauseKind::CpuCopy => {
            "larger MTU, TSO and GRO on, larger blocks, no encryption where it is not needed (then files are sent without \
             copying), streams on more processors"
        }
        _ => {
            "more streams on more processors, a newer program, or a faster processor; governor `performance`"
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::{ProfilerShares, StageTime};
    use crate::verdict::rules::samples::{quiet, starved};

    fn busy(user: f64, system: f64, softirq: f64) -> Evidence {
        let mut evidence = starved();
        let processor = Processor { name: "3".into(), user, system, softirq, ..Processor::default() };
        evidence.source.as_mut().unwrap().busiest = Some(processor);
        evidence
    }

    #[test]
    fn cpu_without_profiler_finds_kind_by_time() {
        for (evidence, kind) in [
            (busy(0.1, 0.2, 0.69), CauseKind::CpuInterrupt),
            (busy(0.2, 0.7, 0.09), CauseKind::CpuCopy),
            (busy(0.9, 0.05, 0.04), CauseKind::CpuProgram),
        ] {
            let cause = Cpu.judge(&evidence).unwrap();
            assert!(cause.kind == kind && cause.confidence >= 0.7, "{cause:?}");
            assert_eq!(cause.host.as_deref(), Some("left"));
        }
    }

    #[test]
    fn cpu_when_stages_are_known_finds_checksums_and_encryption() {
        let mut evidence = busy(0.97, 0.02, 0.0);
        let stages = evidence.source.as_mut().unwrap().stages.as_mut().unwrap();
        stages.encryption = StageTime { busy: 6.0, waited: 0.0 };
        assert_eq!(Cpu.judge(&evidence).unwrap().kind, CauseKind::CpuEncryption);
        let stages = evidence.source.as_mut().unwrap().stages.as_mut().unwrap();
        stages.checksum = StageTime { busy: 8.0, waited: 0.0 };
        assert_eq!(Cpu.judge(&evidence).unwrap().kind, CauseKind::CpuChecksum);
    }

    #[test]
    fn cpu_when_functions_are_sampled_finds_kind_by_name() {
        let mut evidence = busy(0.5, 0.49, 0.0);
        let function = |name: &str, share| FunctionShare {
            function: name.into(),
            object: "libcrypto.so.3".into(),
            program: "server".into(),
            share,
        };
        evidence.source.as_mut().unwrap().profiler = Some(ProfilerShares {
            samples: 900,
            functions: vec![
                function("aesni_ctr32_encrypt", 0.3),
                function("gcm_ghash_avx", 0.2),
                function("memcpy", 0.2),
            ],
            ..ProfilerShares::default()
        });
        let cause = Cpu.judge(&evidence).unwrap();
        assert!(cause.kind == CauseKind::CpuEncryption && cause.evidence.contains("50 %"), "{cause:?}");
        // A handful of samples is not enough.
        evidence.source.as_mut().unwrap().profiler.as_mut().unwrap().samples = 9;
        assert_eq!(Cpu.judge(&evidence).unwrap().kind, CauseKind::CpuProgram);
    }

    #[test]
    fn cpu_when_program_uses_up_its_processor_is_found() {
        let mut evidence = quiet();
        evidence.destination.as_mut().unwrap().programs = vec![Program {
            seconds: 10.0,
            user: 2.0,
            system: 7.9,
            processors: Some(1),
            ..Program::default()
        }];
        let cause = Cpu.judge(&evidence).unwrap();
        assert!(cause.host.as_deref() == Some("right") && cause.evidence.contains("99 %"), "{cause:?}");
    }

    #[test]
    fn cpu_when_network_limits_is_none() {
        let mut evidence = busy(0.9, 0.1, 0.0);
        evidence.path.as_mut().unwrap().application_limited = 0.0;
        assert_eq!(Cpu.judge(&evidence), None);
        // Interrupts are not the work of the program.
        let mut evidence = busy(0.1, 0.1, 0.8);
        evidence.path.as_mut().unwrap().application_limited = 0.0;
        assert_eq!(Cpu.judge(&evidence).unwrap().kind, CauseKind::CpuInterrupt);
        // A receiver that is too slow leaves data unread.
        let mut evidence = quiet();
        let end = evidence.destination.as_mut().unwrap();
        end.busiest.as_mut().unwrap().user = 0.79;
        assert_eq!(Cpu.judge(&evidence), None);
        evidence.destination.as_mut().unwrap().unread = Some(14e6);
        assert!(Cpu.judge(&evidence).is_some());
    }

    #[test]
    fn cpu_when_path_is_short_uses_the_filled_window() {
        let mut evidence = busy(0.2, 0.7, 0.09);
        let path = evidence.path.as_mut().unwrap();
        (path.application_limited, path.filled) = (0.1, Some(0.9));
        assert_eq!(Cpu.judge(&evidence), None);
        evidence.path.as_mut().unwrap().filled = Some(0.17);
        assert_eq!(Cpu.judge(&evidence).unwrap().kind, CauseKind::CpuCopy);
        // A send buffer is the limit.
        evidence.path.as_mut().unwrap().buffer_limited = 0.9;
        assert_eq!(Cpu.judge(&evidence), None);
    }

    #[test]
    fn cpu_when_programs_work_after_the_data_finds_checksums() {
        let mut evidence = quiet();
        evidence.moving = Some(0.2);
        assert_eq!(Cpu.judge(&evidence), None);
        let program = Program { seconds: 10.0, user: 3.0, processors: Some(4), ..Program::default() };
        evidence.source.as_mut().unwrap().programs = vec![program.clone()];
        evidence.destination.as_mut().unwrap().programs = vec![program];
        let cause = Cpu.judge(&evidence).unwrap();
        assert!(cause.kind == CauseKind::CpuChecksum && cause.confidence > 0.8, "{cause:?}");
        evidence.moving = Some(0.97);
        assert_eq!(Cpu.judge(&evidence), None);
    }

    #[test]
    fn cpu_when_other_programs_are_busy_is_none() {
        let mut evidence = busy(0.9, 0.1, 0.0);
        let program = |user| Program { seconds: 10.0, user, processors: Some(4), ..Program::default() };
        evidence.source.as_mut().unwrap().programs = vec![program(0.5)];
        assert_eq!(Cpu.judge(&evidence), None);
        evidence.source.as_mut().unwrap().programs = vec![program(9.0)];
        assert!(Cpu.judge(&evidence).is_some());
    }

    #[test]
    fn cpu_kind_is_by_the_programs_own_time() {
        let mut evidence = busy(0.6, 0.4, 0.0);
        let mut program =
            Program { seconds: 10.0, user: 1.0, system: 5.0, processors: Some(1), ..Program::default() };
        evidence.source.as_mut().unwrap().programs = vec![program.clone()];
        let cause = Cpu.judge(&evidence).unwrap();
        assert!(cause.kind == CauseKind::CpuCopy && cause.evidence.contains("83 %"), "{cause:?}");
        // The program had the processor for a third of the time in which it was ready to run.
        (program.user, program.system, program.waited_for_processor) = (1.0, 2.0, Some(6.0));
        evidence.source.as_mut().unwrap().programs = vec![program];
        assert_eq!(Cpu.judge(&evidence), None);
    }

    #[test]
    fn cpu_when_processors_are_idle_is_none() {
        assert_eq!(Cpu.judge(&quiet()), None);
        assert_eq!(Cpu.judge(&Evidence::default()), None);
        assert_eq!(kind_of("schedule"), None);
        assert_eq!(kind_of("__softirqentry_text_start"), Some(CauseKind::CpuInterrupt));
    }
}
