//! The accounts equal the files, whatever happens in which order, also beside a scan and after a
//! crash.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use ropewalk_space::{AccountId, AccountKey, Accounts, Book, Inode, Kind, Limits, Reservation};

const NOW: u64 = 1000;
const DIRECTORIES: u8 = 4;
const NAMES: u8 = 4;

fn inode(number: u64) -> Inode {
    Inode { device: 1, number }
}

fn directory(number: u8) -> Inode {
    inode(1_000_000 + u64::from(number))
}

fn key(quota: &str, holder: &str) -> AccountKey {
    AccountKey { quota: quota.into(), holder: holder.into() }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Create {
        at: u8,
        name: u8,
    },
    Open {
        at: u8,
        name: u8,
    },
    /// Space is asked for ...
    Grow {
        handle: usize,
        by: u64,
    },
    /// ... and used.
    Write {
        handle: usize,
    },
    Truncate {
        handle: usize,
        to: u64,
    },
    Close {
        handle: usize,
    },
    Delete {
        at: u8,
        name: u8,
    },
    Rename {
        from: (u8, u8),
        to: (u8, u8),
    },
    /// The next step of a change of names.
    Advance,
    MakeDirectory {
        parent: u8,
    },
    MoveDirectory,
    Reserve {
        at: u8,
        bytes: u64,
        seconds: u64,
    },
    /// The file of a handle draws on a reservation.
    Draw {
        handle: usize,
        reservation: usize,
    },
    Release {
        reservation: usize,
    },
    /// Reservations expire.
    Wait {
        seconds: u64,
    },
    ScanStep,
    Crash,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let place = || (0..DIRECTORIES, 0..NAMES);
    let op = prop_oneof![
        4 => place().prop_map(|(at, name)| Op::Create { at, name }),
        2 => place().prop_map(|(at, name)| Op::Open { at, name }),
        5 => (0..6usize, prop_oneof![0..40u64, Just(u64::MAX)]).prop_map(|(handle, by)| Op::Grow { handle, by }),
        5 => (0..6usize).prop_map(|handle| Op::Write { handle }),
        1 => (0..6usize, 0..30u64).prop_map(|(handle, to)| Op::Truncate { handle, to }),
        3 => (0..6usize).prop_map(|handle| Op::Close { handle }),
        2 => place().prop_map(|(at, name)| Op::Delete { at, name }),
        4 => (place(), place()).prop_map(|(from, to)| Op::Rename { from, to }),
        8 => Just(Op::Advance),
        1 => (0..DIRECTORIES).prop_map(|parent| Op::MakeDirectory { parent }),
        1 => Just(Op::MoveDirectory),
        2 => (0..3u8, prop_oneof![1..60u64, Just(u64::MAX)], 1..20u64)
            .prop_map(|(at, bytes, seconds)| Op::Reserve { at, bytes, seconds }),
        4 => (0..6usize, 0..3usize).prop_map(|(handle, reservation)| Op::Draw { handle, reservation }),
        1 => (0..3usize).prop_map(|reservation| Op::Release { reservation }),
        2 => (1..8u64).prop_map(|seconds| Op::Wait { seconds }),
        14 => Just(Op::ScanStep),
        1 => Just(Op::Crash),
    ];
    proptest::collection::vec(op, 0..120)
}

struct Handle {
    file: Inode,
    granted: u64,
}

/// A change of names under way. There is one at a time, as the server sees to.
enum Change {
    Created { file: Inode, at: u8, name: u8 },
    Delete { file: Inode, at: u8, name: u8 },
    Deleted { file: Inode },
    Rename { file: Inode, replaced: Option<Inode>, from: (u8, u8), to: (u8, u8) },
    Renamed { file: Inode, replaced: Option<Inode> },
}

#[derive(Default)]
struct Scanner {
    directories: VecDeque<u8>,
    listing: Option<VecDeque<(u8, u8)>>,
}

struct World {
    book: Book,
    /// The directories that exist; the first is the root of the tree.
    directories: u8,
    names: BTreeMap<(u8, u8), Inode>,
    sizes: HashMap<Inode, u64>,
    next: u64,
    handles: Vec<Handle>,
    change: Option<Change>,
    scanner: Option<Scanner>,
    /// The accounts are known to be exact.
    exact: bool,
    now: u64,
    /// The reservations in the ledger.
    kept: BTreeMap<Arc<str>, Reservation>,
    tokens: u64,
}

