//! Tests with the kernel's real connections, on loopback.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};

use ropewalk_buffers::*;
use ropewalk_tuning::buffers::Policy;

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    (client, server)
}

fn flow_of(snapshot: &Snapshot, local: SocketAddr) -> Option<Flow> {
    snapshot.connections.iter().find(|flow| flow.local == local).cloned()
}

/// A program that answers lines through a socket that only it has open, and this process's end of
/// the connection.
struct Echo {
    child: Child,
    ours: TcpStream,
    its: SocketAddr,
    /// Length of an answer in bytes.
    answer: usize,
}

impl Echo {
    /// A program that sends back its input.
    fn start() -> Self {
        Self::run(Command::new("cat"), 1000)
    }

    /// A program that answers with empty lines, so that its direction is unambiguous.
    fn receiver() -> Self {
        let mut sed = Command::new("sed");
        sed.args(["-u", "s/.*//"]);
        Self::run(sed, 1)
    }

    fn run(mut program: Command, answer: usize) -> Self {
        let (client, ours) = pair();
        let its = client.local_addr().unwrap();
        let output = OwnedFd::from(client.try_clone().unwrap());
        let child = program.stdin(OwnedFd::from(client)).stdout(output).spawn().unwrap();
        let mut echo = Self { child, ours, its, answer };
        echo.exchange();
        echo
    }

    fn exchange(&mut self) {
        let mut line = [b'x'; 1000];
        line[999] = b'\n';
        self.ours.write_all(&line).unwrap();
        self.ours.read_exact(&mut line[..self.answer]).unwrap();
    }

    fn filter(&self) -> Filter {
        Filter { pids: vec![self.child.id()], ports: vec![self.its.port()], ..Filter::default() }
    }

    /// As soon as the child has replaced the image of the test program, it alone has the
    /// descriptors.
    fn flow(&self) -> Flow {
        let snapshot = Analyzer::new().unwrap().look(Measure::Requested, |_, _| None).unwrap();
        flow_of(&snapshot, self.its).unwrap()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.ours.shutdown(Shutdown::Both);
        let _ = self.child.wait();
    }
}

/// Returns `None`, with a message, if the kernel or a container forbids duplicating sockets.
fn taken(owner: &Owner, cookie: u64) -> Option<Taken> {
    match Taken::new(owner, cookie) {
        Err(error @ (SocketError::Forbidden { .. } | SocketError::Unsupported)) => {
            eprintln!("skipped: {error}");
            None
        }
        other => Some(other.unwrap()),
    }
}

#[test]
fn analyzer_lists_own_connections() {
    let (mut client, mut server) = pair();
    let mut analyzer = Analyzer::new().unwrap();
    let first = analyzer.look(Measure::Window, |_, _| None).unwrap();
    assert_eq!(first.interval_seconds, None);
    client.write_all(&[7; 100_000]).unwrap();
    server.read_exact(&mut [0; 100_000]).unwrap();
    let snapshot = analyzer.look(Measure::Window, |_, _| None).unwrap();
    let receiver = flow_of(&snapshot, server.local_addr().unwrap()).unwrap();
    assert_eq!((receiver.direction, receiver.remote), (Direction::In, client.local_addr().unwrap()));
    assert!(receiver.bytes_per_second > 0.0 && receiver.demand_bytes >= 4096, "{receiver:?}");
    assert!(receiver.kernel_buffer_bytes > 0 && !receiver.congestion.is_empty());
    let owner = receiver.owner.clone().unwrap();
    assert_eq!(owner.pid, std::process::id());
    assert!(!receiver.own);
    let sender = flow_of(&snapshot, client.local_addr().unwrap()).unwrap();
    assert!(sender.window_bytes > 0 && sender.direction == Direction::Out);

    let admits = |filter: Filter| filter.admits(&receiver);
    assert!(admits(Filter::default()));
    assert!(admits(Filter { pids: vec![owner.pid], programs: vec![owner.program], ..Filter::default() }));
    assert!(admits(Filter { ports: vec![1, receiver.remote.port()], ..Filter::default() }));
    assert!(!admits(Filter { own: true, ..Filter::default() }));
    assert!(!admits(Filter { direction: Some(Direction::Out), ..Filter::default() }));
    assert!(!admits(Filter { least_rate: 1e15, ..Filter::default() }));
    assert!(!admits(Filter { peers: vec!["192.0.2.1".parse().unwrap()], ..Filter::default() }));

    // No data moves any more.
    analyzer.look(Measure::Window, |_, _| None).unwrap();
    let idle = analyzer.look(Measure::Window, |_, _| None).unwrap();
    assert_eq!(flow_of(&idle, server.local_addr().unwrap()).unwrap().demand_bytes, 0);
}

