#![allow(clippy::unwrap_used, missing_docs)]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use ropewalk_security::{PasswordError, PasswordFile, Verifier, valid_user_name};

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn password_file_adds_and_removes_users() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("users");
    let mut file = PasswordFile::load_or_new(&path).unwrap();
    assert_eq!(file.list().count(), 0);
    file.set("ann", b"first").unwrap();
    file.set("bob", b"other").unwrap();
    file.set("ann", b"second").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let read = PasswordFile::load(&path).unwrap();
    assert_eq!(read.list().collect::<Vec<_>>(), ["ann", "bob"]);
    let verifier = Verifier::new(2);
    assert!(read.verify(b"ann", b"second", &verifier));
    assert!(!read.verify(b"ann", b"first", &verifier));
    assert!(!read.verify(b"bob", b"second", &verifier));
    assert!(!read.verify(b"eve", b"second", &verifier));

    assert!(file.remove("ann").unwrap());
    assert!(!file.remove("ann").unwrap());
    assert_eq!(PasswordFile::load(&path).unwrap().list().collect::<Vec<_>>(), ["bob"]);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside the file");
}

#[test]
fn edit_after_change_by_another_process_keeps_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("users");
    let mut one = PasswordFile::load_or_new(&path).unwrap();
    one.set("ann", b"x").unwrap();
    let mut two = PasswordFile::load(&path).unwrap();
    two.set("bob", b"y").unwrap();
    assert!(one.changed().unwrap());
    one.refresh().unwrap();
    assert!(!one.changed().unwrap());
    assert_eq!(one.list().count(), 2);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("# staff\n{text}")).unwrap();
    one.remove("ann").unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("# staff\nbob:$argon2id$"));
}

#[test]
fn load_of_file_open_to_others_fails() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("users");
    PasswordFile::load_or_new(&path).unwrap().set("ann", b"x").unwrap();
    for mode in [0o644, 0o620, 0o602] {
        chmod(&path, mode);
        assert!(matches!(PasswordFile::load(&path), Err(PasswordError::Permissions { .. })), "{mode:o}");
    }
    chmod(&path, 0o640);
    PasswordFile::load(&path).unwrap().set("bob", b"x").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
}

/// Runs as root only, because only root can create files of other users.
#[test]
fn load_of_file_with_unexpected_group_fails() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("users");
    PasswordFile::load_or_new(&path).unwrap().set("ann", b"x").unwrap();
    let give = |uid, gid, mode| {
        chown(&path, Some(uid), Some(gid)).unwrap();
        chmod(&path, mode);
    };
    // No account has these numbers.
    let (stranger, strangers) = (31_234, 31_235);
    give(stranger, strangers, 0o640);
    let error = PasswordFile::load(&path).unwrap_err();
    assert!(matches!(error, PasswordError::Group { group: 31_235, mode: 0o640, .. }), "{error}");
    assert!(error.to_string().contains("chmod 600"), "{error}");
    give(stranger, strangers, 0o600);
    PasswordFile::load(&path).unwrap();
    // A file of root is accepted with any group, and so is a file with the group of this process.
    give(0, strangers, 0o640);
    PasswordFile::load(&path).unwrap();
    give(stranger, 0, 0o640);
    PasswordFile::load(&path).unwrap();
    give(0, strangers, 0o644);
    assert!(matches!(PasswordFile::load(&path), Err(PasswordError::Permissions { .. })));
}

#[test]
fn load_error_names_the_line_without_its_text() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("users");
    for line in
        ["ann", "ann:secret", "a/b:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2g", "ann:$1$abc$def"]
    {
        std::fs::write(&path, format!("# comment\n{line}\n")).unwrap();
        chmod(&path, 0o600);
        let error = PasswordFile::load(&path).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn verify_with_empty_file_fails() {
    let directory = tempfile::tempdir().unwrap();
    let file = PasswordFile::load_or_new(directory.path().join("users")).unwrap();
    assert!(!file.verify(b"ann", b"", &Verifier::new(1)));
}

#[test]
fn valid_user_name_accepts_letters_and_few_others() {
    for name in ["ann", "a.b", "x-1", "ann@example.org", "Ärni"] {
        assert!(valid_user_name(name), "{name}");
    }
    for name in ["", ".", "..", ".x", "-x", "a/b", "a:b", "a b", "a\n"] {
        assert!(!valid_user_name(name), "{name}");
    }
}
