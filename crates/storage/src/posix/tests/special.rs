//! FIFOs, devices, sockets, very deep trees, and /proc.

use std::os::unix::net::UnixListener;

use rustix::fs::FileType;

use super::*;
use crate::{DiskFile, Positions};

#[test]
fn fifo_operations_do_not_block() {
    for place in both() {
        let fifo = place.inside.join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(place.store.stat(&path("/fifo"), true).unwrap().kind, Kind::Fifo);
        // The FIFO has no reader.
        assert!(place.store.open_write(&path("/fifo"), EXISTING).is_err());
        // The FIFO has no writer: a read returns its end.
        let reader = place.store.open_read(&path("/fifo")).unwrap();
        assert_eq!(reader.read_at(&mut [0; 10], 0).unwrap(), 0);
        assert!(reader.descriptor().is_none());
        let writer = place.store.open_write(&path("/fifo"), EXISTING).unwrap();
        assert_eq!(writer.positions(), Positions::Sequential);
        assert!(writer.disk().and_then(DiskFile::descriptor).is_none());
        writer.write_at(b"first", 1000).unwrap();
        writer.write_at(b"second", 1005).unwrap();
        // Bytes out of order would corrupt the data without an error.
        for offset in [0, 1005, 1012] {
            let error = writer.write_at(b"x", offset).unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().contains("out of turn")),
                (ErrorKind::Unsupported, true)
            );
        }
        writer.set_len(3).unwrap();
        writer.sync().unwrap();
        let mut buffer = [0; 20];
        assert_eq!(reader.read_at(&mut buffer, 77).unwrap(), 11);
        assert_eq!(buffer[..11], *b"firstsecond");
        // Now that both ends are open, each waits for the other, or reports that it would have to.
        assert_eq!(reader.read_now(&mut buffer, 0).unwrap(), None);
        let (mut at, much) = (1011, vec![b'x'; 1 << 20]);
        while let Some(n) = writer.write_now(&much, at).unwrap() {
            at += n as u64;
        }
        assert!(writer.write_now(b"x", at + 1).is_err(), "out of turn");
        let writing = std::thread::spawn({
            let writer = writer.clone();
            move || writer.write_at(b"last", at)
        });
        let mut found = Vec::new();
        while !found.ends_with(b"last") {
            let n = reader.read_at(&mut buffer, 0).unwrap();
            found.extend_from_slice(&buffer[..n]);
        }
        assert_eq!(found.len() as u64, at - 1011 + 4);
        writing.join().unwrap().unwrap();
        assert!(reader.wait_descriptor().is_some() && writer.wait_descriptor().is_some());
    }
}

#[test]
fn devices_accept_writes_at_any_position() {
    let store = PosixStore::new(Path::new("/"), PosixOptions::default()).unwrap();
    let null = store.open_write(&path("/dev/null"), CREATE).unwrap();
    assert!(null.positions() == Positions::Ignored && null.discards());
    assert!(null.disk().and_then(DiskFile::descriptor).is_some());
    null.write_at(b"gone", 1 << 40).unwrap();
    null.set_len(10).unwrap();
    null.sync().unwrap();
    assert_eq!(null.metadata().unwrap().kind, Kind::CharacterDevice);
    assert!(!store.open_write(&path("/dev/zero"), CREATE).unwrap().discards());
    let zero = store.open_read(&path("/dev/zero")).unwrap();
    let mut buffer = [7; 10];
    assert_eq!(zero.read_at(&mut buffer, 5).unwrap(), 10);
    assert_eq!(buffer, [0; 10]);
    assert_eq!(zero.data_ranges(0, 10).unwrap(), RangeSet::from_range(0..10));
}

#[test]
fn open_of_a_socket_fails() {
    let place = place(PosixOptions::default());
    let _socket = UnixListener::bind(place.inside.join("s")).unwrap();
    assert_eq!(place.store.stat(&path("/s"), true).unwrap().kind, Kind::Socket);
    assert!(place.store.open_read(&path("/s")).is_err());
    assert!(place.store.open_write(&path("/s"), EXISTING).is_err());
}

/// Deeper than the longest path.
#[test]
fn remove_tree_of_any_depth_succeeds() {
    let place = place(PosixOptions::default());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let name = "a-directory-of-some-length";
    let mut here = rustix::fs::open(&place.inside, flags, Mode::empty()).unwrap();
    for level in 0..200 {
        let made = if level == 0 { "top" } else { name };
        rustix::fs::mkdirat(&here, made, Mode::from_raw_mode(0o755)).unwrap();
        here = rustix::fs::openat(&here, made, flags, Mode::empty()).unwrap();
    }
    place.store.remove_tree(&path("/top")).unwrap();
    assert_eq!(fs::read_dir(&place.inside).unwrap().count(), 0);
}