#[test]
fn analyzer_lists_ipv6_connections() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("skipped: no IPv6 here");
        return;
    };
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let snapshot = Analyzer::new().unwrap().look(Measure::Rate, |_, _| None).unwrap();
    assert!(flow_of(&snapshot, client.local_addr().unwrap()).is_some());
}

#[test]
fn buffer_set_is_restored() {
    let echo = Echo::start();
    let flow = echo.flow();
    let owner = flow.owner.unwrap();
    assert_eq!(owner.pid, echo.child.id());
    let Some(taken) = taken(&owner, flow.cookie) else { return };
    for direction in [Direction::Out, Direction::In] {
        let before = taken.look(direction).unwrap();
        let applied = taken.set(direction, 100_000).unwrap();
        assert_eq!((applied.before, applied.kernel_bytes), (before, 200_000));
        assert!(!applied.clamped && !applied.forced);
        let Some(locked) = before.locked else {
            eprintln!("skipped: this kernel has no SO_BUF_LOCK");
            continue;
        };
        assert!(!locked && taken.look(direction).unwrap().locked == Some(true));
        assert_eq!(taken.give_back(direction, before).unwrap(), GiveBack::Whole);
        // An odd byte is lost by halving and doubling.
        let now = taken.look(direction).unwrap();
        assert_eq!((now.kernel_bytes / 2, now.locked), (before.kernel_bytes / 2, before.locked));
    }
    // A size above the limits is forced with the privilege, and clamped without it.
    let applied = taken.set(Direction::Out, 1 << 29).unwrap();
    assert!(applied.forced != applied.clamped, "{applied:?}");
}

#[test]
fn taken_of_another_socket_fails() {
    let mut echo = Echo::start();
    let flow = echo.flow();
    let owner = flow.owner.unwrap();
    if taken(&owner, flow.cookie).is_none() {
        return;
    }
    let gone = |owner: &Owner, cookie| matches!(Taken::new(owner, cookie), Err(SocketError::Gone { .. }));
    assert!(gone(&owner, flow.cookie + 1));
    assert!(gone(&Owner { descriptor: 2, ..owner.clone() }, flow.cookie));
    assert!(gone(&Owner { descriptor: 1_000_000, ..owner.clone() }, flow.cookie));
    assert!(gone(&Owner { pid: u32::MAX, ..owner.clone() }, flow.cookie));
    assert!(gone(&Owner { pid: 0, ..owner.clone() }, flow.cookie));
    echo.ours.shutdown(Shutdown::Both).unwrap();
    echo.child.wait().unwrap();
    assert!(gone(&owner, flow.cookie));
}

/// A negotiator with a budget so small that every connection is granted less than its demand.
fn tight(measure: Measure, filter: Filter) -> Negotiator {
    let (rule, looking) = (Rule::Policy(Policy::MaxMin), (measure, filter));
    Negotiator::new(rule, 8192, looking, (Reach::All, false), Ledger::in_memory()).unwrap()
}

