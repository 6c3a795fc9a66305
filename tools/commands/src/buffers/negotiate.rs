use std::path::PathBuf;
use std::sync::mpsc::Receiver;

use clap::Args;
use ropewalk_buffers::{
    Action, Ledger, LedgerError, Left, Negotiator, Reach, Rule, RuleName, check_budget, default_budget,
};
use ropewalk_buffers::{Round, RoundError};
use ropewalk_tuning::buffers::Policy;

use super::{Show, denied, state_directory, stopper, table, wait};
use crate::exit::{Exit, usage};
use crate::output::say;
use crate::units;

/// Options of the division of memory.
#[derive(Debug, Args)]
#[command(next_help_heading = "Negotiation")]
pub(super) struct Negotiate {
    /// Divide the budget: none, max-min, weighted, threshold or current-share
    #[arg(short, long, value_name = "POLICY", value_parser = rule)]
    policy: Option<Rule>,
    /// Payload in all buffers together [default: a quarter of the second value of net.ipv4.tcp_mem]
    #[arg(short, long, value_name = "SIZE", value_parser = units::parse_size, requires = "policy")]
    budget: Option<u64>,
    /// Policy threshold as in Table 4 of its paper, not as in the text
    #[arg(long, requires = "policy")]
    table_compat: bool,
    /// Set buffers of all programs that match, not only of ropewalk's
    #[arg(long, requires = "policy", conflicts_with = "dry_run")]
    apply: bool,
    /// Change nothing
    #[arg(short = 'n', long, requires = "policy")]
    dry_run: bool,
    /// Also set buffers whose demand autotuning can meet
    #[arg(long, requires = "policy")]
    set_all: bool,
    /// Set the buffers once, and leave them so (default)
    #[arg(long, requires = "policy", conflicts_with_all = ["serve", "watch"])]
    once: bool,
    /// Repeat until Ctrl-C: negotiate again when connections come or go, or demands change by a
    /// quarter. At the end all buffers are released.
    #[arg(long, requires = "policy", conflicts_with = "watch")]
    serve: bool,
    /// Release the buffers that an earlier run has set, so that the kernel tunes them again
    #[arg(long, visible_alias = "restore")]
    #[arg(conflicts_with_all = ["policy", "budget", "table_compat", "apply", "dry_run", "set_all", "once", "serve", "watch"])]
    release: bool,
}

impl Negotiate {
    pub(super) fn is_wanted(&self) -> bool {
        self.policy.is_some() || self.release
    }

    pub(super) fn run(&self, show: &Show) -> anyhow::Result<Exit> {
        let Some(rule) = self.policy else { return release(show) };
        if show.watch {
            return Err(usage("--policy with --watch: expected --serve"));
        }
        if self.table_compat && rule == rule.table_compat() && rule.name() != "threshold-table" {
            return Err(usage(format!("--table-compat with policy {rule}: expected policy threshold")));
        }
        let rule = if self.table_compat { rule.table_compat() } else { rule };
        let budget = match self.budget {
            Some(bytes) => check_budget(bytes),
            None => default_budget(),
        };
        let budget = budget.map_err(|error| usage(error.to_string()))?;
        let reach = match (self.dry_run, self.apply) {
            (true, _) => Reach::Nobody,
            (false, false) => Reach::Own,
            (false, true) => Reach::All,
        };
        let ledger = ledger_for(reach, state_directory())?;
        let looking = (show.measure, show.filter());
        let mut negotiator =
            Negotiator::new(rule, budget, looking, (reach, self.set_all), ledger).map_err(denied)?;
        self.negotiate(&mut negotiator, show)
    }

    fn negotiate(&self, negotiator: &mut Negotiator, show: &Show) -> anyhow::Result<Exit> {
        let stop = stopper(if self.serve && !self.dry_run {
            "ropewalk: releasing the buffers (press Ctrl-C again to leave them as they are)"
        } else {
            "ropewalk: stopping"
        })?;
        self.until(&stop, negotiator, show)
    }

    /// Repeats until stopped, and releases the buffers however it ends: also after an error, or if
    /// the reader of its output has gone.
    fn until(&self, stop: &Receiver<()>, negotiator: &mut Negotiator, show: &Show) -> anyhow::Result<Exit> {
        let end = self.rounds(stop, negotiator, show);
        if !self.serve {
            return end;
        }
        if self.dry_run {
            // This run has set nothing; the ledger has the buffers that others have set.
            return end.map(|_| Exit::Done);
        }
        match (end, give_back(negotiator)) {
            (Ok(_), given_back) => given_back,
            (Err(error), Ok(_)) => Err(error),
            (Err(error), Err(second)) => {
                say(format_args!("ropewalk: releasing the buffers: {second:#}"));
                Err(error)
            }
        }
    }

