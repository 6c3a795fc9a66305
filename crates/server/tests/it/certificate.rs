//! Servers whose certificate for TLS cannot be stored.

use std::path::Path;

use ropewalk_server::{Config, Error, Server, Severity, Tls};

use crate::fixture::{config, passwords};

/// No process can create a directory beneath a file.
fn without_state(directory: &Path, optional: bool) -> Config {
    std::fs::write(directory.join("file"), "").unwrap();
    let state_directory = Some(directory.join("file/state"));
    Config { tls: Some(Tls { optional, state_directory, ..Tls::default() }), ..config(directory) }
}

fn worst(config: &Config) -> Option<(Severity, String)> {
    let problems = config.check().into_iter().filter(|problem| problem.setting == "tls");
    problems.map(|problem| (problem.severity, problem.text)).max()
}

#[test]
fn server_with_passwords_without_certificate_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    for optional in [true, false] {
        let mut config = without_state(directory.path(), optional);
        config.password_file = Some(passwords(directory.path(), &[("ann", "secret")]));
        let (severity, text) = worst(&config).unwrap();
        assert_eq!(severity, Severity::Error);
        assert!(text.contains("state"), "{text}");
        assert!(matches!(Server::bind(config.clone()), Err(Error::Config(_))));
        // A configuration that switches TLS off gets none.
        config.tls.as_mut().unwrap().enabled = false;
        assert_eq!(worst(&config), None);
        assert!(Server::bind(config).is_ok());
    }
}

#[test]
fn server_without_passwords_starts_without_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let config = without_state(directory.path(), true);
    assert_eq!(worst(&config).unwrap().0, Severity::Warning);
    assert!(Server::bind(config).is_ok());
    let config = without_state(directory.path(), false);
    assert_eq!(worst(&config).unwrap().0, Severity::Error);
    assert!(Server::bind(config).is_err());
}

#[test]
fn config_check_creates_no_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("new/state");
    let tls = Tls { state_directory: Some(state.clone()), ..Tls::default() };
    let config = Config { tls: Some(tls), ..config(directory.path()) };
    assert_eq!(worst(&config), None);
    assert!(!state.exists());
    drop(Server::bind(config.clone()).unwrap());
    assert_eq!(worst(&config), None);
    std::fs::write(state.join("server.pem"), "no certificate").unwrap();
    assert_eq!(worst(&config).unwrap().0, Severity::Error);
}
