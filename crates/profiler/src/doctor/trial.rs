//! Settings that are tried out: set and taken back as often as it takes, then kept or not.
//!
//! All the while the journal says `applying`: whenever the process dies, [`Journal::restore`] brings back the old values,
//! whichever are set.

use super::change::{Applied, Change, Changes, Refused};
use super::journal::{Content, Journal, JournalError, State};

/// Settings on trial. They begin as they were; dropping this leaves them so.
#[derive(Debug)]
pub struct Trial<'j> {
    journal: &'j Journal,
    /// What restoring has to bring back, with earlier changes that are kept.
    content: Content,
    changes: Vec<Change>,
    /// Whether each has its new value, and what the kernel made of that.
    new: Vec<bool>,
    refused: Vec<Refused>,
    over: bool,
}

/// A setting that somebody else has changed meanwhile, and its value.
pub type Foreign = (String, String);

impl Journal {
    /// Writes the old values to the disk, and nothing else yet.
    ///
    /// # Errors
    /// As [`apply`](Self::apply). Nothing was changed.
    pub fn try_out(&self, changes: &Changes) -> Result<Trial<'_>, JournalError> {
        let content = self.merged(changes)?;
        self.save(&content)?;
        let new = vec![false; changes.0.len()];
        let changes = changes.0.clone();
        Ok(Trial { journal: self, content, changes, new, refused: Vec::new(), over: false })
    }
}

impl Trial<'_> {
    /// Sets the new values. Optional ones that the kernel refuses are no part of the trial from then on.
    ///
    /// # Errors
    /// One cannot be set, or somebody else has changed one since.
    pub fn set_new(&mut self) -> Result<(), JournalError> {
        let mut place = 0;
        while place < self.changes.len() {
            if !self.new[place] {
                self.check(place)?;
                let change = &self.changes[place];
                match self.journal.settings.set(&change.name, &change.after) {
                    Ok(after) => self.changes[place].after = after,
                    Err(source) => {
                        let Some(left) = self.journal.settings.refused(change, &source) else {
                            let (name, value) = (change.name.clone(), change.after.clone());
                            return Err(JournalError::Set { name, value, source });
                        };
                        self.refused.push(left);
                        self.content.leave(change);
                        self.changes.remove(place);
                        self.new.remove(place);
                        continue;
                    }
                }
                self.new[place] = true;
            }
            place += 1;
        }
        Ok(())
    }

    /// Optional settings that the kernel has refused.
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// Whether there is nothing to try: all were refused.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Sets the old values.
    ///
    /// # Errors
    /// As [`set_new`](Self::set_new).
    pub fn set_old(&mut self) -> Result<(), JournalError> {
        for place in 0..self.changes.len() {
            if self.new[place] {
                self.check(place)?;
                self.set(place, &self.changes[place].before.clone())?;
                self.new[place] = false;
            }
        }
        Ok(())
    }

    /// Sets the new values for good: until [`Journal::restore`]. What they are.
    ///
    /// # Errors
    /// As [`set_new`](Self::set_new); then the old ones are back, except where that failed too.
    pub fn keep(mut self) -> Result<Applied, JournalError> {
        self.set_new()?;
        for change in &self.changes {
            let entry = self.content.changes.iter_mut().find(|entry| entry.name == change.name);
            entry.into_iter().for_each(|entry| entry.after.clone_from(&change.after));
        }
        self.content.state = State::Applied;
        self.journal.keep(&self.content)?;
        self.over = true;
        let (changes, refused) = (std::mem::take(&mut self.changes), std::mem::take(&mut self.refused));
        Ok(Applied { changes, refused })
    }

    /// Takes everything back. What somebody else has set meanwhile is left alone and told.
    ///
    /// # Errors
    /// A setting cannot be written: then the others are back, and the file still has all old values.
    pub fn abandon(mut self) -> Result<Vec<Foreign>, JournalError> {
        self.end()
    }

    fn end(&mut self) -> Result<Vec<Foreign>, JournalError> {
        self.over = true;
        let (mut foreign, mut failed) = (Vec::new(), None);
        for place in 0..self.changes.len() {
            let change = self.changes[place].clone();
            let result = self.journal.get(&change.name).and_then(|now| {
                if now == change.after {
                    return self.set(place, &change.before).map(drop);
                }
                if now != change.before {
                    foreign.push((change.name.clone(), now));
                }
                Ok(())
            });
            failed = failed.or(result.err());
        }
        if let Some(error) = failed {
            return Err(error);
        }
        // What earlier changes left different from the very first values stays to be brought back.
        let mut left = Vec::new();
        for mut entry in std::mem::take(&mut self.content.changes) {
            let now = self.journal.get(&entry.name)?;
            if now == entry.before {
                continue;
            }
            if !foreign.iter().any(|(name, _)| *name == entry.name) {
                entry.after = now;
            }
            left.push(entry);
        }
        self.content.changes = left;
        self.content.state = State::Applied;
        self.journal.keep(&self.content)?;
        Ok(foreign)
    }

    fn check(&self, place: usize) -> Result<(), JournalError> {
        let change = &self.changes[place];
        let expected = if self.new[place] { &change.after } else { &change.before };
        let found = self.journal.get(&change.name)?;
        if found == *expected {
            return Ok(());
        }
        Err(JournalError::Meanwhile { name: change.name.clone(), expected: expected.clone(), found })
    }

    fn set(&self, place: usize, value: &str) -> Result<String, JournalError> {
        let name = &self.changes[place].name;
        self.journal.settings.set(name, value).map_err(|source| JournalError::Set {
            name: name.clone(),
            value: value.to_owned(),
            source,
        })
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if !self.over {
            // What cannot be brought back here is in the file.
            let _ = self.end();
        }
    }
}