    fn rounds(&self, stop: &Receiver<()>, negotiator: &mut Negotiator, show: &Show) -> anyhow::Result<Exit> {
        let mut screen = table::Screen::new(false);
        negotiator.look().map_err(denied)?;
        loop {
            if !wait(stop, show.interval) {
                return Ok(Exit::Interrupted);
            }
            let snapshot = negotiator.look().map_err(denied)?;
            if !negotiator.is_due(&snapshot) {
                continue;
            }
            let round = match negotiator.negotiate(snapshot) {
                Ok(round) => round,
                Err(RoundError::Ledger(error)) => return Err(of_ledger(error)),
                Err(error) => return Err(denied(error)),
            };
            let granted = Some((round.budget_bytes, round.granted_bytes));
            show.print(&round, &round.snapshot, granted, &mut screen, table::of_round)?;
            if !self.serve {
                return Ok(exit_of(&round, self.apply));
            }
        }
    }
}

fn ledger_for(reach: Reach, directory: anyhow::Result<PathBuf>) -> anyhow::Result<Ledger> {
    let ledger = match (reach, directory) {
        // The settings of earlier runs count in a dry run.
        (Reach::Nobody, Ok(directory)) => Ledger::look(&directory),
        // Without a state directory there are no entries.
        (Reach::Nobody, Err(_)) => Ok(Ledger::in_memory()),
        (_, directory) => Ledger::open(&directory?),
    };
    ledger.map_err(of_ledger)
}

/// The exit code: whether a requested buffer could not be set.
fn exit_of(round: &Round, wanted: bool) -> Exit {
    let hidden = round
        .connections
        .iter()
        .filter(|decision| decision.action == Action::Left(Left::NoOwner) && decision.flow.inode != 0)
        .count() as u64;
    if wanted && hidden > 0 {
        let which = units::count(hidden, "connection");
        say(format_args!("ropewalk: {which} of processes that this user may not inspect: expected root"));
        return Exit::Permission;
    }
    let failed = |action: &Action| matches!(action, Action::Failed(_));
    if round.connections.iter().any(|decision| failed(&decision.action)) { Exit::Failed } else { Exit::Done }
}

fn release(show: &Show) -> anyhow::Result<Exit> {
    let ledger = Ledger::open(&state_directory()?).map_err(of_ledger)?;
    let rule = Rule::Policy(Policy::None);
    let looking = (show.measure, show.filter());
    let mut negotiator =
        Negotiator::new(rule, u64::MAX, looking, (Reach::Nobody, false), ledger).map_err(denied)?;
    give_back(&mut negotiator)
}

fn give_back(negotiator: &mut Negotiator) -> anyhow::Result<Exit> {
    let done = negotiator.release().map_err(denied)?;
    let mut exit = Exit::Done;
    for (flow, action) in &done {
        say(format_args!("ropewalk: {}: {}", table::name_of(flow), table::done(action)));
        if matches!(action, Action::Failed(_) | Action::Left(_)) {
            exit = Exit::Failed;
        }
    }
    Ok(exit)
}

fn of_ledger(error: LedgerError) -> anyhow::Error {
    anyhow::Error::new(error)
}

