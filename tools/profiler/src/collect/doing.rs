//! Determines what a program does at a moment from the states of its threads. This works for
//! programs that do not report it themselves.
//!
//! `/proc/PID/task/TID/stat` has the state of a thread; `syscall` has the system call in which the
//! thread waits, with its arguments (proc(5)). A thread that waits in a read of a file shows a slow
//! disk, whatever file system is used; the program itself does not have to count anything.

use super::files::Root;
use crate::profile::Doing;

/// Number of threads that are examined.
const THREADS: usize = 64;

/// Numbers of system calls, by what a thread waits for in them.
#[cfg(target_arch = "x86_64")]
mod calls {
    pub(super) const READ: &[u64] = &[0, 17, 19, 295, 327];
    pub(super) const WRITE: &[u64] = &[1, 18, 20, 74, 75, 277, 285, 296, 328];
    /// sendfile, whose second argument is the file, and splice.
    pub(super) const SENDFILE: u64 = 40;
    pub(super) const SPLICE: u64 = 275;
    pub(super) const SLEEP: &[u64] = &[35, 230];
}

#[cfg(target_arch = "aarch64")]
mod calls {
    pub(super) const READ: &[u64] = &[63, 67, 65, 69, 286];
    pub(super) const WRITE: &[u64] = &[64, 68, 66, 82, 83, 84, 47, 70, 287];
    pub(super) const SENDFILE: u64 = 71;
    pub(super) const SPLICE: u64 = 76;
    pub(super) const SLEEP: &[u64] = &[101, 115];
}

/// On other architectures only the thread states are used.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod calls {
    pub(super) const READ: &[u64] = &[];
    pub(super) const WRITE: &[u64] = &[];
    pub(super) const SENDFILE: u64 = u64::MAX;
    pub(super) const SPLICE: u64 = u64::MAX;
    pub(super) const SLEEP: &[u64] = &[];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Asleep,
    Stopped,
    /// Waits for data, for the network, or for another thread.
    Waits,
    Writes,
    Reads,
    Runs,
}

impl State {
    const ALL: [Self; 6] = [Self::Asleep, Self::Stopped, Self::Waits, Self::Writes, Self::Reads, Self::Runs];
}

/// The current state of a process. The busiest thread counts, because the others wait for it.
pub(super) fn does(root: &Root, pid: u32) -> Option<State> {
    let base = format!("proc/{pid}/task");
    let threads = root.names(&base);
    threads
        .iter()
        .take(THREADS)
        .filter_map(|thread| thread_does(root, pid, &format!("{base}/{thread}")))
        .max()
}

/// Counts at how many moments the programs were in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    moments: u32,
    counts: [u32; 6],
}

impl Tally {
    /// Adds a moment, with the state of each program.
    pub(super) fn add(&mut self, states: &[State]) {
        if states.is_empty() {
            return;
        }
        self.moments += 1;
        for (state, count) in State::ALL.into_iter().zip(&mut self.counts) {
            let idle = matches!(state, State::Asleep | State::Stopped);
            let is_it = |other: &State| *other == state;
            let counts = if idle { states.iter().all(is_it) } else { states.iter().any(is_it) };
            *count += u32::from(counts);
        }
    }

    pub(super) fn shares(self) -> Option<Doing> {
        let [asleep, stopped, _, writing, reading, running] =
            self.counts.map(|count| f64::from(count) / f64::from(self.moments));
        (self.moments > 0).then_some(Doing {
            samples: self.moments,
            running,
            reading,
            writing,
            asleep,
            stopped,
        })
    }
}

