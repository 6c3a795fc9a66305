//! Creates, changes and removes names: directories, links, whole trees.

use bstr::{BString, ByteSlice};
use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::Command;
use ropewalk_protocol::error_class::ErrorClass;
use ropewalk_protocol::site::SiteCommand;

use crate::RemoteError;
use crate::model::quirks::SymlinkCommand;
use crate::part::part_apart;
use crate::place::{base_name, parent};
use crate::session::Session;

/// Largest depth of a removed tree: a server may list any depth.
pub(crate) const LEVELS: usize = 500;

/// The error beyond that depth.
pub(crate) fn too_deep() -> String {
    format!("deeper than {LEVELS} directories")
}

impl Session {
    pub(crate) fn make_directory(&mut self, path: &[u8], parents: bool) -> Result<(), RemoteError> {
        let first = match self.call(&Command::Mkd(path.into())) {
            Ok(_) => return Ok(()),
            Err(e) if e.breaks_session() || !parents => return Err(e),
            Err(e) if exists(&e) => {
                return if self.stat(path).is_ok_and(|there| !there.is_directory()) {
                    Err(e)
                } else {
                    Ok(())
                };
            }
            Err(e) => e,
        };
        let mut missing = Vec::new();
        let mut above = Some(path);
        while let Some(directory) = above.filter(|d| *d != b"/") {
            missing.push(Command::Mkd(directory.into()));
            above = parent(directory);
        }
        missing.reverse();
        // Existing directories are refused; only the last reply counts.
        let made = self.calls(&missing)?.pop().is_some_and(|reply| reply.is_ok());
        if made || self.stat(path).is_ok_and(|entry| entry.is_directory()) { Ok(()) } else { Err(first) }
    }

    /// Makes directories, parents first; existing ones are no error. All commands are sent at once.
    pub(crate) fn make_directories(
        &mut self,
        paths: &[BString],
    ) -> Result<Vec<Result<bool, RemoteError>>, RemoteError> {
        let commands: Vec<Command> = paths.iter().map(|path| Command::Mkd(path.clone())).collect();
        let replies = self.calls(&commands)?;
        let refused: Vec<BString> = replies
            .iter()
            .zip(paths)
            .filter(|(reply, _)| reply.is_err())
            .map(|(_, path)| path.clone())
            .collect();
        let mut there = self.stat_many(&refused)?.into_iter();
        let mut results = Vec::with_capacity(paths.len());
        for reply in replies {
            results.push(match reply {
                Ok(_) => Ok(true),
                Err(e) => match there.next() {
                    Some(Ok(entry)) if entry.is_directory() => Ok(false),
                    // The directory is not accessible, but may exist.
                    Some(Err(unknown)) if exists(&e) && !unknown.breaks_session() => Ok(false),
                    _ => Err(e),
                },
            });
        }
        Ok(results)
    }

    /// Removes a file, a link or an empty directory.
    pub(crate) fn remove(&mut self, path: &[u8]) -> Result<(), RemoteError> {
        let path = itself(path);
        let file = match self.call(&Command::Dele(path.into())) {
            Ok(_) => return Ok(()),
            Err(e) if e.breaks_session() => return Err(e),
            Err(e) => e,
        };
        match self.call(&Command::Rmd(path.into())) {
            Ok(_) => Ok(()),
            Err(e) if e.breaks_session() => Err(e),
            // The more precise one of two errors.
            Err(directory) => match self.stat(path) {
                Ok(entry) if entry.is_directory() => Err(directory),
                _ => Err(file),
            },
        }
    }

    /// Removes an empty directory.
    pub(crate) fn remove_directory(&mut self, path: &[u8]) -> Result<(), RemoteError> {
        self.call(&Command::Rmd(path.into())).map(drop)
    }

    /// Removes a whole tree.
    pub(crate) fn remove_tree(&mut self, path: &[u8]) -> Result<(), RemoteError> {
        self.remove_deep(path, LEVELS)
    }