#[test]
fn negotiation_sets_buffers_and_release_restores_them() {
    let mut echo = Echo::start();
    let flow = echo.flow();
    if taken(flow.owner.as_ref().unwrap(), flow.cookie).is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let negotiator = |filter: Filter, reach, ledger| {
        let rule = Rule::Policy(Policy::MaxMin);
        Negotiator::new(rule, 8192, (Measure::Requested, filter), (reach, false), ledger).unwrap()
    };
    let kernel_bytes = |echo: &Echo, direction| {
        let flow = echo.flow();
        Taken::new(flow.owner.as_ref().unwrap(), flow.cookie).unwrap().look(direction).unwrap()
    };

    // Sockets of other programs are not changed unless this is requested.
    for reach in [Reach::Nobody, Reach::Own] {
        let mut dry = negotiator(echo.filter(), reach, Ledger::in_memory());
        dry.look().unwrap();
        echo.exchange();
        let snapshot = dry.look().unwrap();
        assert!(dry.is_due(&snapshot));
        let round = dry.negotiate(snapshot).unwrap();
        assert_eq!((round.connections.len(), &round.connections[0].action), (1, &Action::WouldSet));
        assert_eq!((round.granted_bytes, round.connections[0].granted_bytes), (8192, 8192));
    }

    let mut real = negotiator(echo.filter(), Reach::All, Ledger::open(directory.path()).unwrap());
    real.look().unwrap();
    echo.exchange();
    let snapshot = real.look().unwrap();
    let round = real.negotiate(snapshot).unwrap();
    let direction = round.connections[0].flow.direction;
    let Action::Set(applied) = round.connections[0].action else { panic!("{round:?}") };
    assert_eq!((applied.asked_bytes, applied.kernel_bytes), (8192, 16384));
    assert_eq!(kernel_bytes(&echo, direction).kernel_bytes, 16384);
    // The process is killed, in effect. A later run finds the recorded buffers, regardless of its
    // filter.
    drop(real);
    let mut later = negotiator(Filter::default(), Reach::Nobody, Ledger::open(directory.path()).unwrap());
    let done = later.release().unwrap();
    assert_eq!((done.len(), done[0].0.cookie), (1, flow.cookie));
    let now = kernel_bytes(&echo, direction);
    assert_eq!((now.kernel_bytes / 2, now.locked), (applied.before.kernel_bytes / 2, applied.before.locked));
    assert!(later.release().unwrap().is_empty());
}

/// Returns the decision about the socket of the echo program, which moves data meanwhile.
fn decision(echo: &mut Echo, budget: u64, reach: Reach, ledger: Ledger) -> Decision {
    let (rule, looking) = (Rule::Policy(Policy::MaxMin), (Measure::Requested, echo.filter()));
    let mut negotiator = Negotiator::new(rule, budget, looking, (reach, false), ledger).unwrap();
    negotiator.look().unwrap();
    echo.exchange();
    let snapshot = negotiator.look().unwrap();
    negotiator.negotiate(snapshot).unwrap().connections.swap_remove(0)
}

#[test]
fn negotiator_knows_buffers_of_earlier_run() {
    let mut echo = Echo::receiver();
    let flow = echo.flow();
    if taken(flow.owner.as_ref().unwrap(), flow.cookie).is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let open = || Ledger::open(directory.path()).unwrap();
    let set = decision(&mut echo, 8192, Reach::All, open());
    assert!(matches!(set.action, Action::Set(_)), "{set:?}");
    let entries = Ledger::look(directory.path()).unwrap().entries();
    assert!(entries.len() == 1 && entries[0].set);
    // This also applies to a run that only reports what would be done.
    for reach in [Reach::Nobody, Reach::All] {
        let ledger = if reach == Reach::Nobody { Ledger::look(directory.path()).unwrap() } else { open() };
        let again = decision(&mut echo, 8192, reach, ledger);
        assert_eq!(again.action, Action::Left(Left::AsBefore), "{reach:?}");
    }
    let ample = decision(&mut echo, 1 << 40, Reach::Nobody, Ledger::look(directory.path()).unwrap());
    assert_eq!(ample.action, Action::WouldGiveBack);

    // The process was killed between recording the buffer and setting it.
    let file = |entry: std::fs::DirEntry| {
        Some(entry.path()).filter(|path| path.extension() == Some("json".as_ref()))
    };
    let path = std::fs::read_dir(directory.path()).unwrap().find_map(|entry| file(entry.unwrap())).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"set\":true", "\"set\":false")).unwrap();
    let before = entries[0].before;
    // The duplicate is not kept, because this process would then also be an owner of the socket.
    let socket = || Taken::new(flow.owner.as_ref().unwrap(), flow.cookie).unwrap();
    socket().give_back(set.flow.direction, before).unwrap();
    let again = decision(&mut echo, 8192, Reach::All, open());
    assert!(matches!(again.action, Action::Set(_)), "{again:?}");
    assert_eq!(socket().look(set.flow.direction).unwrap().kernel_bytes, 16384);
    let noted = Ledger::look(directory.path()).unwrap().entries();
    assert!(noted[0].set && noted[0].before == before, "{noted:?}");
}

