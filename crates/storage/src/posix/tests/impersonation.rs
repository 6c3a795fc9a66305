//! Impersonation. The users need no accounts; only root can impersonate them.

use std::os::unix::fs::{MetadataExt, chown};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::thread;

use rustix::thread::{CapabilitySet, capabilities};

use super::super::impersonation::act;
use super::*;
use crate::{JournalKey, PartFile, UploadOptions, part_name};

const ADA: u32 = 3_000_000_017;
const BOB: u32 = 3_000_000_018;
const SHARED: u32 = 3_000_000_019;

/// Whether this test can run. Prints that it is skipped, and fails if no test may be skipped.
fn is_root() -> bool {
    if Identity::can_act() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "this test has to run as root");
    eprintln!("SKIPPED: only root can act for others");
    false
}

fn identity(uid: u32, groups: &[u32]) -> Arc<Identity> {
    Arc::new(Identity { uid, gid: uid, groups: groups.to_vec() })
}

/// File-system user and group, supplementary groups, and whether any capability over files is left.
fn now() -> (u32, u32, Vec<u32>, bool) {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let numbers = |field: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.split_whitespace().map(|word| word.parse().unwrap()).collect()
    };
    let power = CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::CHOWN
        | CapabilitySet::FSETID;
    let left = capabilities(None).unwrap().effective.intersects(power);
    (numbers("Uid:")[3], numbers("Gid:")[3], numbers("Groups:"), left)
}

/// A store below `inside` that impersonates `uid` with these supplementary groups.
fn store_of(inside: &std::path::Path, uid: u32, groups: &[u32]) -> Arc<dyn Store> {
    let identity = Some((*identity(uid, groups)).clone());
    let options = PosixOptions { identity, act: true, ..PosixOptions::default() };
    Arc::new(PosixStore::new(inside, options).unwrap())
}

#[test]
fn act_changes_the_thread_until_the_guard_is_dropped() {
    if !is_root() {
        return;
    }
    let before = now();
    let (ada, bob) = (identity(ADA, &[ADA, SHARED]), identity(BOB, &[BOB]));
    let outer = act(Some(&ada)).unwrap();
    assert_eq!(now(), (ADA, ADA, vec![ADA, SHARED], false));
    {
        let _same = act(Some(&identity(ADA, &[ADA, SHARED]))).unwrap();
        assert_eq!(now().0, ADA);
        let _other = act(Some(&bob)).unwrap();
        assert_eq!(now(), (BOB, BOB, vec![BOB], false));
        let _process = act(None).unwrap();
        assert_eq!(now(), before);
    }
    assert_eq!(now(), (ADA, ADA, vec![ADA, SHARED], false));
    drop(outer);
    assert_eq!(now(), before);
}

#[test]
fn act_ends_on_a_panic() {
    if !is_root() {
        return;
    }
    let before = now();
    let ada = identity(ADA, &[]);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _acting = act(Some(&ada)).unwrap();
        let _again = act(Some(&identity(BOB, &[]))).unwrap();
        assert_eq!(now().0, BOB);
        std::panic::resume_unwind(Box::new("told to"));
    }));
    assert!(result.is_err());
    assert_eq!(now(), before);
}

#[test]
fn act_does_not_affect_other_threads() {
    if !is_root() {
        return;
    }
    let before = now();
    let _acting = act(Some(&identity(ADA, &[SHARED]))).unwrap();
    let in_new = thread::spawn(|| {
        let inherited = now().0;
        crate::thread_starts();
        (inherited, now())
    });
    assert_eq!(in_new.join().unwrap(), (ADA, before.clone()));
    // In such a thread, an operation as the process does not run with the inherited identity.
    let as_process = thread::spawn(|| {
        let _acting = act(None).unwrap();
        now()
    });
    assert_eq!(as_process.join().unwrap(), before);
    assert_eq!(now().0, ADA);
}

#[test]
fn guards_that_go_in_the_wrong_order_end_the_process() {
    const ASKED: &str = "ROPEWALK_TEST_WRONG_ORDER";
    if !is_root() {
        return;
    }
    if std::env::var_os(ASKED).is_some() {
        let outer = act(Some(&identity(ADA, &[]))).unwrap();
        let inner = act(Some(&identity(BOB, &[]))).unwrap();
        drop(outer);
        drop(inner);
        return;
    }
    let name = "posix::tests::impersonation::guards_that_go_in_the_wrong_order_end_the_process";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(ASKED, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("out of order"), "{} {text}", output.status);
}