impl World {
    fn new() -> Self {
        Self {
            book: Book::default(),
            directories: 2,
            names: BTreeMap::new(),
            sizes: HashMap::new(),
            next: 1,
            handles: Vec::new(),
            change: None,
            scanner: None,
            exact: true,
            now: NOW,
            kept: BTreeMap::new(),
            tokens: 0,
        }
    }

    /// All files count in one account, those of a directory in another, and each owner has one.
    fn accounts(&mut self, at: u8, file: Inode) -> Accounts {
        let owner = if file.number.is_multiple_of(2) { "even" } else { "odd" };
        let few = Limits { bytes: Some(150), files: Some(7), ..Limits::default() };
        let soft = Limits { soft_bytes: Some(60), grace: 10, ..Limits::default() };
        let mut all =
            vec![self.book.account(&key("all", ""), few), self.book.account(&key("each", owner), soft)];
        if at == 1 {
            all.push(self.book.account(&key("one", "1"), Limits { bytes: Some(70), ..Limits::default() }));
        }
        all.into()
    }

    fn charges(&mut self) -> HashMap<AccountId, (u64, u64)> {
        let mut sums: HashMap<AccountId, (u64, u64)> = HashMap::new();
        for ((at, _), file) in self.names.clone() {
            let bytes = self.book.charged(file).unwrap_or(self.sizes[&file]);
            for id in self.accounts(at, file).iter() {
                let sum = sums.entry(*id).or_default();
                *sum = (sum.0 + bytes, sum.1 + 1);
            }
        }
        for reservation in self.book.reservations() {
            for id in reservation.accounts.iter() {
                sums.entry(*id).or_default().0 += reservation.left;
            }
        }
        sums
    }

    fn token(&self, reservation: usize) -> Option<Arc<str>> {
        let mut tokens: Vec<_> = self.book.reservations().map(|one| Arc::clone(&one.token)).collect();
        tokens.sort_unstable();
        tokens.get(reservation).cloned()
    }