/// The program is free to set its buffer, but it must not get more than its share unnoticed.
#[test]
fn buffer_changed_by_program_is_set_again() {
    let mut echo = Echo::receiver();
    let flow = echo.flow();
    if taken(flow.owner.as_ref().unwrap(), flow.cookie).is_none() {
        return;
    }
    let mut negotiator = tight(Measure::Requested, echo.filter());
    // This simulates the program. The duplicate is not kept, because this process would then also
    // be an owner.
    let socket = || Taken::new(flow.owner.as_ref().unwrap(), flow.cookie).unwrap();
    negotiator.look().unwrap();
    for bytes in [100_000, 3000] {
        // This happens the first time, and again after the program has set the buffer.
        echo.exchange();
        let snapshot = negotiator.look().unwrap();
        let round = negotiator.negotiate(snapshot).unwrap();
        assert!(matches!(round.connections[0].action, Action::Set(_)), "{round:?}");
        echo.exchange();
        let snapshot = negotiator.look().unwrap();
        assert!(!negotiator.is_due(&snapshot));
        let round = negotiator.negotiate(snapshot).unwrap();
        assert_eq!(round.connections[0].action, Action::Left(Left::AsBefore));
        socket().set(Direction::In, bytes).unwrap();
        echo.exchange();
        let snapshot = negotiator.look().unwrap();
        assert!(negotiator.is_due(&snapshot), "{bytes}");
        let round = negotiator.negotiate(snapshot).unwrap();
        assert!(matches!(round.connections[0].action, Action::Set(_)), "{round:?}");
        assert_eq!(socket().look(Direction::In).unwrap().kernel_bytes, 16384);
        socket().set(Direction::In, bytes).unwrap();
    }
}