#[test]
fn every_operation_runs_as_the_user() {
    if !is_root() {
        return;
    }
    let place = place(PosixOptions::default());
    fs::set_permissions(place._keep.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&place.inside, fs::Permissions::from_mode(0o1777)).unwrap();
    let (ada, bob) = (store_of(&place.inside, ADA, &[SHARED]), store_of(&place.inside, BOB, &[]));
    let before = now();

    ada.make_directory(&path("/private"), 0o700).unwrap();
    ada.open_write(&path("/private/x"), CREATE).unwrap().write_at(b"secret", 0).unwrap();
    ada.open_write(&path("/x"), WriteOptions { mode: 0o600, ..CREATE }).unwrap();
    let made = fs::metadata(place.inside.join("private/x")).unwrap();
    assert_eq!((made.uid(), made.gid()), (ADA, ADA));

    let denied = |result: Result<()>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    };
    let (hidden, x) = (path("/private/x"), path("/x"));
    denied(bob.stat(&hidden, true).map(drop));
    denied(bob.stat(&hidden, false).map(drop));
    denied(bob.real_path(&hidden).map(drop));
    denied(bob.list(&path("/private"), &mut |_, _| Ok(())));
    denied(bob.open_read(&hidden).map(drop));
    denied(bob.open_read(&x).map(drop));
    denied(bob.open_write(&x, EXISTING).map(drop));
    denied(bob.open_write(&x, CREATE).map(drop));
    denied(bob.remove_file(&hidden));
    denied(bob.remove_tree(&path("/private")));
    denied(bob.make_directory(&path("/private/d"), 0o777));
    denied(bob.symlink(BStr::new("x"), &path("/private/l")));
    denied(bob.truncate(&x, 0));
    denied(bob.free_space(&hidden).map(drop));
    denied(bob.sync_directory(&path("/private")));
    for result in [
        // The directory is sticky.
        bob.remove_file(&x),
        bob.rename(&x, &path("/y")),
        bob.remove_directory(&path("/private")),
        bob.set_mode(&x, 0o666),
        bob.set_modified(&x, 0, 0),
        bob.set_group(&x, BOB),
    ] {
        denied(result);
    }
    // A user can change the group only to one of their own.
    ada.set_group(&x, SHARED).unwrap();
    denied(ada.set_group(&x, BOB));
    ada.set_mode(&x, 0o640).unwrap();
    assert!(bob.open_read(&x).is_err());
    let shared = store_of(&place.inside, BOB, &[SHARED]);
    shared.open_read(&x).unwrap();
    assert!(shared.open_write(&x, EXISTING).is_err());

    // Operations on an open file for which the kernel checks the user.
    let handle = ada.open_write(&x, EXISTING).unwrap();
    handle.set_mode(0o600).unwrap();
    handle.set_modified(1, 0).unwrap();
    handle.disk().unwrap().prepare(8 << 20, crate::DirectIo::Always, false);
    chown(place.inside.join("x"), Some(BOB), None).unwrap();
    denied(handle.set_mode(0o666));
    denied(handle.set_modified(2, 0));
    assert_eq!(now(), before);
}

#[test]
fn setgid_directories_keep_their_group() {
    if !is_root() {
        return;
    }
    let place = place(PosixOptions::default());
    fs::set_permissions(place._keep.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(&place.inside, None, Some(SHARED)).unwrap();
    fs::set_permissions(&place.inside, fs::Permissions::from_mode(0o2777)).unwrap();
    let ada = store_of(&place.inside, ADA, &[]);
    ada.open_write(&path("/f"), CREATE).unwrap();
    ada.make_directory(&path("/d"), 0o755).unwrap();
    for name in ["f", "d"] {
        let made = fs::metadata(place.inside.join(name)).unwrap();
        assert_eq!((made.uid(), made.gid()), (ADA, SHARED), "{name}");
    }
    assert_ne!(fs::metadata(place.inside.join("d")).unwrap().mode() & 0o2000, 0);
}

#[test]
fn begin_does_not_resume_an_upload_of_another_user() {
    if !is_root() {
        return;
    }
    let place = place(PosixOptions::default());
    fs::set_permissions(place._keep.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&place.inside, fs::Permissions::from_mode(0o777)).unwrap();
    let (ada, bob) = (store_of(&place.inside, ADA, &[]), store_of(&place.inside, BOB, &[]));
    let target = path("/data");
    let part = place.inside.join(part_name(&target).to_string().trim_start_matches('/'));

    // Marked as sequential, so that its length would count.
    bob.open_write(&part_name(&target), CREATE).unwrap().write_at(b"from bob", 0).unwrap();
    fs::set_permissions(&part, fs::Permissions::from_mode(0o1666)).unwrap();
    assert!(PartFile::interrupted(&*ada, &target, &mut |_| Ok(())).unwrap().is_none());
    assert_eq!(PartFile::sequential_prefix(&*ada, &target).unwrap(), None);
    assert_eq!(PartFile::sequential_prefix(&*bob, &target).unwrap(), Some(8));
    let key = JournalKey { source: String::new(), size: None, modified: None };
    let options = UploadOptions { resume: true, ..UploadOptions::default() };
    let begun = PartFile::begin(&ada, &target, key, options).unwrap();
    assert!(
        begun.started_over().is_some_and(|why| why.contains("another user")),
        "{:?}",
        begun.started_over()
    );
    assert_eq!(fs::metadata(&part).unwrap().uid(), ADA);
    drop(begun);

    // A link to another file of the same user.
    ada.open_write(&path("/precious"), CREATE).unwrap().write_at(b"precious", 0).unwrap();
    let _ = fs::remove_file(&part);
    fs::hard_link(place.inside.join("precious"), &part).unwrap();
    fs::set_permissions(&part, fs::Permissions::from_mode(0o1666)).unwrap();
    assert_eq!(PartFile::sequential_prefix(&*ada, &target).unwrap(), None);
}