    fn check(&mut self) {
        for reservation in self.book.reservations() {
            assert!(reservation.left <= reservation.bytes, "{reservation:?}");
        }
        if !self.exact || self.change.is_some() {
            return;
        }
        let charges = self.charges();
        for at in 0..2 {
            for file in [inode(1), inode(2)] {
                for id in self.accounts(at, file).iter() {
                    let state = self.book.state(*id);
                    let sum = charges.get(id).copied().unwrap_or_default();
                    assert_eq!((state.bytes, state.files), sum, "{:?}", state.key);
                }
            }
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Create { at, name } if self.change.is_none() && at < self.directories => {
                if self.names.contains_key(&(at, name)) {
                    return;
                }
                let file = inode(self.next);
                self.next += 1;
                self.names.insert((at, name), file);
                self.sizes.insert(file, 0);
                self.change = Some(Change::Created { file, at, name });
            }
            Op::Open { at, name } if self.change.is_none() => {
                let Some(&file) = self.names.get(&(at, name)) else { return };
                self.open(file, at);
                self.handles.push(Handle { file, granted: 0 });
            }
            Op::Grow { handle, by } => {
                let Some(handle) = self.handles.get_mut(handle) else { return };
                let end = self.sizes[&handle.file].saturating_add(by);
                match self.book.grow(handle.file, end, self.now) {
                    Ok(()) => handle.granted = end,
                    Err(refusal) => {
                        assert!(refusal.needed > refusal.free && refusal.kind == Kind::Bytes, "{refusal}");
                    }
                }
            }
            Op::Write { handle } => {
                let Some(handle) = self.handles.get(handle) else { return };
                let size = self.sizes.get_mut(&handle.file).unwrap();
                // Without a limit, nothing is charged for a file without a name.
                *size = (*size).max(handle.granted.min(1 << 40));
            }
            Op::Truncate { handle, to } => {
                let Some(file) = self.handles.get(handle).map(|handle| handle.file) else { return };
                let size = self.sizes.get_mut(&file).unwrap();
                *size = (*size).min(to);
                self.handles
                    .iter_mut()
                    .filter(|other| other.file == file)
                    .for_each(|other| other.granted = 0);
                self.book.shrink(file, to, self.now);
            }
            Op::Close { handle } if handle < self.handles.len() => {
                let handle = self.handles.remove(handle);
                self.book.close(handle.file, self.sizes[&handle.file], self.now);
            }
            Op::Delete { at, name } if self.change.is_none() => {
                let Some(&file) = self.names.get(&(at, name)) else { return };
                self.open(file, at);
                self.change = Some(Change::Delete { file, at, name });
            }
            Op::Rename { from, to } if self.change.is_none() && to.0 < self.directories && from != to => {
                let Some(&file) = self.names.get(&from) else { return };
                self.open(file, from.0);
                let accounts = self.accounts(to.0, file);
                if self.book.relocate(file, directory(to.0), &accounts, self.now).is_err() {
                    self.book.close(file, self.sizes[&file], self.now);
                    return;
                }
                let replaced = self.names.get(&to).copied();
                if let Some(replaced) = replaced {
                    self.open(replaced, to.0);
                }
                self.change = Some(Change::Rename { file, replaced, from, to });
            }
            Op::Advance => self.advance(),
            Op::MakeDirectory { parent } if self.directories < DIRECTORIES && parent < self.directories => {
                let made = self.directories;
                self.directories += 1;
                // A listing shows the directory or does not.
                if let Some(scanner) = &mut self.scanner
                    && scanner.directories.contains(&parent)
                {
                    scanner.directories.push_back(made);
                }
                self.book.made_directory(directory(parent), directory(made));
            }
            Op::MoveDirectory => self.book.moved_directory(),
            Op::Reserve { at, bytes, seconds } => {
                self.tokens += 1;
                // Even and odd numbers are two owners.
                let accounts = self.accounts(at, inode(bytes));
                let reservation = Reservation {
                    token: self.tokens.to_string().into(),
                    user: String::new(),
                    accounts,
                    directory: String::new(),
                    device: 1,
                    bytes,
                    left: bytes,
                    end: self.now + seconds,
                };
                if let Err(refusal) = self.book.reserve(reservation, self.now) {
                    assert!(refusal.needed > refusal.free && refusal.kind == Kind::Bytes, "{refusal}");
                }
            }
            Op::Draw { handle, reservation } => {
                if let (Some(handle), Some(token)) = (self.handles.get(handle), self.token(reservation)) {
                    self.book.draw_on(handle.file, &token);
                }
            }
            Op::Release { reservation } => {
                if let Some(token) = self.token(reservation) {
                    let left = self.book.reservation(&token).unwrap().left;
                    assert_eq!(self.book.release(&token, self.now).unwrap().left, left);
                }
            }
            Op::Wait { seconds } => {
                self.now += seconds;
                let ended = self.book.expire(self.now);
                assert!(ended.iter().all(|reservation| reservation.end <= self.now));
                assert!(self.book.reservations().all(|reservation| reservation.end > self.now));
                // The server writes the ledger now and then.
                for (token, reservation) in self.book.take_changed_reservations() {
                    match reservation {
                        Some(reservation) => self.kept.insert(token, reservation),
                        None => self.kept.remove(&token),
                    };
                }
            }
            Op::ScanStep => self.scan_step(),
            Op::Crash => {
                self.book = Book::default();
                // The accounts have other numbers now, which depend on the order.
                for mut reservation in self.kept.values().cloned().collect::<Vec<_>>() {
                    let place = if reservation.accounts.len() == 3 { 1 } else { 0 };
                    reservation.accounts = self.accounts(place, inode(reservation.bytes));
                    self.book.restore_reservation(reservation);
                }
                (self.handles, self.change, self.scanner) = (Vec::new(), None, None);
                self.exact = false;
            }
            _ => {}
        }
    }

    fn open(&mut self, file: Inode, at: u8) {
        let accounts = self.accounts(at, file);
        self.book.open(file, directory(at), self.sizes[&file], &accounts);
    }

