//! A trial of settings: they are set and reset as often as necessary, and then kept or not.
//!
//! During the trial the journal has the state `applying`: if the process dies, [`Journal::restore`]
//! restores the old values, whichever are set.

use super::change::{Applied, Change, Changes, Refused};
use super::journal::{Content, Journal, JournalError, State};

/// Settings on trial. They have their old values at the start, and dropping the trial restores
/// these.
#[derive(Debug)]
pub struct Trial<'j> {
    journal: &'j Journal,
    /// The content of the journal: the values to be restored, together with earlier changes that
    /// are kept.
    content: Content,
    changes: Vec<Change>,
    /// For each setting, whether it has its new value. That value in `changes` is the one that the
    /// kernel made of it.
    new: Vec<bool>,
    refused: Vec<Refused>,
    over: bool,
}

/// The name and value of a setting that another program has changed in the meantime.
pub type Foreign = (String, String);

impl Journal {
    /// Starts a trial: writes the old values to the disk and changes no setting yet.
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
    /// Sets the new values. Optional settings that the kernel refuses are removed from the trial.
    ///
    /// # Errors
    /// A setting cannot be written, or another program has changed one since.
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

    /// Whether all settings were refused, so that nothing is left to try.
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

    /// Sets the new values for good, until [`Journal::restore`], and returns them.
    ///
    /// # Errors
    /// As [`set_new`](Self::set_new). Then the old values are restored, unless that failed too.
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

    /// Restores all old values. Settings that another program has changed in the meantime are left
    /// alone and returned.
    ///
    /// # Errors
    /// A setting cannot be written. Then the others are restored, and the file still has all old
    /// values.
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
        // Settings that earlier changes made different from their very first values stay in the
        // file.
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
            // The file still has the values that cannot be restored here.
            let _ = self.end();
        }
    }
}