pub(super) fn rule(name: &str) -> Result<Rule, String> {
    name.parse().map_err(|error: RuleName| error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::process::{Child, Command};
    use std::sync::mpsc;
    use std::time::Duration;

    use clap::Parser;
    use ropewalk_buffers::{Analyzer, Direction, Flow, Measure, SocketError, Taken};

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        show: Show,
        #[command(flatten)]
        negotiate: Negotiate,
    }

    /// A program that answers each line with an empty one, and our end of the connection.
    struct Peer(Child, TcpStream);

    impl Peer {
        fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let its = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut sed = Command::new("sed");
            sed.args(["-u", "s/.*//"])
                .stdin(OwnedFd::from(its.try_clone().unwrap()))
                .stdout(OwnedFd::from(its));
            let mut peer = Self(sed.spawn().unwrap(), listener.accept().unwrap().0);
            drop(sed);
            peer.exchange();
            peer
        }

        fn exchange(&mut self) {
            let mut line = [b'x'; 1000];
            line[999] = b'\n';
            self.1.write_all(&line).unwrap();
            self.1.read_exact(&mut line[..1]).unwrap();
        }

        fn flow(&self) -> Flow {
            let snapshot = Analyzer::new().unwrap().look(Measure::Requested, |_, _| None).unwrap();
            let its = self.1.peer_addr().unwrap();
            snapshot.connections.into_iter().find(|flow| flow.local == its).unwrap()
        }

        fn kernel_bytes(&self) -> Result<u64, SocketError> {
            let flow = self.flow();
            Ok(Taken::new(&flow.owner.unwrap(), flow.cookie)?.look(Direction::In)?.kernel_bytes)
        }
    }

    impl Drop for Peer {
        fn drop(&mut self) {
            let _ = self.1.shutdown(std::net::Shutdown::Both);
            let _ = self.0.wait();
        }
    }

    fn service(peer: &Peer, more: &str) -> Program {
        let port = peer.1.peer_addr().unwrap().port().to_string();
        let options =
            format!("x --policy max-min --serve --measure requested --direction in --port {port}{more}");
        let Program { show, negotiate } = Program::parse_from(options.split(' '));
        Program { show: Show { interval: Duration::ZERO, ..show }, negotiate }
    }

    fn negotiator(program: &Program, reach: Reach, ledger: Ledger) -> Negotiator {
        let looking = (program.show.measure, program.show.filter());
        let rule = program.negotiate.policy.unwrap();
        Negotiator::new(rule, 16384, looking, (reach, false), ledger).unwrap()
    }

    /// Sets the peer's buffer. Returns `None`, with a message, if this host does not permit taking
    /// sockets.
    fn set(peer: &mut Peer, program: &Program, ledger: Ledger) -> Option<(u64, Negotiator)> {
        let before = match peer.kernel_bytes() {
            Err(error @ (SocketError::Forbidden { .. } | SocketError::Unsupported)) => {
                eprintln!("skipped: {error}");
                return None;
            }
            other => other.unwrap(),
        };
        let mut negotiator = negotiator(program, Reach::All, ledger);
        negotiator.look().unwrap();
        peer.exchange();
        let snapshot = negotiator.look().unwrap();
        negotiator.negotiate(snapshot).unwrap();
        assert_eq!(peer.kernel_bytes().unwrap(), 32768);
        Some((before, negotiator))
    }

    #[test]
    fn service_without_settings_releases_nothing() {
        let mut peer = Peer::start();
        let state = tempfile::tempdir().unwrap();
        let real = service(&peer, " --apply");
        let ledger = Ledger::open(state.path()).unwrap();
        let Some((_, setter)) = set(&mut peer, &real, ledger) else { return };
        // While the setting process runs, and after its end.
        for setter in [Some(setter), None] {
            let dry = service(&peer, " --dry-run");
            let looked = ledger_for(Reach::Nobody, Ok(state.path().into())).unwrap();
            assert_eq!(looked.entries().len(), 1);
            let mut negotiator = negotiator(&dry, Reach::Nobody, looked);
            let (sender, stop) = mpsc::channel();
            sender.send(()).unwrap();
            assert_eq!(dry.negotiate.until(&stop, &mut negotiator, &dry.show).unwrap(), Exit::Done);
            assert_eq!(peer.kernel_bytes().unwrap(), 32768);
            // The library does not do it either: without the lock a ledger is read-only.
            assert!(matches!(negotiator.release(), Err(RoundError::Ledger(LedgerError::Looked { .. }))));
            assert_eq!(peer.kernel_bytes().unwrap(), 32768);
            drop(setter);
        }
    }

    #[test]
    fn failed_service_releases_its_buffers() {
        let mut peer = Peer::start();
        let program = service(&peer, " --apply");
        let state = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(state.path()).unwrap();
        let Some((before, mut negotiator)) = set(&mut peer, &program, ledger) else { return };

        // A dry run reads the same entries and takes no lock.
        let looked = ledger_for(Reach::Nobody, Ok(state.path().into())).unwrap();
        assert_eq!(looked.entries().len(), 1);
        assert!(ledger_for(Reach::Nobody, Err(usage("no HOME"))).unwrap().is_empty());

        // The next round comes once the demands are steady. Its entries cannot be written then.
        fs::remove_dir_all(state.path()).unwrap();
        let (_sender, stop) = mpsc::channel();
        let error = program.negotiate.until(&stop, &mut negotiator, &program.show).unwrap_err();
        assert!(error.downcast_ref::<LedgerError>().is_some(), "{error:#}");
        assert_eq!(peer.kernel_bytes().unwrap() / 2, before / 2);
    }
}
