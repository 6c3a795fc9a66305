use std::fs;

use serde_json::Value;

use crate::user_fixture::{ADA, Town, give, is_possible, password};

#[test]
fn root_system_disabled_and_unknown_accounts_are_refused() {
    if !is_possible() {
        return;
    }
    let town = Town::new("[timeouts]\nlogin_failure = 0.001\n[log]\naudit = 'audit'\n");
    for (user, why) in [
        ("root", "root is not allowed"),
        ("toor", "root is not allowed"),
        ("system", "system account"),
        ("closed", "disabled"),
        ("stranger", "no local account stranger"),
    ] {
        let mut control = town.connect();
        control.expect(format!("USER {user}"), 331).unwrap();
        let reply = control.expect(format!("PASS {}", password(user)), 530).unwrap();
        assert!(reply.text.contains(why), "{user}: {reply:?}");
    }
    let mut control = town.connect();
    control.expect("USER x\u{1b}[2J\"eve", 331).unwrap();
    control.expect("PASS wrong-secret", 530).unwrap();
    let mut ada = town.log_in("ada");
    assert_eq!(ada.store("f", b"x").unwrap().code, 226);
    ada.expect("SITE CHROOT /home/ada", 250).unwrap();
    ada.expect("SITE RESTRICT R/", 250).unwrap();
    assert!(ada.command("DELE f").unwrap().code >= 500);

    let text = fs::read_to_string(town.scratch.join("audit")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |wanted: &[(&str, &str)]| {
        let fits = |line: &&Value| wanted.iter().all(|(key, value)| line[key] == *value);
        lines.iter().find(fits).unwrap_or_else(|| panic!("no {wanted:?} in {text}"))
    };
    let root = find(&[("event", "log-in"), ("decision", "refused"), ("wanted", "root")]);
    assert!(root["reason"].as_str().unwrap().contains("not allowed") && root["mechanism"] == "password");
    find(&[("decision", "refused"), ("wanted", "x\u{1b}[2J\"eve")]);
    let accepted = find(&[("event", "log-in"), ("decision", "accepted")]);
    assert_eq!((accepted["user"].as_str(), accepted["uid"].as_u64()), (Some("ada"), Some(ADA.into())));
    find(&[("decision", "accepted"), ("command", "SITE CHROOT"), ("path", "/home/ada")]);
    find(&[("decision", "accepted"), ("command", "SITE RESTRICT"), ("user", "ada")]);
    find(&[("decision", "refused"), ("command", "DELE"), ("path", "/f")]);
    for text in [text.as_str(), &town.log()] {
        assert!(!text.contains("secret"), "a password was written down: {text}");
        assert!(!text.contains('\u{1b}'));
    }
}

#[test]
fn permitted_accounts_log_in() {
    if !is_possible() {
        return;
    }
    let town = Town::new(
        "[identity]\nallow_root = true\nallow_system = true\nallow_disabled = true\nunprivileged_user = 'nobody'\n\
         [users.bob]\nrun_as = 'server'\n",
    );
    for (user, uid) in [("toor", 0), ("system", 200), ("closed", 31_003), ("stranger", 65_534), ("bob", 0)] {
        let mut control = town.log_in(user);
        assert_eq!(control.store(&format!("/shared/{user}"), b"x").unwrap().code, 226);
        let made = fs::metadata(town.real(&format!("/shared/{user}"))).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), uid, "{user}");
    }
    // A file that the system account may not read and root could.
    assert!(town.log_in("system").retrieve("/home/ada/x").unwrap().1.text.contains("ermission denied"));
}

#[test]
fn account_requiring_protection_is_refused_without_it() {
    if !is_possible() {
        return;
    }
    let town = Town::new("[timeouts]\nlogin_failure = 0.001\n[users.ada]\nprotection = 'control'\n");
    let mut replies = Vec::new();
    for password in [password("ada"), "wrong".into()] {
        let mut control = town.connect();
        control.expect("USER ada", 331).unwrap();
        let reply = control.expect(format!("PASS {password}"), 530).unwrap();
        assert!(reply.text.contains("AUTH TLS"), "{reply:?}");
        replies.push(reply.text);
    }
    // The reply does not reveal whether the password was right.
    assert_eq!(replies[0], replies[1]);
    town.log_in("bob");
}

/// By default root's server runs anonymous sessions as `nobody`.
#[test]
fn anonymous_session_is_never_root_by_default() {
    if !is_possible() {
        return;
    }
    for (settings, uid) in [("", 65_534), ("run_as = 'server'\n", 0), ("user = 'ada'\n", ADA)] {
        let town = Town::new(&format!("[anonymous]\nwrite = true\n{settings}"));
        let mut control = town.connect();
        control.expect("USER anonymous", 331).unwrap();
        control.expect("PASS x@", 230).unwrap();
        control.expect("TYPE I", 200).unwrap();
        assert_eq!(control.store("/shared/made", b"x").unwrap().code, 226);
        let made = fs::metadata(town.real("/shared/made")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), uid, "{settings}");
        // A file that only root may read.
        let secret = town.real("/secret");
        fs::write(&secret, "secret").unwrap();
        give(&secret, 0, 0, 0o600);
        let read = control.retrieve("/secret").unwrap().1.code == 226;
        assert_eq!(read, uid == 0, "{settings}");
        assert_eq!(control.command("MKD /by-root-only").unwrap().code < 400, uid == 0, "{settings}");
    }
}

#[test]
fn anonymous_session_uses_configured_account() {
    if !is_possible() {
        return;
    }
    let town = Town::new("[anonymous]\nwrite = true\nuser = 'nobody'\n");
    let mut control = town.connect();
    control.expect("USER anonymous", 331).unwrap();
    control.expect("PASS x@", 230).unwrap();
    control.expect("TYPE I", 200).unwrap();
    assert_eq!(control.store("/shared/by-nobody", b"x").unwrap().code, 226);
    let made = fs::metadata(town.real("/shared/by-nobody")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), 65_534);
    assert!(control.store("/home/ada/x", b"x").unwrap().code >= 500);
    assert!(control.command("MKD /by-root-only").unwrap().code >= 500);
}
