//! SITE PROFILE: profiles of this host.

use std::io::Cursor;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ropewalk_engine::Progress;
use ropewalk_protocol::profiling::ProfileAnswer;
use ropewalk_protocol::server::{Direction, Failure, FetchProfile, Outcome, ProfileRequest};

use super::baseline;
use super::observer::{Markers, Observer};
use super::transfer::announce;
use super::{Answer, channel};
use crate::host::profiling::{self, Profile, Slot, StartError};
use crate::measurements::Measurements;
use crate::session::context::Context;
use crate::session::job::Job;

fn refused(code: u16, text: impl Into<String>) -> Failure {
    Failure::Refused { code, text: text.into() }
}

pub(super) fn answer(job: &mut Job<'_>, request: ProfileRequest) -> Answer {
    permitted(job.context)?;
    let answer = match request {
        ProfileRequest::Start { seconds, raw } => start(job, seconds, raw)?,
        ProfileRequest::Clock => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            ProfileAnswer::Clock(now.as_secs_f64())
        }
        ProfileRequest::Stop => stop(job)?,
        ProfileRequest::ReadDisk(path) => baseline::read(job, &path)?,
        ProfileRequest::WriteDisk(path) => baseline::write(job, &path)?,
        ProfileRequest::Processor => baseline::processor(job)?,
        ProfileRequest::Iperf => baseline::iperf(job)?,
    };
    Ok(Outcome::Profile(answer))
}

fn permitted(context: &Context) -> Result<(), Failure> {
    context.login()?;
    let config = &context.settings.config.profiling;
    if config.permits(context.counted_as()) {
        return Ok(());
    }
    Err(refused(550, "This account may not take profiles (profiling.users in the server's settings)."))
}

/// A session without measurements does not know SITE PROFILE.
pub(super) fn measurements<'a>(job: &Job<'a>) -> Result<&'a Arc<dyn Measurements>, Failure> {
    job.host.measurements.as_ref().ok_or_else(|| refused(502, "This server takes no profiles."))
}

fn start(job: &mut Job<'_>, wanted: Option<u32>, raw: bool) -> Result<ProfileAnswer, Failure> {
    let measurements = measurements(job)?;
    let context = &mut *job.context;
    if matches!(context.profile, Some(Profile::Running(_))) {
        return Err(refused(503, "A profile is being taken: send SITE PROFILE STOP first."));
    }
    let longest = u32::try_from(context.settings.config.profiling.longest.as_secs()).unwrap_or(u32::MAX);
    let seconds = wanted.unwrap_or(longest);
    if seconds > longest {
        return Err(refused(501, format!("A profile takes {longest} seconds at most here.")));
    }
    // A profile that was not fetched makes room.
    context.profile = None;
    let root = context.login.as_ref().map(|login| login.account.root.as_path());
    let config = &context.settings.config.profiling;
    match profiling::start(
        measurements,
        &job.host.profiling,
        config,
        context.counted_as(),
        root,
        seconds,
        raw,
    ) {
        Ok(running) => {
            tracing::info!(session = context.id, user = context.user(), seconds, "a profile is taken");
            context.profile = Some(Profile::Running(running));
            Ok(ProfileAnswer::Started { seconds })
        }
        Err(error @ StartError::TooMany(_)) => Err(Failure::Busy(error.to_string())),
        Err(error) => {
            tracing::warn!(session = context.id, %error, "no profile can be taken");
            Err(Failure::Busy(error.to_string()))
        }
    }
}

fn stop(job: &mut Job<'_>) -> Result<ProfileAnswer, Failure> {
    let running = match job.context.profile.take() {
        Some(Profile::Running(running)) => running,
        other => {
            job.context.profile = other;
            return Err(refused(503, "No profile is being taken: send SITE PROFILE START first."));
        }
    };
    let taken =
        running.finish().ok_or_else(|| Failure::Busy("What measures did not come to an end.".into()))?;
    let (bytes, raw) = match &taken {
        Profile::Taken { bytes, raw, .. } => {
            (bytes.len() as u64, raw.iter().map(|file| file.name.clone()).collect())
        }
        Profile::Running(_) => (0, Vec::new()),
    };
    job.context.profile = Some(taken);
    tracing::info!(session = job.context.id, user = job.context.user(), bytes, "a profile was taken");
    Ok(ProfileAnswer::Stopped { bytes, raw })
}

/// The data to fetch. The profile itself is returned once, and the files of the tools are removed
/// with it, so they are fetched before. Its permit is returned with it: the profile is in memory
/// for as long as a slow client takes.
fn what(context: &mut Context, raw: Option<&[u8]>) -> Result<(Vec<u8>, Option<Slot>), Failure> {
    let Some(Profile::Taken { raw: files, .. }) = &mut context.profile else {
        return Err(refused(503, "There is no profile: send SITE PROFILE STOP first."));
    };
    if let Some(name) = raw {
        let found = files.iter_mut().find(|file| file.name.as_bytes() == name);
        let file = found.ok_or_else(|| refused(550, "There is no such file of a tool."))?;
        return Ok((std::mem::take(&mut file.bytes), None));
    }
    match context.profile.take() {
        Some(Profile::Taken { bytes, slot, .. }) => Ok((bytes, Some(slot))),
        _ => Ok((Vec::new(), None)),
    }
}

pub(super) fn fetch(job: &mut Job<'_>, fetch: &FetchProfile) -> Answer {
    permitted(job.context)?;
    announce(job, fetch.delayed.as_ref())?;
    let (bytes, _slot) = what(job.context, fetch.raw.as_ref().map(|name| name.as_slice()))?;
    let mut channel = channel::take(job, Direction::Retrieve)?;
    let progress = Progress::new();
    job.dialogue.share(job.permit);
    job.dialogue.reply_early(&channel);
    let mut observer = Observer::new(&mut job.dialogue, Markers::none());
    let result = channel.data.send_reader(&mut Cursor::new(bytes), &mut observer, &progress);
    let broken = job.dialogue.broken_off();
    job.context.channel = Some(channel);
    match (broken, result) {
        (Some(failure), _) | (None, Err(failure)) => Err(failure),
        (None, Ok(_)) => Ok(Outcome::Transferred { checksum: None }),
    }
}
