//! Impersonation: file access as another user than that of the process.
//!
//! Linux has a user, a group and supplementary groups for file access in each *thread*. [`act`]
//! changes them for the calling thread until the returned guard is dropped. A thread that already
//! impersonates that user is not changed, so nested calls cost nothing. The groups are set with the
//! raw system call, because the function of the C library would change them for all threads.
//!
//! A new thread inherits the identity that its creator has at that moment. So, once any thread has
//! impersonated a user, calls that must run as the process switch explicitly, too.

use std::cell::RefCell;
use std::io::Write as _;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use nix::unistd::{setfsgid, setfsuid};
use rustix::fs::Gid;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_thread_groups};

use super::Identity;

/// The capabilities that give access to files of other users.
const OVER_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::MAC_OVERRIDE);

/// Whether any thread has ever impersonated a user.
static IN_USE: AtomicBool = AtomicBool::new(false);

thread_local! {
    static NOW: RefCell<Now> = const { RefCell::new(Now { who: Who::Unknown, depth: 0 }) };
}

struct Now {
    who: Who,
    /// The number of live guards.
    depth: u32,
}

#[derive(Clone)]
enum Who {
    /// The thread is new, and still has the identity that its creator had.
    Unknown,
    Process,
    User(Arc<Identity>),
}

impl Who {
    fn is(&self, wanted: &Self) -> bool {
        match (self, wanted) {
            (Self::Process, Self::Process) => true,
            (Self::User(a), Self::User(b)) => Arc::ptr_eq(a, b) || a == b,
            _ => false,
        }
    }
}

/// A guard: while it lives, the calling thread impersonates a user; afterwards the thread has its
/// previous identity again. If that fails, the process is aborted, because it must not continue as
/// the wrong user. Guards must be dropped in reverse order of creation.
#[must_use = "the thread acts for the user only while this lives"]
#[derive(Default)]
pub struct Impersonation {
    before: Option<Who>,
    /// The number of live guards including this one; 0 if nothing was changed.
    depth: u32,
    /// The guard must stay in its thread.
    _thread: PhantomData<*const ()>,
}

impl Drop for Impersonation {
    fn drop(&mut self) {
        if self.depth == 0 {
            return;
        }
        NOW.with_borrow_mut(|now| {
            if now.depth != self.depth {
                give_up("guards of identities were dropped out of order");
            }
            now.depth -= 1;
            if let Some(before) = self.before.take() {
                if switch(&before).is_err() {
                    give_up("the thread cannot become itself again");
                }
                now.who = before;
            }
        });
    }
}

/// Lets the calling thread impersonate `identity`, or run as the process if it is `None`, until the
/// guard is dropped.
///
/// # Errors
/// The process may not impersonate that user (it needs CAP_SETUID and CAP_SETGID), or would keep
/// access to files of other users. The thread then keeps its identity.
pub(super) fn act(identity: Option<&Arc<Identity>>) -> Result<Impersonation, Errno> {
    let wanted = match identity {
        None if !IN_USE.load(Ordering::Acquire) => return Ok(Impersonation::default()),
        None => Who::Process,
        Some(identity) => {
            // The identity of the process must be read before anything is changed.
            process();
            IN_USE.store(true, Ordering::Release);
            Who::User(Arc::clone(identity))
        }
    };
    NOW.with_borrow_mut(|now| {
        let mut before = None;
        if !now.who.is(&wanted) {
            let here = if matches!(now.who, Who::Unknown) { Who::Process } else { now.who.clone() };
            if let Err(errno) = switch(&wanted) {
                if switch(&here).is_err() {
                    give_up("the thread cannot become itself again");
                }
                now.who = here;
                return Err(errno);
            }
            now.who = wanted;
            before = Some(here);
        }
        now.depth += 1;
        Ok(Impersonation { before, depth: now.depth, _thread: PhantomData })
    })
}

/// Whether this process can impersonate users.
pub(super) fn is_possible() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Lets a new thread, which has inherited its creator's identity, run as the process.
pub(crate) fn thread_starts() {
    // When the guard is dropped, the thread stays with the identity of the process.
    if let Err(errno) = act(None) {
        give_up(&format!("a new thread cannot act as the process: {errno}"));
    }
}

/// The identity of the process. It is read for the first time when no thread impersonates a user
/// yet.
fn process() -> &'static Identity {
    static PROCESS: OnceLock<Identity> = OnceLock::new();
    PROCESS.get_or_init(Identity::of_process)
}

fn switch(to: &Who) -> Result<(), Errno> {
    let (identity, user) = match to {
        Who::Unknown | Who::Process => (process(), false),
        Who::User(identity) => (&**identity, true),
    };
    let groups: Vec<Gid> = identity.groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups)?;
    // Neither call reports success, so a second call reads the result.
    setfsgid(identity.gid.into());
    if setfsgid(u32::MAX.into()).as_raw() != identity.gid {
        return Err(Errno::PERM);
    }
    // The user is set last, because the kernel removes or restores the file capabilities with it.
    setfsuid(identity.uid.into());
    if setfsuid(u32::MAX.into()).as_raw() != identity.uid {
        return Err(Errno::PERM);
    }
    if user && identity.uid != 0 && capabilities(None)?.effective.intersects(OVER_FILES) {
        return Err(Errno::PERM);
    }
    Ok(())
}

fn give_up(why: &str) -> ! {
    // A failed write to stderr is ignored.
    let _ = writeln!(std::io::stderr(), "ropewalk: {why}; the process ends");
    std::process::abort();
}