/// Through /proc, a request of any user could reach files that other threads have open: the kernel
/// checks the process.
#[test]
fn magic_links_are_not_followed() {
    use std::os::fd::AsRawFd;
    let keep = tempfile::tempdir().unwrap();
    let secret = keep.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let (file, directory) = (fs::File::open(&secret).unwrap(), fs::File::open(keep.path()).unwrap());
    let of = |fd: i32| format!("/proc/self/fd/{fd}");
    symlink(of(file.as_raw_fd()), keep.path().join("link")).unwrap();
    let to_file = of(file.as_raw_fd());
    let beneath = format!("{}/secret", of(directory.as_raw_fd()));
    let link = keep.path().join("link").to_str().unwrap().to_owned();
    let root = Path::new("/");
    let plain = PosixStore::new(root, PosixOptions::default()).unwrap();
    let options = PosixOptions { no_magic_links: true, ..PosixOptions::default() };
    let confined = PosixStore::new(root, options).unwrap();
    for text in [&to_file, &beneath, &link] {
        plain.open_read(&path(text)).unwrap();
        let refused = |result: Result<()>| {
            assert_eq!(result.unwrap_err().errno(), Some(Errno::LOOP.raw_os_error()), "{text}");
        };
        refused(confined.open_read(&path(text)).map(drop));
        refused(confined.open_write(&path(text), EXISTING).map(drop));
        refused(confined.stat(&path(text), true).map(drop));
        refused(confined.real_path(&path(text)).map(drop));
        refused(confined.truncate(&path(text), 0));
        refused(confined.set_mode(&path(text), 0o777));
    }
    let new = format!("{}/new", of(directory.as_raw_fd()));
    confined.stat(&path(&beneath), false).unwrap_err();
    confined.open_write(&path(&new), CREATE).map(drop).unwrap_err();
    confined.make_directory(&path(&new), 0o777).unwrap_err();
    confined.rename(&path(&beneath), &path(&new)).unwrap_err();
    confined.remove_file(&path(&beneath)).unwrap_err();
    confined.list(&path(&of(directory.as_raw_fd())), &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    // Other links are followed, and ordinary files are accessible.
    confined.open_read(&path("/proc/version")).unwrap();
    let ordinary = keep.path().join("ordinary");
    symlink(&secret, &ordinary).unwrap();
    confined.open_read(&path(ordinary.to_str().unwrap())).unwrap();
    assert!(confined.open_write(&path("/dev/null"), EXISTING).is_ok());
}

/// For kernel settings, the kernel checks the process, not the impersonated user of the thread.
#[test]
fn kernel_settings_cannot_be_written() {
    let options = PosixOptions { no_magic_links: true, ..PosixOptions::default() };
    let store = PosixStore::new(Path::new("/"), options).unwrap();
    let setting = path("/proc/sys/kernel/hostname");
    assert_eq!(
        store.open_write(&setting, EXISTING).map(drop).unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
    assert_eq!(store.truncate(&setting, 0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    store.open_read(&setting).unwrap();
}

/// The kernel shows the data of the process to each of its threads, whatever user they impersonate.
#[test]
fn proc_entries_of_the_process_are_refused() {
    let options = PosixOptions { no_magic_links: true, ..PosixOptions::default() };
    let store = PosixStore::new(Path::new("/"), options.clone()).unwrap();
    let (process, thread) =
        (rustix::process::getpid().as_raw_nonzero(), rustix::thread::gettid().as_raw_nonzero());
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (sender, other) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || {
        sender.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
        stopped.recv().unwrap_err();
    });
    let other = other.recv().unwrap();
    let open = fs::File::open("/").unwrap();
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&open);
    let check = |store: &PosixStore, proc: &str| {
        let names = [
            "self".to_owned(),
            "thread-self".into(),
            process.to_string(),
            other.to_string(),
            format!("self/task/{thread}"),
            format!("{process}/task/{other}"),
        ];
        for name in names {
            let of = |what: &str| path(&format!("{proc}/{name}/{what}"));
            let refused = |result: Result<()>, what: &str| {
                let told = result.map_err(|error| error.kind());
                assert_eq!(told, Err(ErrorKind::PermissionDenied), "{proc}/{name}/{what}");
            };
            for what in ["maps", "smaps", "stat", "status", "syscall", "environ"] {
                refused(store.open_read(&of(what)).map(drop), what);
                refused(store.stat(&of(what), true).map(drop), what);
                refused(store.stat(&of(what), false).map(drop), what);
            }
            for what in ["fd", "fdinfo", "", "ns"] {
                refused(store.list(&of(what), &mut |_, _| Ok(())), what);
            }
            refused(store.stat(&of(&format!("fd/{descriptor}")), false).map(drop), "fd");
        }
        // Other processes are shown, as far as the kernel allows it for the user.
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero();
        store.open_read(&path(&format!("{proc}/{parent}/stat"))).unwrap();
        store.open_read(&path(&format!("{proc}/version"))).unwrap();
        store.open_read(&path(&format!("{proc}/sys/kernel/ostype"))).unwrap();
        store.stat(&path(&format!("{proc}/{process}")), false).unwrap();
        let mut seen = false;
        store
            .list(&path(proc), &mut |name, _| {
                seen |= name == "version";
                Ok(())
            })
            .unwrap();
        assert!(seen);
    };
    check(&store, "/proc");
    let place = place(PosixOptions::default());
    let mount = place.inside.join("elsewhere");
    fs::create_dir(&mount).unwrap();
    // As root, a thread can have mounts of its own.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let Ok(()) = mounted(&mount) else { return };
            let store = |root: &Path| PosixStore::new(root, options.clone()).unwrap();
            check(&store(Path::new("/")), mount.to_str().unwrap());
            check(&store(&place.inside), "/elsewhere");
        });
    });
    drop(stop);
    waiting.join().unwrap();
}

/// Mounts another /proc for the calling thread only.
fn mounted(at: &Path) -> nix::Result<()> {
    use nix::mount::{MsFlags, mount};
    const NONE: Option<&str> = None;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    mount(NONE, "/", NONE, MsFlags::MS_PRIVATE | MsFlags::MS_REC, NONE)?;
    mount(Some("proc"), at, Some("proc"), MsFlags::empty(), NONE)
}