    fn advance(&mut self) {
        match self.change.take() {
            None => {}
            Some(Change::Created { file, at, name }) => {
                let accounts = self.accounts(at, file);
                match self.book.create(file, directory(at), &accounts, self.now) {
                    Ok(()) => self.handles.push(Handle { file, granted: 0 }),
                    Err(_) => {
                        self.names.remove(&(at, name));
                    }
                }
            }
            Some(Change::Delete { file, at, name }) => {
                self.names.remove(&(at, name));
                self.change = Some(Change::Deleted { file });
            }
            Some(Change::Deleted { file }) => {
                self.book.remove(file, self.now);
                self.book.close(file, 0, self.now);
            }
            Some(Change::Rename { file, replaced, from, to }) => {
                self.names.remove(&from);
                self.names.insert(to, file);
                self.change = Some(Change::Renamed { file, replaced });
            }
            Some(Change::Renamed { file, replaced }) => {
                if let Some(replaced) = replaced {
                    self.book.remove(replaced, self.now);
                    self.book.close(replaced, 0, self.now);
                }
                self.book.close(file, self.sizes[&file], self.now);
            }
        }
    }

    fn scan_step(&mut self) {
        let Some(scanner) = &mut self.scanner else {
            self.book.begin_scan();
            self.scanner = Some(Scanner { directories: (0..self.directories).collect(), listing: None });
            return;
        };
        match &mut scanner.listing {
            // A scan waits for changes of names before it begins or ends a directory.
            None if self.change.is_some() => {}
            None => match scanner.directories.pop_front() {
                Some(next) => {
                    if self.book.enter(directory(next)) {
                        scanner.listing =
                            Some(self.names.keys().copied().filter(|(at, _)| *at == next).collect());
                    }
                }
                None => {
                    self.scanner = None;
                    self.exact |= self.book.end_scan(self.now).is_some();
                }
            },
            Some(entries) => match entries.pop_front() {
                Some(entry) => {
                    let Some(&file) = self.names.get(&entry) else { return };
                    let accounts = self.accounts(entry.0, file);
                    self.book.saw(file, self.sizes[&file], &accounts);
                }
                None if self.change.is_some() => {}
                None => {
                    self.book.leave();
                    scanner.listing = None;
                }
            },
        }
    }

    /// Ends all that is under way, and then the scan.
    fn settle(&mut self) {
        while self.change.is_some() {
            self.advance();
        }
        while !self.handles.is_empty() {
            self.apply(Op::Close { handle: 0 });
        }
        while self.scanner.is_some() {
            self.scan_step();
        }
        if !self.exact {
            self.scan_step();
            while self.scanner.is_some() {
                self.scan_step();
            }
        }
        assert!(self.exact);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn accounts_after_any_schedule_equal_files(ops in ops()) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
            world.check();
        }
        world.settle();
        world.check();
    }
}

#[test]
fn soft_limit_is_enforced_after_grace() {
    let mut book = Book::default();
    let limits = Limits { bytes: Some(100), soft_bytes: Some(50), grace: 10, ..Limits::default() };
    let accounts: Accounts = Arc::new([book.account(&key("q", "ann"), limits)]);
    let (file, at) = (inode(1), directory(0));
    book.create(file, at, &accounts, 1000).unwrap();
    book.grow(file, 60, 1000).unwrap();
    book.grow(file, 70, 1009).unwrap();
    let refusal = book.grow(file, 71, 1010).unwrap_err();
    assert_eq!((refusal.free, refusal.limit, refusal.grace_is_over), (0, 50, true));
    let text = "Quota q of ann: 0 of 50 bytes are free, and 1 more are needed; the time for which the soft limit may be \
                exceeded is over.";
    assert_eq!(refusal.to_string(), text);
    // Below the soft limit, the time begins again.
    book.shrink(file, 50, 1011);
    book.grow(file, 100, 1012).unwrap();
    let refusal = book.grow(file, 101, 1013).unwrap_err();
    assert_eq!((refusal.free, refusal.limit, refusal.grace_is_over), (0, 100, false));
}

