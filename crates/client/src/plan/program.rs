//! Files for which a program of a server stands (SITE SETDISKSTACK, `popen`). The path at that
//! server names nothing: it is neither looked at nor made.

use super::*;

impl Plan<'_> {
    /// Plans the copy of one file from or to a program.
    pub(super) fn program(&mut self, ends: &Ends, known: &mut Known) -> Result<(), RemoteError> {
        let alone = |place: &Place, why: &str| {
            Err(RemoteError::Usage(format!("{}: a program stands for it, {why}", place.display())))
        };
        if ends.window.is_some() {
            let place = if ends.source_program { &ends.source } else { &ends.destination };
            return alone(place, "which has no ranges");
        }
        if ends.contents && ends.source_program {
            return alone(&ends.source, "not for a directory");
        }
        if ends.into && ends.destination_program {
            return alone(&ends.destination, "not for a directory");
        }
        let entry = match ends.source {
            Place::Remote(..) | Place::Local(_) if !ends.source_program => {
                let entry = self.source(ends, known)?;
                Some(entry.ok_or_else(|| crate::walk::missing(&ends.source.path()))?)
            }
            _ => None,
        };
        if entry.as_ref().is_some_and(Entry::is_directory) {
            return alone(&ends.destination, "which takes a single file");
        }
        let mut destination = ends.destination.clone();
        let mut there = None;
        if !ends.destination_program {
            there = match destination {
                Place::Remote(..) | Place::Local(_) => self.look(&destination)?,
                Place::Standard | Place::Measure(_) => None,
            };
            if ends.into || there.as_ref().is_some_and(Entry::is_directory) {
                return alone(&ends.source, "so that the destination needs the name of a file");
            }
            destination = self.linked(&destination, there.as_ref())?;
        }
        let mut task = self.task(ends.source.clone(), destination, None);
        task.source_program = ends.source_program;
        task.destination_program = ends.destination_program;
        if let Some(entry) = &entry {
            fill(&mut task, entry);
            // The program gets the bytes of the file, also of one behind a link.
            task.link = None;
        }
        if let Place::Measure(size) = ends.source {
            task.size = Some(size);
        }
        match ends.destination_program {
            true => {
                self.push(task);
                Ok(())
            }
            false => self.file(task, there.as_ref()),
        }
    }
}
