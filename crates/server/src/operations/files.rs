//! Operations on single files and directories.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::BString;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Failure, Outcome};
use ropewalk_security::{Access, Rules};
use ropewalk_storage::Kind;
use rustix::io::Errno;

use super::observer::MOST_RANGES;
use super::part_names::{Refusal, RenamedPart};
use super::{Answer, entries, part_names};
use crate::accounts::login::Login;
use crate::config::Files;
use crate::failure::failure;
use crate::host::names;
use crate::host::parts::CompletedParts;
use crate::session::job::Job;

/// An operation all of which acts for the session's user.
pub(super) fn as_user(
    run: impl FnOnce(&mut Job<'_>) -> Answer + Send + 'static,
) -> impl FnOnce(&mut Job<'_>) -> Answer + Send + 'static {
    move |job: &mut Job<'_>| {
        let _acting = job.context.login()?.acting()?;
        run(job)
    }
}

pub(super) fn change_directory(job: &mut Job<'_>, path: &VirtualPath) -> Answer {
    enter(job.context.login()?, path).map(|_| Outcome::Done)
}

pub(super) fn stat(job: &mut Job<'_>, path: &VirtualPath, follow: bool) -> Answer {
    job.context.reported.note(path);
    let entry = entries::stat(job.host, job.context.login()?, path, follow)?;
    Ok(Outcome::Entry { entry: Box::new(entry), now: entries::now() })
}

pub(super) fn size(job: &mut Job<'_>, path: &VirtualPath) -> Answer {
    job.context.reported.note(path);
    size_of(job.context.login()?, path).map(Outcome::Size)
}

pub(super) fn make_directory(job: &mut Job<'_>, path: &VirtualPath) -> Answer {
    let login = job.context.login()?;
    let place = login.entry(path, Access::MakeDirectory)?;
    let mode = job.context.settings.config.files.directory_mode;
    done(login.store_for(&place).make_directory(&place, mode))
}

pub(super) fn remove_directory(job: &mut Job<'_>, path: &VirtualPath) -> Answer {
    let login = job.context.login()?;
    part_names::remove_directory(login, &login.removable(path)?)
        .or_else(|refusal| refusal.answer(&mut job.context.retry))
}

pub(super) fn delete(job: &mut Job<'_>, path: &VirtualPath) -> Answer {
    let login = job.context.login()?;
    let place = login.entry(path, Access::Write)?;
    let store = login.store_for(&place);
    store.remove_file(&place).map_err(failure)?;
    part_names::remove_journal(&*store, &place);
    Ok(Outcome::Done)
}

pub(super) fn rename(job: &mut Job<'_>, from: &VirtualPath, to: &VirtualPath) -> Answer {
    let files = &job.context.settings.config.files;
    let renamed = rename_to(job.context.login()?, from, to, files, &job.context.completed_parts);
    if renamed.is_ok() {
        job.context.completed_parts.remove(from);
    }
    renamed.or_else(|refusal| refusal.answer(&mut job.context.retry))
}

pub(super) fn set_modified(job: &mut Job<'_>, path: &VirtualPath, modified: i64) -> Answer {
    let login = job.context.login()?;
    done(login.store.set_modified(&login.existing(path, Access::Write)?, modified, 0))
}

pub(super) fn change_mode(job: &mut Job<'_>, path: &VirtualPath, mode: u32) -> Answer {
    let login = job.context.login()?;
    let (place, store) = (login.existing(path, Access::Write)?, &login.store);
    // A user who may upload a file must not be able to have it run with the rights of others
    // (set-user-ID). A directory of a user may pass its group on to what is made in it. If the
    // server works as itself, a file could take the place of the directory.
    let directory =
        store.acting_uid().is_some() && store.stat(&place, true).map_err(failure)?.kind == Kind::Directory;
    done(store.set_mode(&place, mode & if directory { 0o3777 } else { 0o1777 }))
}

pub(super) fn change_group(job: &mut Job<'_>, path: &VirtualPath, group: &BString) -> Answer {
    let login = job.context.login()?;
    let place = login.existing(path, Access::Write)?;
    let gid = names::gid(group).ok_or_else(|| {
        let text = format!("{group}: there is no such group here.");
        Failure::Refused { code: 550, text }
    })?;
    done(login.store.set_group(&place, gid))
}

pub(super) fn truncate(job: &mut Job<'_>, path: &VirtualPath, length: u64) -> Answer {
    let login = job.context.login()?;
    let place = login.existing(path, Access::Write)?;
    let metadata = login.store.stat(&place, true).map_err(failure)?;
    // The length of a part file says how much of it has arrived.
    if length > metadata.size && part_names::is_part(&place) {
        return Err(Failure::NotAllowed);
    }
    // An upload relies on what it has written.
    let _part = part_names::hold(login, &place).map_err(Refusal::into_failure)?;
    job.host.checksums.forget(&metadata);
    let truncated = done(login.store.truncate(&place, length));
    // The client that truncates the file knows what is left.
    job.context.completed_parts.remove(path);
    truncated
}

pub(super) fn change_root(job: &mut Job<'_>, path: &VirtualPath) -> Answer {
    let login = job.context.login()?;
    let place = enter(login, path)?;
    let scope = login.scope.rooted(&place).ok_or(Failure::NotAllowed)?;
    // The cached connections of the channel belong to a session that may see more.
    job.context.channel = None;
    // Paths name other files from now on.
    job.context.reported.note_many();
    job.context.completed_parts = CompletedParts::default();
    job.context.uploads.clear();
    if let Some(login) = &mut job.context.login {
        login.set_scope(scope);
    }
    Ok(Outcome::Done)
}

/// The place of a directory that may be entered.
fn enter(login: &Login, path: &VirtualPath) -> Result<VirtualPath, Failure> {
    let place = login.existing(path, Access::List)?;
    let metadata = login.store.stat(&place, true).map_err(failure)?;
    if metadata.kind != Kind::Directory {
        return Err(system(Errno::NOTDIR, "chdir"));
    }
    if !metadata.searchable && !is_searched(login, &place)? {
        return Err(system(Errno::ACCESS, "chdir"));
    }
    Ok(place)
}

/// Whether a directory can be searched although the bits of its mode deny it: there may be an
/// access control list. This looks for a file in it.
fn is_searched(login: &Login, directory: &VirtualPath) -> Result<bool, Failure> {
    let any = directory.child(b".ropewalk").map_err(|_| Failure::NotAllowed)?;
    match login.store_for(&any).stat(&any, false) {
        Err(error) => Ok(error.is_not_found()),
        Ok(_) => Ok(true),
    }
}

/// The size of a file. If it does not exist yet, the number of bytes that an interrupted upload in
/// order has left, so that clients that ask for the size can resume the upload.
fn size_of(login: &Login, path: &VirtualPath) -> Result<u64, Failure> {
    let missing = match login.existing(path, Access::List) {
        Ok(place) => match login.store.stat(&place, true) {
            Ok(metadata) if metadata.kind == Kind::Directory => {
                let text = format!("{path}: a directory has no size.");
                return Err(Failure::Refused { code: 550, text });
            }
            Ok(metadata) => return Ok(metadata.size),
            Err(error) => failure(error),
        },
        Err(missing) => missing,
    };
    if !matches!(missing, Failure::System { errno, .. } if errno == Errno::NOENT.raw_os_error()) {
        return Err(missing);
    }
    let prefix = login
        .entry(path, Access::List)
        .and_then(|place| if resumes(login, &place) { Ok(place) } else { Err(Failure::NotAllowed) })
        .and_then(|place| login.store_for(&place).uploaded_prefix(&place).map_err(failure));
    prefix.ok().flatten().ok_or(missing)
}

/// Whether this session may resume an upload. Looking at a part file locks other sessions out, and
/// may write its journal.
fn resumes(login: &Login, place: &VirtualPath) -> bool {
    login.allows(place, Access::Create)
}

/// Removes a tree. ABOR or the end of the client can interrupt this, and leave a part of the tree.
pub(super) fn remove_tree(job: &mut Job<'_>, path: &VirtualPath) -> Answer {
    /// Removals between two checks of the control connection, unless they take long.
    const LOOK: u32 = 64;
    const LONG: Duration = Duration::from_millis(100);

    let login = job.context.login()?;
    let place = login.tree(path)?;
    let store = Arc::clone(&login.store);
    let (mut removals, mut looked) = (0_u32, Instant::now());
    let result = store.remove_tree_while(&place, &mut || {
        removals = removals.wrapping_add(1);
        if !removals.is_multiple_of(LOOK) && looked.elapsed() < LONG {
            return Ok(());
        }
        looked = Instant::now();
        job.dialogue.proceed(&place)
    });
    match job.dialogue.broken_off() {
        Some(broken_off) => Err(broken_off),
        None => done(result),
    }
}

/// After a crash of the machine this reads the part file to verify it.
pub(super) fn ranges(job: &mut Job<'_>, path: &VirtualPath) -> Answer {
    let login = job.context.login()?;
    let place = login.entry(path, Access::List)?;
    if !resumes(login, &place) {
        return Ok(Outcome::Ranges(RangeSet::new()));
    }
    let store = login.store_for(&place);
    let found = store.interrupted_upload(&place, &mut |_| job.dialogue.proceed(&place));
    match job.dialogue.broken_off() {
        Some(broken_off) => Err(broken_off),
        None => {
            let present = found.map_err(failure)?.map(|part| part.present).unwrap_or_default();
            // Ranges that are left out are sent again.
            Ok(Outcome::Ranges(present.iter().take(MOST_RANGES).collect()))
        }
    }
}

/// Renames a file.
fn rename_to(
    login: &Login,
    from: &VirtualPath,
    to: &VirtualPath,
    files: &Files,
    completed: &CompletedParts,
) -> Result<Outcome, Refusal> {
    let own = completed.get(from);
    let (from, to) = (login.renamable(from)?, login.renamable(to)?);
    // An upload for a device or a pipe that was written beside it first must not take its place.
    if let Ok(there) = login.store_for(&to).stat(&to, true)
        && !matches!(there.kind, Kind::File | Kind::Directory | Kind::Symlink)
    {
        let text = "Nothing takes the place of a device, pipe or socket.".to_owned();
        return Err(Failure::Refused { code: 553, text }.into());
    }
    let part = RenamedPart::hold(login, &from, own)?;
    match login.store_to_rename(&from, &to)? {
        (store, false) => store.rename(&from, &to).map_err(failure)?,
        (_, true) if login.store_for(&from).stat(&from, false).is_ok_and(|m| m.kind == Kind::Directory) => {
            return Err(Failure::NotAllowed.into());
        }
        // Another session may put a directory in its place now.
        (store, true) => store.rename_file(&from, &to).map_err(failure)?,
    }
    part.finish(login, &from, &to, files)?;
    Ok(Outcome::Done)
}

pub(super) fn symlink(job: &mut Job<'_>, target: &BString, link: &VirtualPath) -> Answer {
    let login = job.context.login()?;
    let place = login.entry(link, Access::Create)?;
    let directory = place.parent().unwrap_or_else(VirtualPath::root);
    let directory = login.store.real_path(&directory).map_err(failure)?;
    let target = match VirtualPath::parse(target) {
        // An absolute path of the session means another file for programs on this host and for
        // sessions with other roots.
        Ok(path) if target.starts_with(b"/") => login.locate(&path)?.way_from(&directory),
        _ => target.clone(),
    };
    if !login.unrestricted() {
        login.link_target(&directory, &target).ok_or(Failure::NotAllowed)?;
    }
    done(login.store_for(&place).symlink(target.as_ref(), &place))
}

pub(super) fn restrict(job: &mut Job<'_>, list: &[u8]) -> Answer {
    let refused = |text: String| Failure::Refused { code: 500, text };
    let login = job.context.login.as_mut().ok_or_else(|| refused("Not logged in.".into()))?;
    if !login.scope.restriction.is_empty() {
        return Err(refused("The session is restricted already.".into()));
    }
    let home = login.home();
    let restriction = Rules::parse(list, &home).map_err(|error| refused(error.to_string()))?;
    if restriction.is_empty() {
        return Err(refused("There is no rule in the list.".into()));
    }
    login.set_scope(login.scope.restricted(restriction));
    // They were begun with other rights.
    job.context.uploads.clear();
    Ok(Outcome::Done)
}

pub(super) fn done(result: ropewalk_storage::Result<()>) -> Answer {
    result.map(|()| Outcome::Done).map_err(failure)
}

pub(super) fn system(errno: Errno, action: &str) -> Failure {
    Failure::System { errno: errno.raw_os_error(), action: action.to_owned() }
}