    /// `left`: remaining depth.
    fn remove_deep(&mut self, path: &[u8], left: usize) -> Result<(), RemoteError> {
        let path = itself(path);
        if self.can.extended {
            let reply = self.control.call(&Command::Site(SiteCommand::Rdel(path.into())))?;
            if reply.is_success() {
                return Ok(());
            }
            if !reply.is_unknown_command() && self.stat(path).is_ok_and(|entry| entry.is_directory()) {
                return Err(self.refused("SITE RDEL", reply));
            }
        }
        // DELE removes a link, even if the server describes its target; it does not remove a
        // directory.
        match self.call(&Command::Dele(path.into())) {
            Ok(_) => return Ok(()),
            Err(e) if e.breaks_session() => return Err(e),
            Err(_) => {}
        }
        if !self.stat(path)?.is_directory() {
            return self.remove(path);
        }
        for entry in self.listing(path)? {
            let entry = entry?;
            let path = crate::place::join(path, &entry.name);
            if entry.is_directory() && entry.target.is_none() {
                let Some(left) = left.checked_sub(1) else {
                    let what = format!("{}: {}", path.as_bstr(), too_deep());
                    return Err(RemoteError::Usage(what));
                };
                self.remove_deep(&path, left)?;
            } else {
                self.remove(&path)?;
            }
        }
        self.call(&Command::Rmd(path.into())).map(drop)
    }

    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), RemoteError> {
        let commands = [Command::Rnfr(from.into()), Command::Rnto(to.into())];
        for reply in self.calls(&commands)? {
            reply?;
        }
        Ok(())
    }

    /// Makes a symbolic link. If the server resolves a relative target against the current
    /// directory, the session first changes to the directory of the link.
    pub(crate) fn symlink(&mut self, target: &[u8], link: &[u8]) -> Result<(), RemoteError> {
        if self.quirks.symlink_command == SymlinkCommand::One {
            return self.symlink_at_once(target, link);
        }
        let here = self.call(&Command::Pwd)?;
        let (Some(back), Some(beside)) =
            (answer::path(&here), parent(link).filter(|_| !target.starts_with(b"/")))
        else {
            return self.symlink_here(target, link);
        };
        self.call(&Command::Cwd(beside.into()))?;
        let made = self.symlink_here(target, if link.starts_with(b"/") { link } else { base_name(link) });
        self.back_to(back)?;
        made
    }

    fn symlink_here(&mut self, target: &[u8], link: &[u8]) -> Result<(), RemoteError> {
        let from = Command::Site(SiteCommand::SymlinkFrom(target.into()));
        if self.try_call(&from)? {
            return self.call(&Command::Site(SiteCommand::SymlinkTo(link.into()))).map(drop);
        }
        self.symlink_at_once(target, link)
    }

    fn symlink_at_once(&mut self, target: &[u8], link: &[u8]) -> Result<(), RemoteError> {
        let once = Command::Site(SiteCommand::Symlink { target: target.into(), link: link.into() });
        self.call(&once).map(drop)
    }

    /// The same as [`Session::symlink`], but replaces an existing entry, once the link has been
    /// made under another name.
    pub(crate) fn replace_link(&mut self, target: &[u8], link: &[u8]) -> Result<(), RemoteError> {
        let error = match self.symlink(target, link) {
            Err(e) if !e.breaks_session() => e,
            made => return made,
        };
        let beside = part_apart(link);
        match self.symlink(target, &beside) {
            Ok(()) => {}
            Err(e) if e.breaks_session() => return Err(e),
            Err(_) => return Err(error),
        }
        match self.rename(&beside, link) {
            Err(e) if !e.breaks_session() => {
                self.control.call(&Command::Dele(beside))?;
                Err(e)
            }
            renamed => renamed,
        }
    }
}

/// The name of a new directory exists already.
fn exists(error: &RemoteError) -> bool {
    matches!(error, RemoteError::Refused { reply, .. } if ErrorClass::of(reply) == Some(ErrorClass::PathExists))
}

/// Removes a trailing slash, with which a link would mean its target.
fn itself(path: &[u8]) -> &[u8] {
    match path.trim_end_with(|c| c == '/') {
        b"" => path,
        trimmed => trimmed,
    }
}
