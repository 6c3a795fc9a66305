//! Jobs of a long-lived client: events, pausing, cancelling.

mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use common::{ensure_clean, options, write};
use ropewalk_client::{
    Auto, Client, ClientLimits, Event, EventSink, JobSpec, Location, Pair, parse_location,
};
use ropewalk_tests::files::ensure_same;
use ropewalk_tests::scratch::Scratch;

const FILES: usize = 40;

/// A tree to copy, and the job that copies it file by file.
fn tree(here: &Scratch) -> Result<JobSpec> {
    for n in 0..FILES {
        write(&here.join(format!("s/{n:02}")), format!("file {n}").as_bytes())?;
    }
    let at = |name: &str| Location::Local(here.join(name));
    let pair = Pair { source: at("s/"), destination: at("t/"), window: None };
    let state_directory = Some(here.directory("state")?);
    let options = options().with(|o| {
        o.tuning.files = Auto::Set(1);
        o.state_directory = state_directory;
    });
    Ok(JobSpec::new(vec![pair]).with_options(options))
}

fn ensure_copied(here: &Scratch) -> Result<()> {
    for n in 0..FILES {
        ensure_same(&here.join(format!("s/{n:02}")), &here.join(format!("t/{n:02}")))?;
    }
    ensure_clean(&here.join("t"))
}

/// Blocks the thread that reports the third finished file until the test lets it continue.
struct Halting {
    done: Mutex<usize>,
    reached: Sender<()>,
    go: Mutex<Receiver<()>>,
}

impl EventSink for Halting {
    fn event(&self, event: Event) {
        if !matches!(event, Event::FileDone { .. }) {
            return;
        }
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += 1;
        let third = *done == 3;
        drop(done);
        if third {
            let _ = self.reached.send(());
            let _ = self.go.lock().unwrap_or_else(PoisonError::into_inner).recv();
        }
    }
}

fn halting() -> (Arc<Halting>, Receiver<()>, Sender<()>) {
    let ((reached, is_reached), (go, may_go)) = (channel(), channel());
    let sink = Halting { done: Mutex::new(0), reached, go: Mutex::new(may_go) };
    (Arc::new(sink), is_reached, go)
}

#[test]
fn jobs_of_one_client_run_beside_each_other_and_report_their_events() -> Result<()> {
    let client = Client::new(&ClientLimits::default());
    let (one, other) = (Scratch::new()?, Scratch::new()?);
    let mut jobs = Vec::new();
    for here in [&one, &other] {
        let mut job = client.submit(tree(here)?)?;
        let events = job.events().context("no events")?;
        ensure!(job.events().is_none());
        jobs.push((here, job, events));
    }
    for (here, job, events) in jobs {
        let events: Vec<Event> = events.collect();
        ensure!(matches!(events.last(), Some(Event::Finished(_))), "{:?}", events.last());
        let done = events.iter().filter(|event| matches!(event, Event::FileDone { .. })).count();
        let summary = job.join()?;
        ensure!((done, summary.files_done) == (FILES, FILES as u64), "{done}: {summary:?}");
        ensure_copied(here)?;
    }
    Ok(())
}

#[test]
fn paused_job_stops_and_resumes_without_sending_finished_files_again() -> Result<()> {
    let here = Scratch::new()?;
    let (sink, reached, go) = halting();
    let job = Client::new(&ClientLimits::default()).submit_to(tree(&here)?, sink.clone())?;
    reached.recv()?;
    let control = job.control();
    control.pause();
    go.send(())?;
    ensure!(!job.is_finished());
    control.resume();
    let summary = job.join()?;
    ensure!(!summary.interrupted && summary.files_failed == 0, "{summary:?}");
    ensure!(summary.files_done == FILES as u64, "{summary:?}");
    ensure!(*sink.done.lock().unwrap_or_else(PoisonError::into_inner) == FILES);
    ensure_copied(&here)
}

#[test]
fn job_cancelled_while_it_is_paused_ends_as_interrupted() -> Result<()> {
    let here = Scratch::new()?;
    let (sink, reached, go) = halting();
    let job = Client::new(&ClientLimits::default()).submit_to(tree(&here)?, sink)?;
    reached.recv()?;
    let control = job.control();
    control.pause();
    go.send(())?;
    control.cancel();
    // The job does not run again.
    control.resume();
    let summary = job.join()?;
    ensure!(summary.interrupted && summary.files_done < FILES as u64, "{summary:?}");
    ensure_clean(&here.join("t"))
}

#[test]
fn paused_job_without_another_control_ends_when_it_is_joined() -> Result<()> {
    let here = Scratch::new()?;
    let (sink, reached, go) = halting();
    let job = Client::new(&ClientLimits::default()).submit_to(tree(&here)?, sink)?;
    reached.recv()?;
    job.control().pause();
    go.send(())?;
    let summary = job.join()?;
    ensure!(summary.interrupted && summary.files_done < FILES as u64, "{summary:?}");
    Ok(())
}

#[test]
fn limit_on_the_rate_is_that_of_the_client() -> Result<()> {
    let mut limits = ClientLimits::default();
    limits.bandwidth = Some((1 << 30).into());
    let client = Client::new(&limits);
    let here = Scratch::new()?;
    let JobSpec { pairs, options, .. } = tree(&here)?;
    let own = options.clone().with(|o| o.tuning.bandwidth = Some(1.into()));
    ensure!(client.submit(JobSpec::new(pairs).with_options(own)).is_err());
    // The data of such a copy does not pass through this host, so it cannot obey the client's
    // limit.
    let server = |name: &str| parse_location(format!("ftp://{name}.invalid/f"));
    let pair = Pair { source: server("a")?, destination: server("b")?, window: None };
    let refused = client.submit(JobSpec::new(vec![pair]).with_options(options))?.join();
    let error = refused.err().context("it was not refused")?.to_string();
    ensure!(error.contains("--bandwidth limits"), "{error}");
    Ok(())
}

#[test]
fn resumed_job_does_not_send_files_again_that_its_pairs_name() -> Result<()> {
    let here = Scratch::new()?;
    let JobSpec { options, .. } = tree(&here)?;
    here.directory("t")?;
    let at = |name: String| Location::Local(here.join(name));
    let pair =
        |n| Pair { source: at(format!("s/{n:02}")), destination: at(format!("t/{n:02}")), window: None };
    let job = JobSpec::new((0..FILES).map(pair).collect()).with_options(options);
    let (sink, reached, go) = halting();
    let job = Client::new(&ClientLimits::default()).submit_to(job, sink.clone())?;
    reached.recv()?;
    let control = job.control();
    control.pause();
    go.send(())?;
    ensure!(!job.is_finished());
    control.resume();
    let summary = job.join()?;
    ensure!(!summary.interrupted && summary.files_failed == 0, "{summary:?}");
    ensure!((summary.files_done, summary.files_skipped) == (FILES as u64, 0), "{summary:?}");
    ensure!(*sink.done.lock().unwrap_or_else(PoisonError::into_inner) == FILES);
    ensure_copied(&here)
}
