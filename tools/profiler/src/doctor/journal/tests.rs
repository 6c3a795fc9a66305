#![allow(clippy::unwrap_used)]

use tempfile::TempDir;

use super::*;

/// A host in a directory, and the directory of its journal.
struct Host {
    root: TempDir,
    state: TempDir,
}

impl Host {
    fn new() -> Self {
        let host = Self { root: TempDir::new().unwrap(), state: TempDir::new().unwrap() };
        for directory in ["proc/sys/net/ipv4", "proc/sys/net/core", "proc/sys/kernel/random", "proc/self/ns"]
        {
            fs::create_dir_all(host.root.path().join(directory)).unwrap();
        }
        host.write("proc/sys/kernel/random/boot_id", "first\n");
        host.write("proc/self/ns/net", "");
        host.write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        host.write("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n");
        host.write("proc/sys/net/core/rmem_max", "212992\n");
        host
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.root.path().join(path), text).unwrap();
    }

    fn journal(&self) -> Journal {
        Journal::open_at(self.state.path(), Root::at(self.root.path())).unwrap()
    }

    fn get(&self, name: &str) -> String {
        Sysctls::at(Root::at(self.root.path())).get(name).unwrap()
    }

    fn set(&self, name: &str, value: &str) {
        Sysctls::at(Root::at(self.root.path())).set(name, value).unwrap();
    }
}

fn change(name: &str, before: &str, after: &str) -> Change {
    Change { name: name.into(), before: before.into(), after: after.into(), optional: false }
}

fn changes() -> Changes {
    Changes(vec![
        change("net.ipv4.tcp_rmem", "4096 131072 6291456", "4096 131072 134217728"),
        change("net.core.rmem_max", "212992", "268435456"),
    ])
}

fn is_as_before(host: &Host) -> bool {
    changes().0.iter().all(|change| host.get(&change.name) == change.before)
}

#[test]
fn restore_after_apply_brings_back_old_values() {
    let host = Host::new();
    let applied = host.journal().apply(&changes()).unwrap();
    assert_eq!((applied.changes, applied.refused), (changes().0, Vec::new()));
    assert_eq!(host.get("net.core.rmem_max"), "268435456");
    assert_eq!(host.journal().pending().unwrap().len(), 2);
    let restored = host.journal().restore(false).unwrap();
    assert_eq!((restored.restored.len(), restored.failed.len()), (2, 0));
    assert!(is_as_before(&host));
    assert!(fs::read_dir(host.state.path()).unwrap().next().is_none(), "something was left behind");
    assert_eq!(host.journal().restore(false).unwrap(), Restored::default());
}

#[test]
fn apply_when_repeated_keeps_the_first_values() {
    let host = Host::new();
    host.journal().apply(&changes()).unwrap();
    let more = Changes(vec![change("net.core.rmem_max", "268435456", "536870912")]);
    host.journal().apply(&more).unwrap();
    host.journal().restore(false).unwrap();
    assert!(is_as_before(&host));
}

/// Simulates a crash after each step: the test leaves the file and the settings as they are at that
/// point.
#[test]
fn restore_after_a_crash_in_apply_brings_back_old_values() {
    for written in 0..=2 {
        let host = Host::new();
        let journal = host.journal();
        journal.save(&journal.merged(&changes()).unwrap()).unwrap();
        for change in &changes().0[..written] {
            host.set(&change.name, &change.after);
        }
        // The kernel may have limited the last value.
        if written == 2 {
            host.set("net.core.rmem_max", "200000000");
        }
        drop(journal);
        assert!(matches!(host.journal().apply(&changes()), Err(JournalError::Interrupted { .. })));
        let restored = host.journal().restore(false).unwrap();
        assert_eq!((restored.restored.len(), restored.unchanged.len()), (written, 2 - written));
        assert!(is_as_before(&host), "{written}");
    }
}

#[test]
fn restore_when_partly_done_restores_the_rest() {
    let host = Host::new();
    host.journal().apply(&changes()).unwrap();
    host.set("net.core.rmem_max", "212992");
    let restored = host.journal().restore(false).unwrap();
    assert_eq!((restored.restored.len(), restored.unchanged.len()), (1, 1));
    assert!(is_as_before(&host));
}

