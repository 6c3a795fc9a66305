//! Access control lists of files: permissions that they grant are honoured.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use ropewalk_storage::{Identity, PosixOptions, PosixStore};
use rustix::fs::XattrFlags;

use crate::fixture::Fixture;

const ADA: u32 = 4001;

/// `user::rwx,user:ADA:rwx,group::---,mask::rwx,other::---`, in the format of the kernel.
fn grant(path: &Path) -> bool {
    let nobody = u32::MAX;
    let entries = [(1_u16, 7_u16, nobody), (2, 7, ADA), (4, 0, nobody), (16, 7, nobody), (32, 0, nobody)];
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    rustix::fs::setxattr(path, "system.posix_acl_access", &value, XattrFlags::empty()).is_ok()
}

#[test]
fn access_control_list_permits_access() {
    if !Identity::can_act() {
        assert!(std::env::var_os("CI").is_none(), "this test has to run as root");
        eprintln!("SKIPPED: only root can act for others");
        return;
    }
    let keep = tempfile::tempdir().unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let root = keep.path().join("root");
    set(keep.path(), 0o755);
    fs::create_dir(&root).unwrap();
    set(&root, 0o777);
    for name in ["granted", "closed"] {
        fs::create_dir(root.join(format!("{name}.d"))).unwrap();
        set(&root.join(format!("{name}.d")), 0o700);
        fs::write(root.join(name), "old").unwrap();
        set(&root.join(name), 0o600);
    }
    if !["granted.d", "granted"].iter().all(|name| grant(&root.join(name))) {
        eprintln!("SKIPPED: the file system has no access control lists");
        return;
    }
    let identity = Some(Identity { uid: ADA, gid: ADA, groups: Vec::new() });
    let options = PosixOptions { identity, act: true, ..PosixOptions::default() };
    let store = Arc::new(PosixStore::new(&root, options).unwrap());
    let server = Fixture::with_store(store, |_, _| ());
    let mut client = server.login();
    client.command("CWD /closed.d", 550);
    client.command("CWD /granted.d", 250);
    assert_eq!(client.put("STOR new", b"new").code, 226);
    assert_eq!(client.put("STOR /granted", b"new").code, 226);
    assert_eq!(fs::read(root.join("granted")).unwrap(), b"new");
    let _data = client.data();
    client.send("STOR /closed");
    let reply = client.reply();
    assert!(reply.code >= 500 && reply.text.contains("Permission denied"), "{reply:?}");
    assert_eq!(fs::read(root.join("closed")).unwrap(), b"old");
}