/// Autotuning is off for such a buffer, so it would stay as small as the program has made it.
#[test]
fn buffer_fixed_too_small_is_set_to_its_share() {
    let mut echo = Echo::receiver();
    let flow = echo.flow();
    if taken(flow.owner.as_ref().unwrap(), flow.cookie).is_none() {
        return;
    }
    let socket = || Taken::new(flow.owner.as_ref().unwrap(), flow.cookie).unwrap();
    // This simulates the program.
    socket().set(Direction::In, 8192).unwrap();
    let fixed = socket().look(Direction::In).unwrap();
    if fixed.locked.is_none() {
        eprintln!("skipped: this kernel has no SO_BUF_LOCK");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let ledger = |reach| match reach {
        Reach::All => Ledger::open(directory.path()).unwrap(),
        _ => Ledger::look(directory.path()).unwrap(),
    };
    let asks = |echo: &mut Echo, bytes, reach| {
        let (rule, looking) = (Rule::Policy(Policy::MaxMin), (Measure::Window, echo.filter()));
        let mut negotiator = Negotiator::new(rule, 1 << 20, looking, (reach, false), ledger(reach)).unwrap();
        negotiator.look().unwrap();
        echo.exchange();
        let mut snapshot = negotiator.look().unwrap();
        snapshot.connections[0].demand_bytes = bytes;
        negotiator.negotiate(snapshot).unwrap().connections.swap_remove(0).action
    };
    assert_eq!(asks(&mut echo, 8192, Reach::All), Action::Left(Left::Autotuning));
    assert_eq!(asks(&mut echo, 50_000, Reach::Nobody), Action::WouldSet);
    assert_eq!(socket().look(Direction::In).unwrap(), fixed);
    let Action::Set(applied) = asks(&mut echo, 50_000, Reach::All) else { panic!("not set") };
    assert_eq!((applied.before, applied.kernel_bytes), (fixed, 100_000));
    assert_eq!(asks(&mut echo, 50_000, Reach::All), Action::Left(Left::AsBefore));
    assert!(matches!(asks(&mut echo, 60_000, Reach::All), Action::Set(_)));
    // The size that the program has fixed is sufficient again.
    assert_eq!(asks(&mut echo, 5000, Reach::All), Action::GivenBack);
    assert_eq!(socket().look(Direction::In).unwrap(), fixed);

    // A buffer that the program has not fixed is left alone.
    socket().give_back(Direction::In, Before { locked: Some(false), ..fixed }).unwrap();
    assert_eq!(asks(&mut echo, 50_000, Reach::All), Action::Left(Left::Autotuning));
}

/// The demand is large for a moment, as during slow start.
#[test]
fn large_momentary_demand_fades() {
    let mut echo = Echo::receiver();
    let flow = echo.flow();
    if taken(flow.owner.as_ref().unwrap(), flow.cookie).is_none() {
        return;
    }
    let mut negotiator = tight(Measure::Window, echo.filter());
    let looks = |negotiator: &mut Negotiator, echo: &mut Echo| {
        echo.exchange();
        negotiator.look().unwrap()
    };
    negotiator.look().unwrap();
    let mut snapshot = looks(&mut negotiator, &mut echo);
    let usual = snapshot.connections[0].demand_bytes;
    assert!(usual > 8192, "{snapshot:?}");
    snapshot.connections[0].demand_bytes = 1 << 30;
    let round = negotiator.negotiate(snapshot).unwrap();
    assert!(matches!(round.connections[0].action, Action::Set(_)), "{round:?}");
    // The smaller demand with the smaller buffer does not apply at once.
    let demand = looks(&mut negotiator, &mut echo).connections[0].demand_bytes;
    assert!(demand > 1 << 28, "{demand}");
    assert!((0..30).any(|_| looks(&mut negotiator, &mut echo).connections[0].demand_bytes <= 2 * usual));
    let snapshot = looks(&mut negotiator, &mut echo);
    assert!(snapshot.connections[0].demand_bytes > 8192, "{snapshot:?}");
    assert!(negotiator.is_due(&snapshot));
}

/// For example, the owner passed the socket to another process just before it was to be duplicated.
#[test]
fn failed_action_is_tried_again() {
    let mut echo = Echo::receiver();
    let flow = echo.flow();
    if taken(flow.owner.as_ref().unwrap(), flow.cookie).is_none() {
        return;
    }
    let mut negotiator = tight(Measure::Requested, echo.filter());
    negotiator.look().unwrap();
    let mut round = |due: bool, is_there: bool| {
        echo.exchange();
        let mut snapshot = negotiator.look().unwrap();
        assert_eq!(negotiator.is_due(&snapshot), due);
        if !is_there {
            // This is the standard error of the process.
            snapshot.connections[0].owner.as_mut().unwrap().descriptor = 2;
        }
        negotiator.negotiate(snapshot).unwrap().connections.swap_remove(0).action
    };
    assert!(matches!(round(true, false), Action::Failed(_)));
    assert!(matches!(round(true, true), Action::Set(_)));
    assert_eq!(round(false, true), Action::Left(Left::AsBefore));
}

/// Otherwise there would be a report about it every second.
#[test]
fn action_that_keeps_failing_is_abandoned() {
    let mut echo = Echo::receiver();
    let flow = echo.flow();
    if taken(flow.owner.as_ref().unwrap(), flow.cookie).is_none() {
        return;
    }
    let mut negotiator = tight(Measure::Requested, echo.filter());
    negotiator.look().unwrap();
    let mut due = Vec::new();
    for _ in 0..5 {
        echo.exchange();
        let mut snapshot = negotiator.look().unwrap();
        due.push(negotiator.is_due(&snapshot));
        snapshot.connections[0].owner.as_mut().unwrap().descriptor = 2;
        let round = negotiator.negotiate(snapshot).unwrap();
        assert!(matches!(round.connections[0].action, Action::Failed(_)), "{round:?}");
    }
    assert_eq!(due, [true, true, true, true, false]);
}

/// A connection has only one limit: that of the direction of its data.
#[test]
fn connection_changing_direction_has_other_buffer_restored() {
    let long = "y".repeat(3000);
    for direction in [None, Some(Direction::In)] {
        // Lines are answered with empty ones, except for one that is answered with a long one.
        let mut sed = Command::new("sed");
        sed.args(["-u", "-e", &format!("s/^long$/{long}/"), "-e", "t", "-e", "s/.*//"]);
        let mut echo = Echo::run(sed, 1);
        let flow = echo.flow();
        if taken(flow.owner.as_ref().unwrap(), flow.cookie).is_none() {
            return;
        }
        let turn = |echo: &mut Echo| {
            echo.ours.write_all(b"long\n").unwrap();
            echo.ours.read_exact(&mut [0; 3001]).unwrap();
        };
        let filter = Filter { direction, ..echo.filter() };
        let mut negotiator = tight(Measure::Requested, filter);
        let socket = || Taken::new(flow.owner.as_ref().unwrap(), flow.cookie).unwrap();
        let before = socket().look(Direction::In).unwrap();
        negotiator.look().unwrap();
        echo.exchange();
        let snapshot = negotiator.look().unwrap();
        let round = negotiator.negotiate(snapshot).unwrap();
        assert!(matches!(round.connections[0].action, Action::Set(_)), "{round:?}");
        assert!(round.turned.is_empty());

        // The connection sends more than it receives, but not much more, and then nothing.
        turn(&mut echo);
        (0..2).for_each(|_| echo.exchange());
        for _ in 0..2 {
            let snapshot = negotiator.look().unwrap();
            assert_eq!(flow_of(&snapshot, echo.its).unwrap().direction, Direction::In);
        }
        // This amount counts as an answer.
        turn(&mut echo);
        let snapshot = negotiator.look().unwrap();
        assert_eq!(flow_of(&snapshot, echo.its).unwrap().direction, Direction::In);
        // Each answer acknowledges the one before.
        (0..3).for_each(|_| turn(&mut echo));
        let snapshot = negotiator.look().unwrap();
        assert!(negotiator.is_due(&snapshot));
        let round = negotiator.negotiate(snapshot).unwrap();
        assert_eq!(round.turned.len(), 1);
        assert_eq!(round.turned[0].action, Action::GivenBack);
        let now = socket().look(Direction::In).unwrap();
        assert_eq!((now.kernel_bytes / 2, now.locked), (before.kernel_bytes / 2, before.locked));
        if direction.is_none() {
            assert!(matches!(round.connections[0].action, Action::Set(_)), "{round:?}");
            assert_eq!(socket().look(Direction::Out).unwrap().kernel_bytes, 16384);
        } else {
            assert!(round.connections.is_empty(), "{round:?}");
            assert_ne!(socket().look(Direction::Out).unwrap().kernel_bytes, 16384);
        }
    }
}

#[test]
fn slow_connection_stays_in_the_sum() {
    let mut echo = Echo::receiver();
    let flow = echo.flow();
    if taken(flow.owner.as_ref().unwrap(), flow.cookie).is_none() {
        return;
    }
    let filter = Filter { least_rate: 1.0, ..echo.filter() };
    let mut negotiator = tight(Measure::Requested, filter);
    let its = echo.its;
    let seen = |snapshot: &Snapshot| flow_of(snapshot, its).is_some();
    negotiator.look().unwrap();
    // No data moves.
    assert!(!seen(&negotiator.look().unwrap()));
    echo.exchange();
    let snapshot = negotiator.look().unwrap();
    assert!(seen(&snapshot));
    let round = negotiator.negotiate(snapshot).unwrap();
    assert!(matches!(round.connections[0].action, Action::Set(_)), "{round:?}");
    negotiator.look().unwrap();
    assert!(seen(&negotiator.look().unwrap()));
}

#[test]
fn negotiation_is_due_after_changes() {
    let (mut client, mut server) = pair();
    let filter = Filter { ports: vec![server.local_addr().unwrap().port()], ..Filter::default() };
    let rule = Rule::CurrentShare;
    let ledger = Ledger::in_memory();
    let mut negotiator =
        Negotiator::new(rule, 1 << 20, (Measure::Window, filter), (Reach::Nobody, false), ledger).unwrap();
    negotiator.look().unwrap();
    client.write_all(&[7; 1000]).unwrap();
    server.read_exact(&mut [0; 1000]).unwrap();
    let mut snapshot = negotiator.look().unwrap();
    snapshot.connections.iter_mut().for_each(|flow| flow.demand_bytes = 100_000);
    negotiator.negotiate(snapshot.clone()).unwrap();
    let due_with = |demand| {
        let mut snapshot = snapshot.clone();
        snapshot.connections[0].demand_bytes = demand;
        negotiator.is_due(&snapshot)
    };
    assert_eq!([0, 70_000, 80_000, 125_000, 130_000].map(due_with), [true, true, false, false, true]);
    let mut fewer = snapshot.clone();
    fewer.connections.pop();
    assert!(negotiator.is_due(&fewer));
    // The owner was found only now.
    let mut hidden = snapshot.clone();
    hidden.connections[0].owner = None;
    assert!(!negotiator.is_due(&hidden));
    negotiator.negotiate(hidden).unwrap();
    assert!(negotiator.is_due(&snapshot));
}
