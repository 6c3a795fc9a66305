//! Checks of unusual and long names.

use std::sync::Arc;

use bstr::BString;

use super::{CREATE, list, path, same};
use crate::{ErrorKind, Store};

pub(super) fn check(make: &dyn Fn() -> Arc<dyn Store>) {
    any_bytes(&*make());
    lengths(&*make());
}

fn any_bytes(store: &dyn Store) {
    let any = store.capabilities().any_name;
    let left_out = |byte: u8| byte == b'/' || !any && matches!(byte, b'\r' | b'\n');
    let every: Vec<u8> = (1..=255).filter(|byte| !left_out(*byte)).collect();
    let mut expected: Vec<BString> = every.chunks(100).map(BString::from).collect();
    for name in [&b"\xff\xfe"[..], b"-rf", b" ", b"a\nb\r", b"...", b"~", b"*", b"\xe2\x98\x83", b"%2e%2e"] {
        if !name.iter().any(|byte| left_out(*byte)) {
            expected.push(name.into());
        }
    }
    for name in &expected {
        let file = path([b"/", &name[..]].concat());
        store.open_write(&file, CREATE).unwrap().write_at(name, 0).unwrap();
        same(
            store.stat(&file, false).unwrap().size,
            name.len() as u64,
            "the size of a file with such a name",
        );
        same(store.real_path(&file).unwrap(), file, "the real path of a file with such a name");
    }
    expected.sort();
    same(list(store, "/").into_keys().collect::<Vec<_>>(), expected, "names of any bytes");
}

fn lengths(store: &dyn Store) {
    let longest = format!("/{}", "n".repeat(255));
    store.open_write(&path(&longest), CREATE).unwrap();
    same(store.stat(&path(&longest), true).unwrap().size, 0, "a file with the longest name");
    let too_long = format!("/{}", "n".repeat(256));
    super::fails(store.open_write(&path(&too_long), CREATE), ErrorKind::NameTooLong, &too_long);
    super::fails(store.stat(&path(&too_long), true), ErrorKind::NameTooLong, &too_long);
    let mut deep = String::new();
    for i in 0..16 {
        deep = format!("{deep}/{i:0100}");
        store.make_directory(&path(&deep), 0o755).unwrap();
    }
    deep.push_str("/file");
    store.open_write(&path(&deep), CREATE).unwrap().write_at(b"deep", 0).unwrap();
    same(store.stat(&path(&deep), true).unwrap().size, 4, "a file far down");
}