fn thread_does(root: &Root, pid: u32, thread: &str) -> Option<State> {
    let stat = root.read(&format!("{thread}/stat")).ok()?;
    // The name, in parentheses, may contain any characters.
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    match state {
        'R' => return Some(State::Runs),
        'T' | 't' => return Some(State::Stopped),
        'D' | 'S' => {}
        _ => return None,
    }
    // Only users that may trace the process can read this file.
    let call = root.read(&format!("{thread}/syscall")).ok()?;
    let mut words = call.split_whitespace();
    let number = match words.next()? {
        "running" => return Some(State::Runs),
        // The thread waits for a page of a mapped file, or of swap.
        "-1" => return Some(if state == 'D' { State::Reads } else { State::Waits }),
        number => number.parse::<u64>().ok()?,
    };
    let mut arguments = words.map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let first = arguments.next()??;
    let is_file = |descriptor: u64| {
        let target = std::fs::read_link(root.path(&format!("proc/{pid}/fd/{descriptor}")));
        target.is_ok_and(|target| target.is_absolute() && !target.starts_with("/dev"))
    };
    Some(if calls::SLEEP.contains(&number) {
        State::Asleep
    } else if calls::READ.contains(&number) && is_file(first) {
        State::Reads
    } else if calls::WRITE.contains(&number) && is_file(first) {
        State::Writes
    } else if number == calls::SENDFILE && state == 'D' {
        // The thread is reading the file: a wait for room in the socket would be interruptible
        // (`S`).
        State::Reads
    } else if number == calls::SPLICE && state == 'D' {
        if is_file(first) { State::Reads } else { State::Writes }
    } else {
        State::Waits
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::path::Path;

    use super::*;

    fn thread(root: &Path, id: u32, state: char, call: &str) {
        let directory = root.join(format!("proc/7/task/{id}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("stat"), format!("{id} (a) S (b) {state} 1 7 7 0")).unwrap();
        fs::write(directory.join("syscall"), call).unwrap();
    }

    fn tally(threads: &[(char, &str)]) -> Option<Doing> {
        let place = tempfile::tempdir().unwrap();
        let fds = place.path().join("proc/7/fd");
        fs::create_dir_all(&fds).unwrap();
        std::os::unix::fs::symlink("/data/file", fds.join("5")).unwrap();
        std::os::unix::fs::symlink("socket:[99]", fds.join("6")).unwrap();
        for (id, (state, call)) in threads.iter().enumerate() {
            thread(place.path(), id as u32 + 7, *state, call);
        }
        let mut tally = Tally::default();
        tally.add(&Vec::from_iter(does(&Root::at(place.path()), 7)));
        tally.shares()
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn does_when_thread_waits_names_the_reason() {
        let one = |state, call| {
            let doing = tally(&[(state, call)]).unwrap();
            [doing.running, doing.reading, doing.writing, doing.asleep, doing.stopped]
                .map(|share| share as u8)
        };
        assert_eq!(one('R', "running"), [1, 0, 0, 0, 0]);
        assert_eq!(one('S', "0 0x5 0x7f 0x1000 0x0 0x0 0x0 0x7f 0x7f"), [0, 1, 0, 0, 0]);
        assert_eq!(one('S', "0 0x6 0x7f 0x1000 0x0 0x0 0x0 0x7f 0x7f"), [0; 5]);
        assert_eq!(one('D', "18 0x5 0x7f 0x1000 0x0 0x0 0x0 0x7f 0x7f"), [0, 0, 1, 0, 0]);
        assert_eq!(one('S', "230 0x0 0x0 0x7f 0x0 0x0 0x0 0x7f 0x7f"), [0, 0, 0, 1, 0]);
        assert_eq!(one('T', "running"), [0, 0, 0, 0, 1]);
        assert_eq!(one('D', "40 0x6 0x5 0x7f 0x0 0x0 0x0 0x7f 0x7f"), [0, 1, 0, 0, 0]);
        assert_eq!(one('S', "40 0x6 0x5 0x7f 0x0 0x0 0x0 0x7f 0x7f"), [0; 5]);
        assert_eq!(tally(&[('S', "nonsense"), ('Z', "")]), None);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn does_when_threads_differ_returns_the_busiest() {
        let waits = ('S', "7 0x1 0x1 0x1 0x0 0x0 0x0 0x7f 0x7f");
        let reads = ('D', "17 0x5 0x1 0x1 0x0 0x0 0x0 0x7f 0x7f");
        assert_eq!(tally(&[waits, reads, waits]).unwrap().reading, 1.0);
        assert_eq!(tally(&[waits, reads, ('R', "running")]).unwrap().running, 1.0);
        assert_eq!(Tally::default().shares(), None);
    }

    #[test]
    fn tally_counts_idle_only_when_all_programs_are_idle() {
        let mut tally = Tally::default();
        tally.add(&[State::Reads, State::Runs, State::Stopped]);
        tally.add(&[State::Stopped, State::Stopped]);
        tally.add(&[]);
        let doing = tally.shares().unwrap();
        assert_eq!((doing.samples, doing.reading, doing.running, doing.stopped), (2, 0.5, 0.5, 0.5));
    }
}