#[test]
fn apply_when_a_setting_cannot_be_written_undoes_the_others() {
    let host = Host::new();
    let mut all = changes();
    all.0.push(change("net.ipv4.tcp_wmem", "4096 16384 4194304", "1 2 3"));
    // A directory can be neither read nor written as a setting, so `apply` fails before it changes
    // anything.
    let path = host.root.path().join("proc/sys/net/ipv4/tcp_wmem");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = host.journal().apply(&all).unwrap_err();
    assert!(matches!(error, JournalError::Set { name, .. } if name == "net.ipv4.tcp_wmem"));
    assert!(is_as_before(&host));
    // Now the failure happens halfway.
    let journal = host.journal();
    journal.save(&journal.merged(&changes()).unwrap()).unwrap();
    host.set("net.ipv4.tcp_rmem", &changes().0[0].after);
    let done = changes().0[..1].to_vec();
    let content = journal.load().unwrap().unwrap();
    journal.take_back(&done, content).unwrap();
    assert!(is_as_before(&host));
    assert!(journal.load().unwrap().is_none());
}

/// The changes of `changes` and an optional setting that can be read but not written.
fn with_a_refused_one(host: &Host) -> Changes {
    let path = host.root.path().join("proc/sys/net/core/default_qdisc");
    std::os::unix::fs::symlink("/proc/version", path).unwrap();
    let before = host.get("net.core.default_qdisc");
    let refused = Change { optional: true, ..change("net.core.default_qdisc", &before, "fq") };
    let mut all = changes();
    all.0.insert(0, refused);
    all
}

#[test]
fn apply_when_an_optional_setting_is_refused_sets_the_others() {
    let host = Host::new();
    let all = with_a_refused_one(&host);
    let applied = host.journal().apply(&all).unwrap();
    assert_eq!(applied.changes, changes().0);
    let [refused] = applied.refused.as_slice() else { panic!("{applied:?}") };
    assert_eq!((refused.name.as_str(), refused.value.as_str()), ("net.core.default_qdisc", "fq"));
    assert!(!refused.why.is_empty());
    // The refused setting need not be restored.
    assert_eq!(host.journal().pending().unwrap(), changes().0);
    assert_eq!(host.journal().restore(false).unwrap().restored.len(), 2);
    assert!(is_as_before(&host));
    // If the refused setting is the only one, no file stays behind.
    let alone = Changes(all.0[..1].to_vec());
    assert_eq!(host.journal().apply(&alone).unwrap().changes, []);
    assert!(host.journal().load().unwrap().is_none());
    // A refused setting that is not optional is an error.
    let mut needed = all;
    needed.0[0].optional = false;
    assert!(matches!(host.journal().apply(&needed), Err(JournalError::Set { .. })));
    assert!(is_as_before(&host));
}

#[test]
fn trial_when_an_optional_setting_is_refused_continues() {
    let host = Host::new();
    let all = with_a_refused_one(&host);
    let journal = host.journal();
    let mut trial = journal.try_out(&all).unwrap();
    for _ in 0..2 {
        trial.set_new().unwrap();
        assert_eq!((trial.refused().len(), trial.is_empty()), (1, false));
        assert_eq!(host.get("net.core.rmem_max"), "268435456");
        trial.set_old().unwrap();
        assert!(is_as_before(&host));
    }
    let kept = trial.keep().unwrap();
    assert_eq!((kept.changes, kept.refused.len()), (changes().0, 1));
    assert_eq!(journal.pending().unwrap(), changes().0);
    journal.restore(false).unwrap();
    let mut trial = journal.try_out(&Changes(all.0[..1].to_vec())).unwrap();
    trial.set_new().unwrap();
    assert!(trial.is_empty());
    trial.abandon().unwrap();
    assert!(journal.load().unwrap().is_none());
}

