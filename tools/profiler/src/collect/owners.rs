//! Finds the programs that connections belong to when the user named none, for example a foreign
//! server at the other end of ssh.
//!
//! A thread samples ten times a second. It takes the inodes of the connections that carry data from
//! the TCP collector, and finds the processes that have these sockets open.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::doing::{Tally, does};
use super::files::Root;
use super::programs::Watched;
use super::sampler::Sampler;
use super::tcp::Carrying;
use super::{Collector, Unavailable};
use crate::profile::{CollectorName, HostProfile};

const INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval between searches: it takes time to go through the descriptors of all processes.
const SEARCH: Duration = Duration::from_secs(1);
/// Limits on programs, and on descriptors of each program.
const MOST: usize = 64;
const DESCRIPTORS: usize = 4096;

pub(super) struct Owners {
    root: Root,
    carrying: Carrying,
    sampler: Option<Sampler<State>>,
}

struct State {
    root: Root,
    carrying: Carrying,
    began: Instant,
    searched: Option<Instant>,
    /// Sockets for which no process was found; they are not searched again.
    nobodys: HashSet<u32>,
    owners: HashMap<u32, HashSet<u32>>,
    programs: HashMap<u32, Owner>,
    tally: Tally,
    moments: u64,
}

struct Owner {
    watched: Watched,
    since: f64,
}

impl Owners {
    /// The TCP collector fills `carrying`. It has to be started before this collector and stopped
    /// before it.
    pub(super) fn new(root: Root, carrying: Carrying) -> Self {
        Self { root, carrying, sampler: None }
    }
}

impl Collector for Owners {
    fn name(&self) -> CollectorName {
        CollectorName::Programs
    }

    fn start(&mut self) -> Result<(), Unavailable> {
        if self.carrying.now().is_none() {
            return Err(Unavailable::Failed(
                "which programs move data shows at their connections, and nobody looks at those".into(),
            ));
        }
        let state = State {
            root: self.root.clone(),
            carrying: self.carrying.clone(),
            began: Instant::now(),
            searched: None,
            nobodys: HashSet::new(),
            owners: HashMap::new(),
            programs: HashMap::new(),
            tally: Tally::default(),
            moments: 0,
        };
        let sampler = Sampler::start("profile-owners", INTERVAL, state, State::look);
        self.sampler = Some(sampler.map_err(|error| Unavailable::of("a thread", &error))?);
        Ok(())
    }

    fn stop(&mut self) {
        self.sampler.iter_mut().for_each(Sampler::stop);
    }

    fn finish(self: Box<Self>, profile: &mut HostProfile) -> Result<String, Unavailable> {
        let state = self.sampler.and_then(Sampler::finish);
        let state = state.ok_or_else(|| Unavailable::Failed("the thread that reads /proc died".into()))?;
        let mut programs: Vec<_> = state.programs.into_values().collect();
        programs.sort_by_key(|owner| owner.watched.pid());
        profile.programs = programs.into_iter().map(|owner| owner.watched.into_program()).collect();
        profile.doing = state.tally.shares();
        if profile.programs.is_empty() {
            return Err(Unavailable::Denied(
                "the programs at the connections were not found: only root sees those of others".into(),
            ));
        }
        Ok(format!("{} programs", profile.programs.len()))
    }
}

impl State {
    fn look(&mut self) {
        let carrying = self.carrying.now().unwrap_or_default();
        self.find(&carrying);
        self.moments += 1;
        let Self { root, owners, programs, tally, began, moments, .. } = self;
        let mut states = Vec::new();
        let elapsed = began.elapsed().as_secs_f64();
        for (pid, inodes) in &*owners {
            if inodes.is_disjoint(&carrying) {
                continue;
            }
            if let Some(owner) = programs.get_mut(pid) {
                states.extend(does(root, *pid));
                // The processor times change slowly, so every tenth sample is enough.
                if moments.is_multiple_of(10) {
                    owner.watched.look(root, elapsed - owner.since);
                }
            }
        }
        tally.add(&states);
    }

    /// Looks for the processes of new connections.
    fn find(&mut self, carrying: &HashSet<u32>) {
        let known = |inode: &u32| {
            self.nobodys.contains(inode) || self.owners.values().any(|inodes| inodes.contains(inode))
        };
        let new: HashSet<u32> = carrying.iter().copied().filter(|inode| !known(inode)).collect();
        if new.is_empty() || self.searched.is_some_and(|time| time.elapsed() < SEARCH) {
            return;
        }
        self.searched = Some(Instant::now());
        let mut found = HashSet::new();
        for pid in self.root.names("proc").iter().filter_map(|name| name.parse::<u32>().ok()) {
            let own: HashSet<u32> = sockets_of(&self.root, pid).filter(|inode| new.contains(inode)).collect();
            if own.is_empty() || self.programs.len() >= MOST && !self.programs.contains_key(&pid) {
                continue;
            }
            let Some(watched) = Watched::new(&self.root, pid) else { continue };
            found.extend(&own);
            self.owners.entry(pid).or_default().extend(own);
            let since = self.began.elapsed().as_secs_f64();
            self.programs.entry(pid).or_insert(Owner { watched, since });
        }
        self.nobodys.extend(new.difference(&found));
    }
}

/// The inodes of a process's sockets (proc_pid_fd(5)); none if we lack the permission to see them.
fn sockets_of(root: &Root, pid: u32) -> impl Iterator<Item = u32> {
    let open = std::fs::read_dir(root.path(&format!("proc/{pid}/fd"))).into_iter().flatten().flatten();
    open.take(DESCRIPTORS).filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::super::tcp::{CARRIES, Sockets, Tcp};
    use super::*;

    #[test]
    fn owners_when_a_connection_carries_data_finds_its_program() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        let reader = thread::spawn(move || {
            let mut bytes = vec![0; 2 * CARRIES as usize];
            server.read_exact(&mut bytes).unwrap();
            server
        });
        client.write_all(&vec![0; 2 * CARRIES as usize]).unwrap();
        let _server = reader.join().unwrap();
        let sockets = Sockets { ports: vec![port], ..Sockets::default() };
        let mut tcp = Box::new(Tcp::new(sockets));
        let mut owners = Box::new(Owners::new(Root::default(), tcp.carrying()));
        // The TCP collector has not been started yet.
        assert!(matches!(owners.start(), Err(Unavailable::Failed(_))));
        tcp.start().unwrap();
        owners.start().unwrap();
        let mut profile = HostProfile::default();
        // Each collector samples once more when it ends.
        tcp.finish(&mut profile).unwrap();
        assert_eq!(owners.finish(&mut profile), Ok("1 programs".into()));
        assert_eq!(profile.programs[0].pid, std::process::id());
        assert_eq!(profile.doing.unwrap().samples, 1);
    }
}
