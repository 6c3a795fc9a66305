//! Tests of the report of a run.

#![allow(clippy::unwrap_used)]
use ropewalk_protocol::path::VirtualPath;

use super::*;

const S: Duration = Duration::from_secs(1);

fn task() -> Task {
    let place = |p: &[u8]| crate::place::Place::Local(VirtualPath::parse(p).unwrap());
    let task = Task { size: Some(100), ..Task::new(0, place(b"/a"), place(b"/b")) };
    task.account.plan(100);
    task
}

/// A report, and the events that it sends.
fn recorded() -> (Arc<Mutex<Vec<Event>>>, Report) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    (events, Report::new(Arc::new(move |event: Event| sink.lock().push(event))))
}

#[test]
fn what_was_left_out_of_the_plan_is_not_done() {
    let report = Report::new(Arc::new(|_: Event| ()));
    for _ in 0..3 {
        report.planned(100);
    }
    report.left_out("a".into(), "same size");
    report.left_out("b".into(), "same size");
    let entry = failure("c".into(), "d".into(), FailureKind::Other, "unreadable".into());
    report.failed_early(7, entry);
    assert_eq!(report.left(), Some((3, 300)));
    // Files that need not be copied leave the plan.
    report.needless(&task(), "same checksum");
    assert_eq!(report.left(), Some((2, 200)));
    assert!(!report.knows_all());
    report.plan_complete();
    assert!(report.knows_all());
    let summary = report.finish(false, Vec::new(), Vec::new(), Duration::ZERO);
    assert_eq!((summary.files_skipped, summary.files_failed), (3, 1));
}

#[test]
fn a_file_that_is_there_already_leaves_the_plan() {
    let (events, report) = recorded();
    for _ in 0..2 {
        report.planned(100);
    }
    report.plan_complete();
    // With translated line ends, the size has no meaning.
    report.needless(&Task { size: None, ..task() }, "same checksum");
    // The plan is reported together with the progress of the rest.
    report.progress();
    let events = std::mem::take(&mut *events.lock());
    let plans = events.iter().filter_map(|event| match event {
        Event::Planned { files, bytes, complete } => Some((*files, *bytes, *complete)),
        _ => None,
    });
    assert_eq!(plans.collect::<Vec<_>>(), [(1, 100, false), (2, 200, true), (1, 100, true)]);
}

#[test]
fn a_big_file_among_small_ones_is_one() {
    let alike = |plan: &[(u64, u64)]| {
        let report = Report::new(Arc::new(|_: Event| ()));
        for (files, size) in plan {
            (0..*files).for_each(|_| report.planned(*size));
        }
        report.left_alike()
    };
    assert_eq!(alike(&[(32, 16 << 20)]), Some((32, 32 << 24)));
    assert_eq!(alike(&[(1, 10 << 30), (100, 1 << 10)]), Some((2, (10 << 30) + (100 << 10))));
    assert_eq!(alike(&[(20, 100 << 20), (1000, 1 << 10)]).map(|alike| alike.0), Some(21));
    assert_eq!((alike(&[(3, 0)]), alike(&[])), (Some((3, 0)), None));
    assert_eq!(alike(&[(2, 1 << 63)]).map(|alike| alike.0), Some(2));
    // The big file is done.
    let report = Report::new(Arc::new(|_: Event| ()));
    [10 << 30].into_iter().chain([1 << 10; 100]).for_each(|size| report.planned(size));
    report.there(&Account::default(), 10 << 30);
    report.done(1, 10 << 30, Duration::ZERO, None);
    assert_eq!(report.left_alike(), Some((100, 100 << 10)));
}

#[test]
fn progress_is_rare_and_bytes_are_what_the_destination_has() {
    let (events, report) = recorded();
    let mut task = task();
    report.anew(&mut task);
    report.started(&task, 10);
    let mut meter = Meter::new(&report, &task);
    for n in 0..50 {
        meter.update(n, 2);
    }
    meter.failed(0);
    meter.update(7, 2);
    let mut late = Meter::new(&report, &task);
    report.anew(&mut task);
    // Bytes of the first try no longer count.
    late.update(3, 0);
    late.failed(0);
    drop((meter, late));
    report.started(&task, 17);
    report.put_back();
    report.done(0, 100, S, Some("crc32c:0".into()));
    let summary = report.finish(false, Vec::new(), Vec::new(), Duration::ZERO);
    assert_eq!((summary.bytes, summary.bytes_resumed, summary.streams), (59, 10, 2));
    assert_eq!((summary.bytes_done, summary.bytes_verified), (100, 100));
    let events = events.lock();
    let progress: Vec<_> = events.iter().filter(|e| matches!(e, Event::Progress { .. })).collect();
    assert!(progress.len() < 5);
    assert!(matches!(progress.last(), Some(Event::Progress { bytes: 17, files_done: 1, streams: 0, .. })));
}

#[test]
fn warns_once() {
    let (events, report) = recorded();
    report.warn_once("x".into());
    report.warn_once("x".into());
    assert_eq!(events.lock().len(), 1);
}
