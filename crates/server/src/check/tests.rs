#![allow(clippy::unwrap_used)]
use super::*;
use crate::config::AnonymousAccess;

fn errors(config: &Config) -> Vec<String> {
    let problems = config.check().into_iter().filter(|p| p.severity == Severity::Error);
    problems.map(|p| p.setting).collect()
}

#[test]
fn unknown_disabled_command_is_reported() {
    let told = |name: &str| {
        let config = Config { disabled_commands: vec![name.to_owned()], ..Config::default() };
        let problems = config.check().into_iter().filter(|p| p.setting == "disabled_commands");
        problems.map(|p| p.severity).collect::<Vec<_>>()
    };
    for known in ["dele", "SITE RDEL", "ABOR", "AUTH", "MFMT", "CKSM", "site fault"] {
        assert!(told(known).is_empty(), "{known}");
    }
    for unknown in ["FOO", "SITE RDLE", "RDEL"] {
        assert_eq!(told(unknown), [Severity::Warning], "{unknown}");
    }
    assert_eq!(told("QUIT"), [Severity::Error]);
}

#[test]
fn config_without_log_in_is_refused() {
    let config = Config { root: Some("/".into()), ..Config::default() };
    assert_eq!(errors(&config), ["password_file"]);
    let config = Config { anonymous: Some(AnonymousAccess::default()), ..config };
    assert!(errors(&config).is_empty());
}

#[test]
fn settings_that_permit_everything_are_reported() {
    let text = "root = \"/\"\n[anonymous]\nrules = \" , \"\nsessions = 0\n";
    let problems = Config::parse(text).unwrap().check();
    for setting in ["anonymous.rules", "anonymous.sessions"] {
        assert!(problems.iter().any(|problem| problem.setting == setting), "{problems:?}");
    }
}

#[test]
fn log_directories_and_host_paths_in_rules_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let text = format!(
        "root = \"{place}\"\npassword_file = \"{place}/none\"\n[defaults]\nrules = \"RW/{{home}}\"\n\
         [log]\naudit = \"{place}\"\ntransfer_log = \"{place}/log\"\n"
    );
    let problems = Config::parse(&text).unwrap().check();
    let told = |setting: &str| problems.iter().filter(|problem| problem.setting == setting).count();
    assert_eq!((told("defaults.rules"), told("log.audit"), told("log.transfer_log")), (1, 1, 0));
    assert!(!problems.iter().any(|problem| problem.text.contains("no user")), "{problems:?}");
    for (address, warnings) in [("127.0.0.1", 0), ("192.0.2.1", 1)] {
        let config = Config::parse(&format!("[data]\ninterface = \"{address}\"\n")).unwrap();
        let about = config.check().into_iter().filter(|problem| problem.setting == "data.interface").count();
        assert_eq!(about, warnings, "{address}");
    }
}

/// Whichever way users log in, there has to be a directory for them.
#[test]
fn accounts_of_every_mechanism_are_checked() {
    let tokens = "[[tokens.issuers]]\nurl = \"https://issuer.example/\"\nuser = \"ada\"\n";
    let tls = "[tls.users]\n\"/O=Example/CN=Ada\" = \"ada\"\n";
    for way in [tokens, tls] {
        let text = format!("[identity]\nmapped = false\n[users.ada]\nroot = \"/none\"\nrules = \"x\"\n{way}");
        let found = errors(&Config::parse(&text).unwrap());
        for setting in ["defaults.root", "users.ada.root", "users.ada.rules"] {
            assert!(found.iter().any(|one| one == setting), "{way}: {found:?}");
        }
    }
    let config = Config::parse(&format!("[users.ada]\n[users.bob]\n{tls}")).unwrap();
    let doubts: Vec<_> = config.check().into_iter().filter(|p| p.text.contains("cannot log in")).collect();
    assert_eq!(doubts.iter().map(|p| p.setting.as_str()).collect::<Vec<_>>(), ["users.bob"]);
}

#[test]
fn required_protection_that_is_unavailable_is_refused() {
    let off = "[anonymous]\n[tls]\nenabled = false\nrequired = \"control\"\n";
    let mut config = Config { root: Some("/".into()), ..Config::parse(off).unwrap() };
    assert_eq!(errors(&config), ["tls.required"]);
    config.kerberos = Some(super::super::Kerberos::default());
    assert!(!errors(&config).iter().any(|setting| setting == "tls.required"));
}

#[test]
fn each_wrong_setting_is_reported() {
    let config = Config::parse(
        r#"
        listen = ["127.0.0.1:2811", "[::]:0", "[::]:0", "127.0.0.1:2811"]
        rules = "data"
        disabled_commands = ["QUIT"]
        [anonymous]
        root = "/nonexistent"
        home = "pub"
        [data]
        ports = [6000, 5000]
        congestion_choices = ["bbr", "no such thing"]
        drivers = ["tcp", "none-such"]
        socket_memory = "4K"
        socket_policy = "fair"
        connect_timeout = 0
        [files]
        create_mode = 0o100000
        drivers = ["popen", "multicast"]
        programs = { tar = "bin/tar" }
        [limits]
        active = 0
        [log]
        transfer_log = "/nonexistent/log"
        [timeouts]
        login = 9223372036854775807
        drain = 315360001
        "#,
    )
    .unwrap();
    let mut found = errors(&config);
    found.sort();
    let mut expected = [
        "listen",
        "rules",
        "disabled_commands",
        "anonymous.root",
        "anonymous.home",
        "data.ports",
        "data.congestion_choices",
        "data.drivers",
        "data.socket_memory",
        "data.socket_policy",
        "data.connect_timeout",
        "timeouts.login",
        "timeouts.drain",
        "files.create_mode",
        "files.drivers",
        "files.programs",
        "limits.active",
        "log.transfer_log",
    ];
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn shares_of_processor_time_that_cannot_be_are_refused() {
    for (percent, wrong) in [("0", false), ("62.5", false), ("100.5", true), ("-1", true), ("nan", true)] {
        let config = Config::parse(&format!("[limits]\ncpu_pressure = {percent}\n")).unwrap();
        assert_eq!(errors(&config).contains(&"limits.cpu_pressure".to_owned()), wrong, "{percent}");
    }
}
