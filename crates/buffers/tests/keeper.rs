//! A process divides a budget among its own connections. This test is alone in its file, because
//! the budget applies to the whole process.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use ropewalk_buffers::{Action, Direction, Division, Flow, Keeper, Kept, Rule, Taken};
use ropewalk_tuning::buffers::Policy;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const BUDGET: u64 = 512 << 10;

/// Moves data between two sockets of this process until it is dropped.
struct Moving {
    end: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl Moving {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut receiver = listener.accept().unwrap().0;
        let end = sender.try_clone().unwrap();
        let send = move || {
            let bytes = vec![0; 1 << 16];
            while sender.write_all(&bytes).is_ok() {}
        };
        let receive = move || {
            let mut bytes = vec![0; 1 << 16];
            while receiver.read(&mut bytes).is_ok_and(|count| count > 0) {}
        };
        Self { end, threads: vec![thread::spawn(send), thread::spawn(receive)] }
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        let _ = self.end.shutdown(std::net::Shutdown::Both);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// The reports of a keeper, and the buffers that it has set.
struct Told {
    from: Receiver<Kept>,
    set: HashSet<(u64, Direction)>,
}

impl Told {
    fn next(&mut self) -> Kept {
        let kept = self.from.recv().unwrap();
        if let Kept::Divided(round) = &kept {
            let turned = round.turned.iter().map(|turned| {
                let Flow { cookie, direction, .. } = turned.flow;
                let other = if direction == Direction::In { Direction::Out } else { Direction::In };
                ((cookie, other), &turned.action)
            });
            let decided = round.connections.iter().map(|decision| {
                let Flow { cookie, direction, .. } = decision.flow;
                ((cookie, direction), &decision.action)
            });
            for (buffer, action) in turned.chain(decided) {
                match action {
                    Action::Set(_) => drop(self.set.insert(buffer)),
                    Action::GivenBack => drop(self.set.remove(&buffer)),
                    Action::Left(_) | Action::Failed(_) => {}
                    _ => panic!("{action:?}"),
                }
            }
        }
        kept
    }

    /// The next division in which `count` buffers have a share.
    fn division_of(&mut self, count: usize) -> Vec<(Flow, u64)> {
        loop {
            let Kept::Divided(round) = self.next() else { panic!("nothing was divided") };
            assert!(round.granted_bytes <= BUDGET, "{} of {BUDGET}", round.granted_bytes);
            let flows: Vec<_> =
                round.connections.into_iter().filter(|decision| decision.granted_bytes > 0).collect();
            assert!(!flows.iter().any(|decision| matches!(decision.action, Action::Failed(_))), "{flows:?}");
            if flows.len() == count {
                return flows.into_iter().map(|decision| (decision.flow, decision.granted_bytes)).collect();
            }
        }
    }
}

#[test]
fn keeper_divides_budget_until_none_is_wanted() {
    let _first = Moving::start();
    let second = Moving::start();
    let wanted = Arc::new(Mutex::new(Some(Division { rule: Rule::Policy(Policy::MaxMin), budget: BUDGET })));
    let (tell, from) = mpsc::channel();
    let mut told = Told { from, set: HashSet::new() };
    let keeper = {
        let wanted = Arc::clone(&wanted);
        Keeper::start(move || *wanted.lock(), move |kept| drop(tell.send(kept))).unwrap()
    };
    // Two connections, of which both ends belong to this process.
    let flows = told.division_of(4);
    assert!(flows.iter().filter(|(flow, _)| flow.direction == Direction::Out).count() == 2);
    assert!(!told.set.is_empty());
    for (flow, granted) in &flows {
        let owner = flow.owner.as_ref().unwrap();
        assert_eq!(owner.pid, std::process::id());
        // On a busy machine a connection with a small demand is left to the kernel.
        if told.set.contains(&(flow.cookie, flow.direction)) {
            let now = Taken::new(owner, flow.cookie).unwrap().look(flow.direction).unwrap();
            assert!(now.kernel_bytes <= granted.max(&4608) * 2, "{now:?} of {granted}");
            assert_ne!(now.locked, Some(false));
        }
    }

    // The remaining connections are granted more, or their full demand.
    drop(second);
    let left = told.division_of(2);
    for (flow, granted) in &left {
        let same = |(then, _): &&(Flow, u64)| (then.cookie, then.direction) == (flow.cookie, flow.direction);
        let before = flows.iter().find(same).map_or(0, |(_, granted)| *granted);
        assert!(*granted > before || *granted == flow.demand_bytes, "{left:?}, {flows:?}");
    }

    // A failed look is reported once, and the next successful look continues.
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limits }).unwrap();
    while !matches!(told.next(), Kept::Failed(_)) {}
    setrlimit(Resource::Nofile, limits).unwrap();
    while !matches!(told.next(), Kept::Divided(round) if round.granted_bytes > 0) {}

    *wanted.lock() = None;
    let back = loop {
        match told.next() {
            Kept::GivenBack(back) => break back,
            Kept::Divided(_) => {}
            Kept::Failed(error) => panic!("{error}"),
        }
    };
    assert!(back.iter().all(|(_, action)| *action == Action::GivenBack), "{back:?}");
    // The buffer of the closed connection need not be restored.
    let open: HashSet<_> = left.iter().map(|(flow, _)| (flow.cookie, flow.direction)).collect();
    let given: HashSet<_> = back.iter().map(|(flow, _)| (flow.cookie, flow.direction)).collect();
    assert_eq!(given, told.set.intersection(&open).copied().collect(), "{back:?}");
    for (flow, _) in &back {
        let now =
            Taken::new(flow.owner.as_ref().unwrap(), flow.cookie).unwrap().look(flow.direction).unwrap();
        assert_ne!(now.locked, Some(true));
    }
    drop(keeper);
    assert!(told.from.recv().is_err());
}
