//! Checks with several threads that use a store at the same time.

use std::sync::Arc;

use super::{CREATE, EXCLUSIVE, get, names, path, pattern, same};
use crate::{ErrorKind, Store, WriteOptions};

const THREADS: usize = 4;

pub(super) fn check(make: &dyn Fn() -> Arc<dyn Store>) {
    streams_write_one_file(&*make());
    one_makes_it(&*make());
    names_change_while_others_look(&*make());
}

fn streams_write_one_file(store: &dyn Store) {
    if !store.capabilities().random_write {
        return;
    }
    let (block, blocks) = (10_007, 64);
    let data = pattern(block * blocks);
    let file = store.open_write(&path("/f"), CREATE).unwrap();
    std::thread::scope(|scope| {
        for stream in 0..THREADS {
            let (file, data) = (&file, &data);
            scope.spawn(move || {
                for at in (stream..blocks).step_by(THREADS).rev().map(|i| i * block) {
                    file.write_at(&data[at..at + block], at as u64).unwrap();
                }
            });
        }
    });
    same(get(store, "/f") == data, true, "a file written by several threads");
    let file = store.open_read(&path("/f")).unwrap();
    std::thread::scope(|scope| {
        for stream in 0..THREADS {
            let (file, data) = (&file, &data);
            scope.spawn(move || {
                let mut buffer = vec![0; block];
                for at in (stream..blocks).step_by(THREADS).map(|i| i * block) {
                    let got = file.read_at(&mut buffer, at as u64).unwrap();
                    same(&buffer[..got], &data[at..at + got], "what several threads read");
                }
            });
        }
    });
}

fn one_makes_it(store: &dyn Store) {
    for round in 0..20 {
        let name = path(format!("/f{round}"));
        let made = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| match store.open_write(&name, EXCLUSIVE) {
                        Ok(_) => 1,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
                            0
                        }
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        same(made, 1, "how many made the file");
    }
}

fn names_change_while_others_look(store: &dyn Store) {
    if !store.capabilities().rename {
        return;
    }
    let keep = WriteOptions { truncate: false, ..CREATE };
    store.open_write(&path("/stays"), keep).unwrap();
    std::thread::scope(|scope| {
        for id in 0..2 {
            scope.spawn(move || {
                let (a, b) = (path(format!("/{id}a")), path(format!("/{id}b")));
                store.open_write(&a, keep).unwrap();
                for _ in 0..100 {
                    store.rename(&a, &b).unwrap();
                    store.rename(&b, &a).unwrap();
                }
            });
        }
        for _ in 0..100 {
            assert!(names(store, "/").contains(&"stays".to_owned()), "an entry that stays is always listed");
        }
    });
    same(names(store, "/").len(), 3, "how many files there are");
}
