//! SITE USAGE: the space of a directory.

use std::path::PathBuf;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Failure, Outcome};
use ropewalk_protocol::usage::Usage;
use ropewalk_security::Access;
use ropewalk_storage::Kind;

use super::Answer;
use crate::accounts::login::Login;
use crate::failure::failure;
use crate::host::space::{Charged, Owner, Space, on_host};
use crate::session::job::Job;

/// The tightest of the quotas for new files of the session's user in the directory, or the one that
/// the token names. No more is free than the file system has; without a limit on the bytes it alone
/// counts, and the total is what is used and free, as OSG's servers have it by default.
pub(super) fn usage(job: &mut Job<'_>, token: Option<&[u8]>, path: &VirtualPath) -> Answer {
    let login = job.context.login()?;
    let place = login.existing(path, Access::List)?;
    let place = login.store.real_path(&place).map_err(failure)?;
    let directory = match login.store.stat(&place, true).map_err(failure)?.kind {
        Kind::Directory => place,
        _ => place.parent().unwrap_or_else(VirtualPath::root),
    };
    let free = login.store.free_space(&directory).map_err(failure)?;
    let quota = job.host.space.as_ref().filter(|_| job.host.stores.have_identities()).and_then(|space| {
        let (directory, owner) = on_this_host(space, login, &directory)?;
        space.usage(&directory, &owner, token)
    });
    let unknown = "The space of this storage is not known.";
    let usage = match (quota, free) {
        (Some(Charged { used, limit: Some((left, total)) }), free) => {
            Usage { used, free: free.map_or(left, |free| free.min(left)), total }
        }
        (Some(Charged { used, limit: None }), Some(free)) => {
            Usage { used, free, total: used.saturating_add(free) }
        }
        (Some(_), None) => return Err(refused(unknown)),
        (None, _) if token.is_some() => {
            return Err(refused("No quota of this name counts your files there."));
        }
        (None, Some(free)) => {
            let total = login.store.total_space(&directory).map_err(failure)?.unwrap_or(free);
            Usage { used: total.saturating_sub(free), free, total }
        }
        (None, None) => return Err(refused(unknown)),
    };
    Ok(Outcome::Usage(usage))
}

fn refused(text: &str) -> Failure {
    Failure::Refused { code: 550, text: text.to_owned() }
}

/// The directory on this host, and the owner of new files of the session there.
pub(super) fn on_this_host(
    space: &Space,
    login: &Login,
    directory: &VirtualPath,
) -> Option<(PathBuf, Owner)> {
    let gid = login.identity.as_ref().map_or_else(|| rustix::process::getegid().as_raw(), |own| own.gid);
    let owner = space.owner_of_new(&login.account.counted_as, gid);
    let root = login.account.root.canonicalize().ok()?;
    Some((on_host(&root, directory), owner))
}
