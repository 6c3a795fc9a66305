//! Sources that are patterns.

use super::*;
use crate::model::glob::Glob;

impl Plan<'_> {
    pub(super) fn glob(&mut self, ends: &Ends, path: &BString) -> Result<(), RemoteError> {
        let glob = Glob::new(path.as_bstr()).map_err(|e| RemoteError::Usage(e.to_string()))?;
        let base = with_path(&ends.source, glob.base.clone());
        let links = self.ctx.options().preserve.links;
        let (mut matches, mut directories) = (Vec::new(), 0u64);
        let reopened = reopen(self.ctx);
        let (ctx, recursive) = (self.ctx, self.ctx.options().selection.recursive);
        // Matches are handled after the listing, with the same session.
        self.side(&base, false)?.walk_on(&base.path(), links, &reopened, &mut |_, entry| {
            let verdict = glob.judge(entry.name.as_bstr());
            // An unparsable line in the listing of the glob's base: its entry might match.
            let top = entry.name.is_empty() && entry.error.is_some();
            let nameless = verdict.matches && entry.is_nameless();
            if verdict.matches && entry.is_directory() && !nameless && !recursive {
                directories += 1;
                ctx.report.left_out(base.join(&entry.name)?.display(), "is a directory");
            } else if top || verdict.matches || verdict.misses(&entry) {
                matches.push(entry);
            }
            let stop = ctx.queue.is_stopped() || ctx.cancel.is_cancelled();
            Ok(match verdict.enter && !verdict.matches {
                _ if stop => Step::Stop,
                true => Step::Into,
                false => Step::Over,
            })
        })?;
        match (matches.is_empty(), directories) {
            (true, 0) => return Err(crate::walk::missing(path)),
            (true, _) => {
                return Err(RemoteError::Usage(format!(
                    "{path}: only directories match (copy them with -r)"
                )));
            }
            (false, _) => {}
        }
        let untold = |entry: &&mut Entry| self.is_timeless(&base, entry.kind, entry.modified);
        let untold: Vec<&mut Entry> = matches.iter_mut().filter(untold).collect();
        if !untold.is_empty() {
            let paths: Vec<BString> = untold.iter().map(|entry| join(&base.path(), &entry.name)).collect();
            for (entry, time) in untold.into_iter().zip(self.times(&base, &paths)?) {
                entry.modified = time;
            }
        }
        for entry in matches {
            if self.is_over() {
                break;
            }
            let top = entry.name.is_empty();
            let from = if top { base.clone() } else { base.join(&entry.name)? };
            let to = ends.destination.display();
            let unlisted = top || !glob.judge(entry.name.as_bstr()).matches;
            if entry.is_nameless() {
                self.fail(from.display(), to, &tree::nameless(&from));
            } else if let (true, Some(reason)) = (unlisted, entry.error.clone()) {
                let unlisted = RemoteError::Unlisted { path: from.path(), reason };
                self.fail(from.display(), to, &unlisted);
            } else {
                self.matched(ends, &base, &entry)?;
            }
        }
        Ok(())
    }

    /// Handles an entry that matches a glob.
    fn matched(&mut self, ends: &Ends, base: &Place, entry: &Entry) -> Result<(), RemoteError> {
        let source = base.join(&entry.name)?;
        if !entry.is_directory() && is_temporary_name(base_name(&entry.name).as_bstr()) {
            self.ctx.report.left_out(source.display(), UNFINISHED);
            return Ok(());
        }
        if !self.filter.passes(entry.name.as_bstr(), entry.is_directory()) {
            self.ctx.report.left_out(source.display(), LEFT_OUT);
            return Ok(());
        }
        let destination = ends.destination.clone();
        let one = Ends {
            source,
            destination,
            contents: false,
            into: true,
            window: ends.window,
            source_program: false,
            destination_program: false,
        };
        if let Err(e) = self.entry(&one, entry, None) {
            if e.breaks_session() {
                return Err(e);
            }
            self.fail(one.source.display(), one.destination.display(), &e);
        }
        Ok(())
    }
}
