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
use crate::host::space::{Owner, Space, on_host};
use crate::session::job::Job;

/// The tightest of the quotas for new files of the session's user in the directory, or the one that
/// the token names. No more is free than the file system has; without a quota it alone counts.
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
    let usage = match (quota, free) {
        (Some(usage), free) => Usage { free: free.map_or(usage.free, |free| free.min(usage.free)), ..usage },
        (None, Some(free)) if token.is_none() => {
            let total = login.store.total_space(&directory).map_err(failure)?.unwrap_or(free);
            Usage { used: total.saturating_sub(free), free, total }
        }
        (None, None) if token.is_none() => {
            let text = "The space of this storage is not known.".to_owned();
            return Err(Failure::Refused { code: 550, text });
        }
        (None, _) => {
            let text = "No quota of this name limits bytes there.".to_owned();
            return Err(Failure::Refused { code: 550, text });
        }
    };
    Ok(Outcome::Usage(usage))
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
