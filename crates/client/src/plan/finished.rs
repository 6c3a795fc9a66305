//! Skips files that an interrupted run of the same command, or of the same job, has finished.

use super::*;
use crate::finished::Finished;

const FINISHED: &str = "an earlier run of this command has finished it";

impl Plan<'_> {
    /// Removes files that an earlier run has finished, if source and destination have not changed
    /// since, and those that this job has finished before it was paused.
    pub(super) fn leave_out_finished(
        &mut self,
        destination: &Place,
        files: &mut Vec<Task>,
    ) -> Result<(), RemoteError> {
        let ctx = self.ctx;
        let options = ctx.options();
        files.retain(|task| !ctx.was_done_before(task));
        if options.selection.sync.is_some() || !ctx.finished.has_any() {
            return Ok(());
        }
        let when = files.iter().map(|task| Some((task.destination.path(), ctx.finished.when(task)?)));
        let (paths, mut when): (Vec<BString>, Vec<u64>) = when.flatten().unzip();
        if paths.is_empty() {
            return Ok(());
        }
        let there = self.ask(destination, true, &mut |side| match side {
            Side::Remote(_) => side.stat_many(&paths),
            Side::Local(_) => Ok(paths.iter().map(|path| side.stat_link(path).ok().flatten()).collect()),
        })?;
        let mut asked = paths.iter().zip(there).zip(when.drain(..));
        let mut next = asked.next();
        files.retain(|task| {
            let Some(((_, there), at)) = next.take_if(|((path, _), _)| **path == task.destination.path())
            else {
                return true;
            };
            next = asked.next();
            let still =
                there.is_some_and(|there| Finished::is_still_there(task, &there, at, options.preserve.times));
            if still {
                ctx.report.left_out(task.source.display(), FINISHED);
            }
            !still
        });
        Ok(())
    }
}