#[test]
fn restore_when_another_program_changed_a_setting_leaves_it() {
    let host = Host::new();
    host.journal().apply(&changes()).unwrap();
    host.set("net.core.rmem_max", "777");
    let restored = host.journal().restore(false).unwrap();
    assert_eq!(restored.foreign, [("net.core.rmem_max".to_owned(), "777".to_owned())]);
    assert_eq!((restored.restored.len(), host.get("net.core.rmem_max").as_str()), (1, "777"));
    // The old value is still in the file and can be restored by force.
    host.journal().restore(true).unwrap();
    assert!(is_as_before(&host));
}

#[test]
fn apply_when_a_setting_has_moved_changes_nothing() {
    let host = Host::new();
    host.set("net.core.rmem_max", "777");
    assert!(
        matches!(host.journal().apply(&changes()), Err(JournalError::Moved { found, .. }) if found == "777")
    );
    assert!(host.journal().load().unwrap().is_none());
    assert_eq!(host.get("net.ipv4.tcp_rmem"), "4096 131072 6291456");
}

#[test]
fn restore_when_boot_or_namespace_differs_sets_nothing() {
    let host = Host::new();
    host.journal().apply(&changes()).unwrap();
    fs::rename(host.root.path().join("proc/self/ns/net"), host.root.path().join("old")).unwrap();
    host.write("proc/self/ns/net", "");
    assert!(matches!(host.journal().restore(false), Err(JournalError::Elsewhere { .. })));
    assert!(matches!(host.journal().apply(&changes()), Err(JournalError::Elsewhere { .. })));
    host.write("proc/sys/kernel/random/boot_id", "second\n");
    let restored = host.journal().restore(false).unwrap();
    assert!(restored.rebooted && restored.restored.is_empty());
    assert_eq!(host.get("net.core.rmem_max"), "268435456");
    assert!(host.journal().load().unwrap().is_none());
}

#[test]
fn journal_when_opened_twice_is_busy() {
    let host = Host::new();
    let _first = host.journal();
    let second = Journal::open_at(host.state.path(), Root::at(host.root.path()));
    assert!(matches!(second, Err(JournalError::Busy { .. })));
}