#[test]
fn counter_that_would_overflow_refuses() {
    let mut book = Book::default();
    let accounts: Accounts = Arc::new([book.account(&key("q", ""), Limits::default())]);
    book.restore(accounts[0], u64::MAX - 1, u64::MAX, None);
    let at = directory(0);
    assert!(book.create(inode(1), at, &accounts, NOW).is_err());
    book.open(inode(2), at, 5, &accounts);
    assert!(book.grow(inode(2), 7, NOW).is_err());
    book.grow(inode(2), 6, NOW).unwrap();
    assert!(book.grow(inode(2), u64::MAX, NOW).is_err());
    // Fewer than it should have been: the next scan corrects it.
    book.restore(accounts[0], 1, 0, None);
    book.remove(inode(2), NOW);
    assert_eq!((book.state(accounts[0]).bytes, book.state(accounts[0]).files), (0, 0));
}

fn reservation(token: &str, accounts: &Accounts, bytes: u64) -> Reservation {
    Reservation {
        token: token.into(),
        user: "ann".into(),
        accounts: Arc::clone(accounts),
        directory: "/srv".into(),
        device: 1,
        bytes,
        left: bytes,
        end: NOW + 10,
    }
}

#[test]
fn reservation_is_charged_once_and_returns_what_is_not_used() {
    let mut book = Book::default();
    let limits = Limits { bytes: Some(100), ..Limits::default() };
    let accounts: Accounts = Arc::new([book.account(&key("q", ""), limits)]);
    let used = |book: &Book| book.state(accounts[0]).bytes;
    let left = |book: &Book| book.reservation("t").unwrap().left;
    book.reserve(reservation("t", &accounts, 60), NOW).unwrap();
    assert_eq!(book.reserve(reservation("u", &accounts, 41), NOW).unwrap_err().free, 40);
    assert_eq!(book.reserve(reservation("u", &accounts, u64::MAX), NOW).unwrap_err().free, 40);
    let (mine, other, at) = (inode(1), inode(2), directory(0));
    for file in [mine, other] {
        book.create(file, at, &accounts, NOW).unwrap();
    }
    book.draw_on(mine, "t");
    assert!(book.grow(other, 41, NOW).is_err());
    book.grow(mine, 50, NOW).unwrap();
    assert_eq!((used(&book), left(&book)), (60, 10));
    // Beyond the reservation, the quota counts.
    book.grow(mine, 70, NOW).unwrap();
    assert_eq!((used(&book), left(&book)), (70, 0));
    assert_eq!(book.grow(mine, 101, NOW).unwrap_err().free, 30);
    book.shrink(mine, 40, NOW);
    assert_eq!((used(&book), left(&book)), (70, 30));
    book.close(mine, 40, NOW);
    // After its end it gives nothing more, and then it is gone.
    book.draw_on(other, "t");
    assert_eq!(book.grow(other, 31, NOW + 10).unwrap_err().free, 30);
    assert_eq!(book.expire(NOW + 10).len(), 1);
    assert_eq!((used(&book), book.release("t", NOW + 10)), (40, None));
    book.grow(other, 60, NOW + 10).unwrap();
}

#[test]
fn file_of_other_accounts_does_not_draw() {
    let mut book = Book::default();
    let limits = Limits { bytes: Some(100), ..Limits::default() };
    let all: Accounts = Arc::new([book.account(&key("q", ""), limits)]);
    let both: Accounts = Arc::new([all[0], book.account(&key("r", ""), limits)]);
    book.reserve(reservation("t", &all, 60), NOW).unwrap();
    let (file, at) = (inode(1), directory(0));
    book.create(file, at, &both, NOW).unwrap();
    book.draw_on(file, "t");
    assert!(book.grow(file, 41, NOW).is_err());
    book.relocate(file, at, &all, NOW).unwrap();
    book.draw_on(file, "t");
    book.grow(file, 100, NOW).unwrap();
    assert_eq!((book.state(all[0]).bytes, book.reservation("t").unwrap().left), (100, 0));
    // The drawn bytes stay with a file that goes elsewhere.
    book.relocate(file, at, &both, NOW).unwrap();
    book.remove(file, NOW);
    assert_eq!((book.state(all[0]).bytes, book.state(both[1]).bytes), (0, 0));
}
