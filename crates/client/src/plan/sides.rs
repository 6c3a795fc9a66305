//! The trees that a plan looks into, and what it asks them.

use std::sync::Arc;

use super::*;
use crate::place::Endpoint;
use crate::worker;

impl<'e> Plan<'_, 'e> {
    /// Logs in to both servers of a third-party copy at the same time: over a long path one log-in takes a while. Who
    /// cannot be reached is told when it is needed.
    pub(super) fn open_both(&mut self, ends: &Ends) {
        let (Place::Remote(from, _), Place::Remote(to, _)) = (&ends.source, &ends.destination) else {
            return;
        };
        let ctx = self.ctx;
        let open = |endpoint: &Arc<Endpoint>| worker::open(ctx, endpoint).ok();
        let (source, destination) = std::thread::scope(|scope| {
            let other = scope.spawn(|| open(to));
            (open(from), other.join().ok().flatten())
        });
        for (place, session, destination) in
            [(&ends.source, source, false), (&ends.destination, destination, true)]
        {
            if let Some(session) = session {
                self.sides.insert((self.key(place), destination), Side::Remote(Box::new(session)));
            }
        }
    }

    /// The tree that a place is in. Source and destination have sessions of their own.
    pub(super) fn side(&mut self, place: &Place, destination: bool) -> Result<&mut Side<'e>, RemoteError> {
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
                Place::Remote(endpoint, _) => Side::Remote(Box::new(worker::open(self.ctx, endpoint)?)),
                _ => Side::Local(self.ctx.store.clone()),
            };
            self.sides.insert(key.clone(), side);
        }
        self.sides.get_mut(&key).ok_or(RemoteError::Cancelled)
    }

    /// A session that broke is replaced when it is needed again.
    pub(super) fn forget(&mut self, place: &Place, destination: bool, error: &RemoteError) {
        if let (Place::Remote(endpoint, _), true) = (place, error.breaks_session()) {
            self.sides.remove(&(format!("{:p}", Arc::as_ptr(endpoint)), destination));
        }
    }

    /// The attributes of many ends, with one round trip for all of a server.
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
            let Ok(Side::Remote(session)) = self.side(&place, destination) else { continue };
            match session.stat_many(&paths) {
                Ok(entries) => {
                    for (path, entry) in paths.into_iter().zip(entries) {
                        let place = with_path(&place, path);
                        // Errors are met again, and told, when it is asked for alone.
                        if let Ok(entry) = entry {
                            known.insert((self.spot(&place), destination), Some(entry));
                        }
                    }
                }
                Err(e) => self.forget(&place, destination, &e),
            }
        }
        known
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
        let links = self.ctx.options().preserve.links && !destination;
        let side = self.side(place, destination)?;
        let result = if links { side.stat_link(&place.path()) } else { side.stat(&place.path()) };
        match result {
            // Some servers let somebody write where they do not let him look.
            Err(e) if destination && self.ctx.options().sync.is_none() && e.reply_code() == Some(550) => {
                Ok(None)
            }
            result => result.inspect_err(|e| self.forget(place, destination, e)),
        }
    }

    /// What there is at the destination.
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