#[test]
fn load_when_file_is_hostile_fails() {
    use std::os::unix::fs::PermissionsExt;
    let host = Host::new();
    let file = host.state.path().join(NAME);
    let content = |name: &str| {
        format!(
            r#"{{"version":1,"boot":"first","namespace":{},"state":"applied","changes":[{{"name":"{name}","before":"x","after":"y"}}]}}"#,
            host.journal().namespace
        )
    };
    for text in ["", "{}", "[1]", "{\"version\":7}", &content("a").replace("applied", "dreamt")] {
        fs::write(&file, text).unwrap();
        assert!(matches!(host.journal().restore(true), Err(JournalError::Nonsense { .. })), "{text}");
    }
    // A name that leads elsewhere is written nowhere.
    host.write("proc/sys/kernel/core_pattern", "core\n");
    for name in ["kernel.core_pattern", "net.../kernel/core_pattern"] {
        fs::write(&file, content(name)).unwrap();
        let restored = host.journal().restore(true).unwrap();
        assert_eq!(restored.failed.len(), 1, "{name}");
    }
    assert_eq!(fs::read_to_string(host.root.path().join("proc/sys/kernel/core_pattern")).unwrap(), "core\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let error = host.journal().restore(true).unwrap_err();
    assert!(error.to_string().contains("others may write"), "{error}");
}

#[test]
fn trial_when_abandoned_or_dropped_restores_old_values() {
    let host = Host::new();
    let journal = host.journal();
    let mut trial = journal.try_out(&changes()).unwrap();
    assert!(is_as_before(&host), "nothing is set yet");
    for _ in 0..2 {
        trial.set_new().unwrap();
        assert_eq!(host.get("net.core.rmem_max"), "268435456");
        trial.set_new().unwrap();
        trial.set_old().unwrap();
        assert!(is_as_before(&host));
    }
    trial.set_new().unwrap();
    assert_eq!(trial.abandon().unwrap(), []);
    assert!(is_as_before(&host));
    assert!(fs::read_dir(host.state.path()).unwrap().next().is_none(), "something was left behind");
    // A panic or an error drops the trial.
    let mut trial = journal.try_out(&changes()).unwrap();
    trial.set_new().unwrap();
    drop(trial);
    assert!(is_as_before(&host) && journal.load().unwrap().is_none());
}

#[test]
fn trial_when_kept_is_as_if_applied() {
    let host = Host::new();
    let mut trial_journal = Some(host.journal());
    let journal = trial_journal.as_ref().unwrap();
    let mut trial = journal.try_out(&changes()).unwrap();
    trial.set_new().unwrap();
    trial.set_old().unwrap();
    assert_eq!(trial.keep().unwrap().changes, changes().0);
    assert_eq!(host.get("net.core.rmem_max"), "268435456");
    assert_eq!(journal.pending().unwrap(), changes().0);
    trial_journal.take();
    assert_eq!(host.journal().restore(false).unwrap().restored.len(), 2);
    assert!(is_as_before(&host));
}

/// Simulates a crash in each state of a trial: the file restores everything.
#[test]
fn restore_after_a_crash_in_a_trial_brings_back_old_values() {
    for state in 0..4 {
        let host = Host::new();
        let journal = host.journal();
        let mut trial = journal.try_out(&changes()).unwrap();
        match state {
            0 => {}
            1 => trial.set_new().unwrap(),
            2 => {
                trial.set_new().unwrap();
                trial.set_old().unwrap();
            }
            // A crash halfway, after the kernel has limited a value.
            _ => host.set("net.ipv4.tcp_rmem", "4096 131072 100000000"),
        }
        // A process that died cannot undo anything, so the destructor must not run.
        std::mem::forget(trial);
        drop(journal);
        assert!(matches!(host.journal().is_idle(), Err(JournalError::Interrupted { .. })));
        let restored = host.journal().restore(false).unwrap();
        assert!(restored.failed.is_empty() && restored.foreign.is_empty(), "{state}: {restored:?}");
        assert!(is_as_before(&host), "{state}");
        assert!(host.journal().is_idle().is_ok());
    }
}

#[test]
fn trial_when_abandoned_keeps_earlier_changes() {
    let host = Host::new();
    host.journal().apply(&changes()).unwrap();
    let more = Changes(vec![
        change("net.core.rmem_max", "268435456", "536870912"),
        change("net.ipv4.tcp_wmem", "4096 16384 4194304", "4096 16384 134217728"),
    ]);
    let journal = host.journal();
    let mut trial = journal.try_out(&more).unwrap();
    trial.set_new().unwrap();
    trial.abandon().unwrap();
    assert_eq!(host.get("net.core.rmem_max"), "268435456");
    assert_eq!(journal.pending().unwrap(), changes().0);
    drop(journal);
    host.journal().restore(false).unwrap();
    assert!(is_as_before(&host));
}

#[test]
fn trial_when_another_program_changes_a_setting_leaves_it() {
    let host = Host::new();
    let journal = host.journal();
    let mut trial = journal.try_out(&changes()).unwrap();
    trial.set_new().unwrap();
    host.set("net.core.rmem_max", "777");
    let error = trial.set_old().unwrap_err();
    assert!(matches!(&error, JournalError::Meanwhile { found, .. } if found == "777"), "{error}");
    assert_eq!(trial.abandon().unwrap(), [("net.core.rmem_max".to_owned(), "777".to_owned())]);
    assert_eq!(host.get("net.core.rmem_max"), "777");
    assert_eq!(host.get("net.ipv4.tcp_rmem"), "4096 131072 6291456");
    // The changed setting is reported again, and its old value can be restored by force.
    drop(journal);
    assert_eq!(host.journal().restore(false).unwrap().foreign.len(), 1);
    host.journal().restore(true).unwrap();
    assert!(is_as_before(&host));
}

#[test]
fn trial_when_a_setting_cannot_be_written_changes_nothing() {
    let host = Host::new();
    let path = host.root.path().join("proc/sys/net/core/rmem_max");
    let journal = host.journal();
    let mut trial = journal.try_out(&changes()).unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(trial.set_new().is_err());
    assert!(trial.abandon().is_err());
    assert_eq!(host.get("net.ipv4.tcp_rmem"), "4096 131072 6291456");
    // The file stays for the setting that could not be read.
    assert!(matches!(journal.is_idle(), Err(JournalError::Interrupted { .. })));
}
