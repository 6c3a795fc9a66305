//! Concurrent changes of the tree while the store works in it.

use std::sync::atomic::AtomicBool;

use rustix::fs::RenameFlags;

use super::*;

/// Enough that a swap happens between any two steps at some time.
pub(super) const ENOUGH: usize = 300;

/// Stops the other thread, also if a check fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while another thread calls `disturb` repeatedly.
pub(super) fn disturbed(disturb: impl Fn() + Sync, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                disturb();
            }
        });
        let _stop = StopAtEnd(&stop);
        work();
    });
}

pub(super) fn exchange(a: &Path, b: &Path) {
    rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
}

fn read(store: &PosixStore, at: &str) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 100];
    let got = store.open_read(&path(at))?.read_at(&mut buffer, 0)?;
    buffer.truncate(got);
    Ok(buffer)
}

#[test]
fn open_with_swapped_directories_stays_inside() {
    for place in both() {
        let (store, inside) = (&place.store, &place.inside);
        fs::write(place.outside.join("f"), "outside").unwrap();
        fs::create_dir(inside.join("d")).unwrap();
        fs::write(inside.join("d/f"), "inside").unwrap();
        symlink("../outside", inside.join("swap")).unwrap();
        let mut seen = [0usize; 2];
        disturbed(
            || exchange(&inside.join("d"), &inside.join("swap")),
            || {
                // The loop runs until both outcomes were seen often enough, because thread
                // scheduling varies.
                for round in 0.. {
                    if seen.iter().all(|seen| *seen >= ENOUGH) {
                        break;
                    }
                    match read(store, "/d/f") {
                        Ok(content) => {
                            assert_eq!(content, b"inside");
                            seen[0] += 1;
                        }
                        Err(_) => seen[1] += 1,
                    }
                    if let Ok(real) = store.real_path(&path("/d/f")) {
                        assert!(real == path("/d/f") || real == path("/swap/f"), "{real}");
                    }
                    let _ = store.set_mode(&path("/d/f"), 0o600 + (round & 0o77));
                    let _ = store.open_write(&path(&format!("/d/new{}", round % 4)), CREATE);
                    let _ = store.remove_file(&path(&format!("/d/new{}", round % 4)));
                    let _ = store.truncate(&path("/d/f"), 6);
                }
            },
        );
        assert_eq!(fs::read_to_string(place.outside.join("f")).unwrap(), "outside");
        assert_eq!(fs::read_dir(&place.outside).unwrap().count(), 1);
    }
}

/// The directory is moved out of the root while it is used: its `..` is outside then.
#[test]
fn open_with_a_directory_moved_outside_stays_inside() {
    for place in both() {
        let (store, inside, outside) = (&place.store, &place.inside, &place.outside);
        fs::write(outside.join("secret"), "secret").unwrap();
        fs::create_dir_all(inside.join("a/b/c")).unwrap();
        symlink("../../../secret", inside.join("a/b/c/up")).unwrap();
        let moved = AtomicBool::new(false);
        disturbed(
            || {
                let (from, to) = (inside.join("a/b"), outside.join("b"));
                let out = moved.fetch_xor(true, Ordering::Relaxed);
                if out { fs::rename(to, from).unwrap() } else { fs::rename(from, to).unwrap() }
            },
            || {
                for _ in 0..3 * ENOUGH {
                    let found = read(store, "/a/b/c/up");
                    assert!(found.is_err(), "{found:?}");
                }
            },
        );
    }
}

#[test]
fn remove_tree_with_swapped_links_removes_nothing_else() {
    for place in both() {
        let (store, inside) = (&place.store, &place.inside);
        fs::create_dir(inside.join("keep")).unwrap();
        for i in 0..10 {
            fs::write(inside.join(format!("keep/{i}")), "keep").unwrap();
        }
        symlink("keep", inside.join("link")).unwrap();
        symlink("../keep", inside.join("link-below")).unwrap();
        for _ in 0..15 {
            fs::create_dir_all(inside.join("t/d")).unwrap();
            for i in 0..10 {
                fs::write(inside.join(format!("t/d/{i}")), "t").unwrap();
            }
            disturbed(
                || {
                    let (d, link) = (inside.join("t/d"), inside.join("link-below"));
                    let _ = rustix::fs::renameat_with(CWD, &d, CWD, &link, RenameFlags::EXCHANGE);
                },
                || {
                    let _ = store.remove_tree(&path("/t"));
                },
            );
            assert_eq!(fs::read_dir(inside.join("keep")).unwrap().count(), 10);
            // The rest that the swaps have left.
            let _ = fs::remove_dir_all(inside.join("t"));
            if fs::symlink_metadata(inside.join("link-below")).is_ok_and(|m| m.is_dir()) {
                fs::remove_dir_all(inside.join("link-below")).unwrap();
            }
            if fs::symlink_metadata(inside.join("link-below")).is_err() {
                symlink("../keep", inside.join("link-below")).unwrap();
            }
        }
    }
}
