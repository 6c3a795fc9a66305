//! Doing things with files as another user than the process.
//!
//! Linux keeps a user, a group and supplementary groups for file access with each *thread*. [`act`] changes them for the
//! calling thread until the guard that it gives is dropped; a thread that already acts for that user is left as it is,
//! so that calls within calls cost nothing. The raw system call is used for the groups: the C library's would change
//! them for all threads.
//!
//! A thread begins with what its maker acted as. So, once anybody acts for others, calls that are to be made as the
//! process see to it too.

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

/// What lets a process have its way with files that are not its own.
const OVER_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::MAC_OVERRIDE);

/// Whether any thread has ever acted for somebody.
static IN_USE: AtomicBool = AtomicBool::new(false);

thread_local! {
    static NOW: RefCell<Now> = const { RefCell::new(Now { who: Who::Unknown, depth: 0 }) };
}

struct Now {
    who: Who,
    /// Guards that are alive.
    depth: u32,
}

#[derive(Clone)]
enum Who {
    /// The thread is new, and acts as its maker did at that time.
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

/// While this lives, the calling thread acts for somebody; afterwards it acts as before. Where that cannot be had the
/// process is aborted: it must not go on as the wrong user. Guards are dropped in the reverse order of their making.
#[must_use = "the thread acts for the user only while this lives"]
#[derive(Default)]
pub struct Acting {
    before: Option<Who>,
    /// Guards alive with this one; 0 where there was nothing to do.
    depth: u32,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Drop for Acting {
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

/// Has the calling thread act for `identity`, or as the process where there is none, until the guard is dropped.
///
/// # Errors
/// The process may not take on that identity (it needs CAP_SETUID and CAP_SETGID), or would keep power over the files of
/// others with it. The thread then acts as before.
pub(super) fn act(identity: Option<&Arc<Identity>>) -> Result<Acting, Errno> {
    let wanted = match identity {
        None if !IN_USE.load(Ordering::Acquire) => return Ok(Acting::default()),
        None => Who::Process,
        Some(identity) => {
            // Before anything is changed.
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
        Ok(Acting { before, depth: now.depth, _thread: PhantomData })
    })
}

/// Whether this process can act for others.
pub(super) fn is_possible() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Has a new thread, which acts as its maker did, act as the process.
pub(crate) fn thread_starts() {
    // The guard's end leaves the thread as the process.
    if let Err(errno) = act(None) {
        give_up(&format!("a new thread cannot act as the process: {errno}"));
    }
}

/// Who the process is. Asked for the first time when no thread acts for others yet.
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
    // Neither call tells whether it was done.
    setfsgid(identity.gid.into());
    if setfsgid(u32::MAX.into()).as_raw() != identity.gid {
        return Err(Errno::PERM);
    }
    // Last: the kernel takes the capabilities over files away, and gives them back, with it.
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
    // Whether anybody hears it or not.
    let _ = writeln!(std::io::stderr(), "ropewalk: {why}; the process ends");
    std::process::abort();
}
