//! Two unnamed network namespaces for tests, joined by an emulator. They exist as long as their
//! threads and the programs in them, so that nothing remains when a test is killed.
#![allow(dead_code, unreachable_pub, unsafe_code, clippy::unwrap_used)]

pub mod probe;

use std::io::Write;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use ropewalk_lab::emulator::{Control, Emulator, Options, Tun};

type Job = Box<dyn FnOnce() + Send>;

pub const LEFT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const LEFT6: &str = "fd00::1";
pub const RIGHT6: &str = "fd00::2";
pub const TUN: &str = "wan0";

/// A thread in a network namespace of its own. Sockets and programs created by functions that run
/// on it belong to the namespace.
pub struct Namespace {
    jobs: mpsc::Sender<Job>,
}

impl Namespace {
    /// Returns `None` and prints a message to standard error if the process may not create a
    /// namespace. With `CI=true` or `ROPEWALK_REQUIRE_PEERS=1` that is a failure.
    pub fn new() -> Option<Self> {
        let (jobs, receiver) = mpsc::channel::<Job>();
        let (ready, made) = mpsc::channel();
        thread::spawn(move || {
            // SAFETY: only the network namespace changes; descriptors stay shared.
            let result = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
            ready.send(result).unwrap();
            for job in receiver {
                job();
            }
        });
        match made.recv().unwrap() {
            Ok(()) => {
                let new = Self { jobs };
                new.ip("link set lo up");
                Some(new)
            }
            Err(error) => {
                let required = |name, value| std::env::var_os(name).is_some_and(|v| v == value);
                let required = required("CI", "true") || required("ROPEWALK_REQUIRE_PEERS", "1");
                assert!(!required, "cannot make a network namespace: {error}");
                // Writes to standard error directly, because the test runner does not show the
                // output of passing tests.
                let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: network namespaces need root ({error})");
                None
            }
        }
    }

    /// Runs `work` in the namespace.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        self.jobs.send(Box::new(move || drop(sender.send(work())))).unwrap();
        receiver.recv().unwrap()
    }

    /// Runs `ip` with arguments that are separated by spaces.
    pub fn ip(&self, words: &str) {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let output = self.run(move || Command::new("ip").args(words).output()).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Writes a file of `/proc/sys/net`.
    pub fn sysctl(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/net/{name}");
        let value = value.to_owned();
        self.run(move || std::fs::write(&path, value)).unwrap();
    }
}

/// Two hosts and the path between them.
pub struct Net {
    pub left: Namespace,
    pub right: Namespace,
    pub emulator: Emulator,
    pub control: Control,
}

impl Net {
    pub fn new(options: Options, offload: bool) -> Option<Self> {
        let (left, right) = (Namespace::new()?, Namespace::new()?);
        let mtu = options.path.mtu;
        let mut tuns = Vec::new();
        for (space, v4, v6) in [(&left, LEFT, LEFT6), (&right, RIGHT, RIGHT6)] {
            // Turns off router solicitations and the like, so that only packets of the test are
            // counted.
            space.sysctl("ipv6/conf/default/accept_dad", "0");
            space.sysctl("ipv6/conf/default/accept_ra", "0");
            space.sysctl("ipv6/conf/default/router_solicitations", "0");
            space.sysctl("ipv6/conf/default/addr_gen_mode", "1");
            tuns.push(space.run(move || Tun::open(TUN, mtu, offload)).unwrap());
            space.ip(&format!("addr add {v4}/24 dev {TUN}"));
            space.ip(&format!("addr add {v6}/64 dev {TUN} nodad"));
        }
        let right_tun = tuns.pop().unwrap();
        let emulator = Emulator::start(options, tuns.pop().unwrap(), right_tun).unwrap();
        for space in [&left, &right] {
            space.ip(&format!("link set {TUN} up"));
        }
        let control = emulator.control();
        Some(Self { left, right, emulator, control })
    }
}
