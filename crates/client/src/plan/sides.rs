//! The trees that a plan inspects, and its queries to them.

use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::model::threads;
use crate::opening;
use crate::place::Endpoint;
use crate::verify::same;

impl Plan<'_> {
    /// Logs in to both servers of a third-party copy at the same time, because a log-in takes
    /// several round trips. Errors are reported when a session is needed.
    pub(super) fn open_both(&mut self, ends: &Ends) {
        let (Place::Remote(from, _), Place::Remote(to, _)) = (&ends.source, &ends.destination) else {
            return;
        };
        let ctx = self.ctx;
        let open = |endpoint: &Arc<Endpoint>| opening::open(ctx, endpoint).ok();
        let (destination, source) = threads::both(|| open(to), || open(from));
        for (place, session, destination) in
            [(&ends.source, source, false), (&ends.destination, destination, true)]
        {
            if let Some(session) = session {
                self.sides.insert((self.key(place), destination), Side::Remote(Box::new(session)));
            }
        }
    }

    /// The tree that a place is in. Source and destination use separate sessions.
    pub(super) fn side(&mut self, place: &Place, destination: bool) -> Result<&mut Side, RemoteError> {
        let name = match place {
            Place::Remote(endpoint, _) => format!("{:p}", Arc::as_ptr(endpoint)),
            _ => String::new(),
        };
        let key = (name, destination);
        if let Some(Side::Remote(session)) = self.sides.get_mut(&key)
            && session.keep_alive().is_err()
        {
            self.sides.remove(&key);
        }
        if !self.sides.contains_key(&key) {
            let side = match place {
                Place::Remote(endpoint, _) => Side::Remote(Box::new(opening::open(self.ctx, endpoint)?)),
                _ => Side::Local(self.ctx.store.clone()),
            };
            self.sides.insert(key.clone(), side);
        }
        self.sides.get_mut(&key).ok_or(RemoteError::Cancelled)
    }

    /// Runs an action during a walk of `source` with the session of the walk, which may be the only
    /// one.
    pub(super) fn lent<T>(
        &mut self,
        source: &Place,
        side: &mut Side,
        work: impl FnOnce(&mut Self) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        let Side::Remote(_) = side else { return work(self) };
        let key = (self.key(source), false);
        let session = std::mem::replace(side, Side::Local(self.ctx.store.clone()));
        self.sides.insert(key.clone(), session);
        let done = work(self);
        if done.is_ok() {
            // By another session, if that one broke.
            self.side(source, false)?;
        }
        if let Some(session) = self.sides.remove(&key) {
            *side = session;
        }
        done
    }

    /// Returns the result of `ask` for the tree that a place is in. If the session breaks, another
    /// one is used.
    pub(super) fn ask<T>(
        &mut self,
        place: &Place,
        destination: bool,
        ask: &mut dyn FnMut(&mut Side) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        let reopened = reopen(self.ctx);
        let answer = self.side(place, destination)?.ask(Some(&reopened), ask);
        answer.inspect_err(|e| self.forget(place, destination, e))
    }

    /// Drops a session that broke; it is replaced when it is needed again.
    pub(super) fn forget(&mut self, place: &Place, destination: bool, error: &RemoteError) {
        if let (Place::Remote(endpoint, _), true) = (place, error.breaks_session()) {
            self.sides.remove(&(format!("{:p}", Arc::as_ptr(endpoint)), destination));
        }
    }

    /// The attributes of many ends, in one round trip for each server.
    pub(super) fn stat_all<'x>(&mut self, ends: impl Iterator<Item = &'x Ends>) -> Known {
        let mut wanted: HashMap<(String, bool), (Place, Vec<BString>)> = HashMap::new();
        for end in ends {
            for (place, destination) in [(&end.source, false), (&end.destination, true)] {
                if let Place::Remote(endpoint, path) = place {
                    let key = (format!("{:p}", Arc::as_ptr(endpoint)), destination);
                    wanted.entry(key).or_insert_with(|| (place.clone(), Vec::new())).1.push(path.clone());
                }
            }
        }
        let mut known = Known::new();
        for ((_, destination), (place, mut paths)) in wanted {
            paths.sort();
            paths.dedup();
            if paths.len() < 2 {
                continue;
            }
            let told = self.ask(&place, destination, &mut |side| match side {
                Side::Remote(session) => session.stat_many(&paths),
                Side::Local(_) => Ok(Vec::new()),
            });
            // An error occurs again, and is reported, at the individual query.
            for (path, entry) in paths.iter().zip(told.into_iter().flatten()) {
                let place = with_path(&place, path.clone());
                if let Ok(entry) = entry {
                    known.insert((self.spot(&place), destination), Some(entry));
                }
            }
        }
        known
    }

    /// The times of files at the server of `source` whose listings have none (LIST), if they are to
    /// be preserved.
    pub(super) fn times(
        &mut self,
        source: &Place,
        paths: &[BString],
    ) -> Result<Vec<Option<i64>>, RemoteError> {
        let mut times = Vec::with_capacity(paths.len());
        for paths in paths.chunks(BATCH) {
            if self.timeless {
                break;
            }
            let told = self.ask(source, false, &mut |side| match side {
                Side::Remote(session) => session.times(paths),
                Side::Local(_) => Ok(Vec::new()),
            })?;
            self.timeless = told.iter().all(Option::is_none);
            if let Some(at) = told.iter().position(Option::is_none) {
                let name = with_path(source, paths[at].clone()).display();
                let text = format!(
                    "{name}: the server does not report its time, and perhaps not \
                                    those of other files"
                );
                self.ctx.report.warn_once(text);
            }
            times.extend(told);
        }
        times.resize(paths.len(), None);
        Ok(times)
    }

    /// Adds missing times to files of one source.
    pub(super) fn learn_times(&mut self, files: &mut [Task]) -> Result<(), RemoteError> {
        let kind = |task: &Task| if task.link.is_some() { Kind::Symlink } else { Kind::File };
        let untold =
            files.iter_mut().filter(|task| self.is_timeless(&task.source, kind(task), task.modified));
        let untold: Vec<&mut Task> = untold.collect();
        let Some(source) = untold.first().map(|task| task.source.clone()) else { return Ok(()) };
        let paths: Vec<BString> = untold.iter().map(|task| task.source.path()).collect();
        for (task, time) in untold.into_iter().zip(self.times(&source, &paths)?) {
            task.modified = time;
        }
        Ok(())
    }

    /// Whether the time has to be requested.
    pub(super) fn is_timeless(&self, source: &Place, kind: Kind, modified: Option<i64>) -> bool {
        let options = self.ctx.options();
        options.preserve.times
            && !options.dry_run
            && modified.is_none()
            && kind == Kind::File
            && matches!(source, Place::Remote(..))
    }

    pub(super) fn stat(
        &mut self,
        place: &Place,
        destination: bool,
        known: &mut Known,
    ) -> Result<Option<Entry>, RemoteError> {
        if let Some(entry) = known.remove(&(self.spot(place), destination)) {
            return Ok(entry);
        }
        let path = place.path();
        match self.ask(place, destination, &mut |side| side.stat(&path)) {
            // Some servers permit writing to a directory without permitting its inspection.
            Err(e)
                if destination
                    && self.ctx.options().selection.sync.is_none()
                    && e.reply_code() == Some(550) =>
            {
                Ok(None)
            }
            result => result,
        }
    }

    /// Whether both ends have the same bytes, if both support a common checksum algorithm.
    pub(super) fn have_one_sum(&mut self, task: &Task) -> Result<bool, RemoteError> {
        let ends = [(&task.source, false), (&task.destination, true)];
        let mut servers = Vec::new();
        for (place, destination) in ends {
            if let Side::Remote(session) = self.side(place, destination)? {
                servers.push(session.can.clone());
            }
        }
        let Some(algorithm) = self.ctx.comparison(&servers.iter().collect::<Vec<_>>()) else {
            return Ok(false);
        };
        let ctx = self.ctx;
        let mut sum = |place: &Place, destination| {
            self.ask(place, destination, &mut |side| match (side, place) {
                (Side::Remote(session), _) => session.checksum(&place.path(), algorithm, None, task.size),
                (Side::Local(_), Place::Local(path)) => ctx.local_sum(path, algorithm),
                (Side::Local(_), _) => Ok(String::new()),
            })
        };
        // If it cannot be read, it is copied.
        let Some(theirs) = task.unless_missing(sum(&task.destination, true))? else { return Ok(false) };
        Ok(same(&sum(&task.source, false)?, &theirs))
    }

    /// The source's entry. If links are preserved, a link itself, unless its contents are
    /// requested.
    pub(super) fn source(&mut self, ends: &Ends, known: &mut Known) -> Result<Option<Entry>, RemoteError> {
        if ends.contents || !self.ctx.options().preserve.links {
            return self.stat(&ends.source, false, known);
        }
        if let Some(entry) = known.remove(&(self.spot(&ends.source), false)) {
            return Ok(entry);
        }
        let path = ends.source.path();
        self.ask(&ends.source, false, &mut |side| side.stat_link(&path))
    }

    /// The destination's entry.
    pub(super) fn destination(
        &mut self,
        ends: &Ends,
        known: &mut Known,
    ) -> Result<Option<Entry>, RemoteError> {
        match ends.destination {
            Place::Standard | Place::Measure(_) => Ok(None),
            _ => self.stat(&ends.destination, true, known),
        }
    }

    pub(super) fn spot(&self, place: &Place) -> Spot {
        (self.key(place), place.path())
    }

    pub(super) fn key(&self, place: &Place) -> String {
        match place {
            Place::Remote(endpoint, _) => format!("{:p}", Arc::as_ptr(endpoint)),
            _ => String::new(),
        }
    }
}

/// Servers close idle sessions, and a plan sends nothing while the queue is full.
pub(crate) fn reopen<'p>(
    ctx: &'p Context,
) -> impl Fn(&Arc<Endpoint>, &RemoteError, u32, Instant) -> Option<Session> + 'p {
    move |endpoint, error, tries, first| {
        let pause = ctx.retry(error, tries, first)?;
        opening::sleep(ctx, pause).ok()?;
        opening::open(ctx, endpoint).ok()
    }
}
