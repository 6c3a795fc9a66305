//! Renames an entry that is not a directory, even if other processes rename entries at the same
//! time.

use ropewalk_protocol::path::VirtualPath;
use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;

use super::root::Place;

/// Another entry can take the name between a check and the rename. But a hard link to a directory
/// cannot be made. So the file is linked to a secret name, which is then renamed to `to`. An entry
/// that cannot be linked is left alone, with an error.
pub(super) fn rename(
    old: &Place<'_>,
    new: &Place<'_>,
    to: &VirtualPath,
    replaces: bool,
) -> Result<(), Errno> {
    if is_one_place(old, new)? {
        return Ok(());
    }
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).map_err(|_| Errno::IO)?;
    let name = format!(".{:032x}.ropewalk-part", u128::from_ne_bytes(secret));
    let beside =
        to.parent().unwrap_or_else(VirtualPath::root).child(name.as_bytes()).map_err(|_| Errno::INVAL)?;
    let between = new.sibling(&beside);
    let nowhere = AtFlags::empty();
    rustix::fs::linkat(old.directory(), old.name(), between.directory(), between.name(), nowhere)?;
    let linked = look(&between)?;
    // The kernel does not rename between two names of one file.
    let there = look(new).is_ok_and(|there| is_same(&there, &linked));
    let renamed = match there {
        true => Ok(()),
        false => super::rename(&between, new, replaces),
    };
    let cleared = rustix::fs::unlinkat(between.directory(), between.name(), nowhere);
    renamed?;
    match cleared {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    // If both are the same name, removing it would lose the file. If another process has replaced
    // the entry meanwhile, it is kept.
    match look(old) {
        Ok(left) if is_same(&left, &linked) && left.st_nlink > 1 => {
            rustix::fs::unlinkat(old.directory(), old.name(), nowhere)
        }
        _ => Ok(()),
    }
}

fn is_one_place(old: &Place<'_>, new: &Place<'_>) -> Result<bool, Errno> {
    if old.name() != new.name() {
        return Ok(false);
    }
    // A path from the root is complete, so the names alone can be compared.
    let whole = old.name().starts_with(b"/");
    Ok(whole || is_same(&rustix::fs::fstat(old.directory())?, &rustix::fs::fstat(new.directory())?))
}

fn look(place: &Place<'_>) -> Result<Stat, Errno> {
    rustix::fs::statat(place.directory(), place.name(), AtFlags::SYMLINK_NOFOLLOW)
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}
