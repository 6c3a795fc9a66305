use std::os::unix::net::UnixListener;

use rustix::fs::FileType;

use super::*;

#[test]
fn a_fifo_does_not_make_anybody_wait() {
    for place in both() {
        let fifo = place.inside.join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(place.store.stat(&path("/fifo"), true).unwrap().kind, Kind::Fifo);
        // Nobody reads it.
        assert!(place.store.open_write(&path("/fifo"), EXISTING).is_err());
        // Nobody writes it: it reads as ended.
        let reader = place.store.open_read(&path("/fifo")).unwrap();
        assert_eq!(reader.read_at(&mut [0; 10], 0).unwrap(), 0);
        assert!(reader.descriptor().is_none());
        let writer = place.store.open_write(&path("/fifo"), EXISTING).unwrap();
        assert!(writer.positionless());
        assert!(writer.descriptor().is_none());
        writer.write_at(b"first", 1000).unwrap();
        writer.write_at(b"second", 1005).unwrap();
        // Bytes out of turn would be a mess that nobody notices.
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
        // Now it waits again, as a pipe does.
        let flags = rustix::fs::OFlags::NONBLOCK;
        let raw = place.store.open_existing(&path("/fifo"), false).unwrap();
        assert!(!rustix::fs::fcntl_getfl(raw.fd()).unwrap().contains(flags));
    }
}

#[test]
fn devices_take_bytes_as_they_come() {
    let store = PosixStore::new(Path::new("/"), PosixOptions::default()).unwrap();
    let null = store.open_write(&path("/dev/null"), CREATE).unwrap();
    assert!(null.positionless());
    assert!(null.descriptor().is_some());
    null.write_at(b"gone", 1 << 40).unwrap();
    null.set_len(10).unwrap();
    null.sync().unwrap();
    assert_eq!(null.metadata().unwrap().kind, Kind::CharacterDevice);
    let zero = store.open_read(&path("/dev/zero")).unwrap();
    let mut buffer = [7; 10];
    assert_eq!(zero.read_at(&mut buffer, 5).unwrap(), 10);
    assert_eq!(buffer, [0; 10]);
    assert_eq!(zero.data_ranges(0, 10).unwrap(), RangeSet::from_range(0..10));
}

#[test]
fn a_socket_is_no_file() {
    let place = place(PosixOptions::default());
    let _socket = UnixListener::bind(place.inside.join("s")).unwrap();
    assert_eq!(place.store.stat(&path("/s"), true).unwrap().kind, Kind::Socket);
    assert!(place.store.open_read(&path("/s")).is_err());
    assert!(place.store.open_write(&path("/s"), EXISTING).is_err());
}

/// Deeper than any path can say.
#[test]
fn trees_of_any_depth_are_removed() {
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
