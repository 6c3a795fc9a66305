//! The checks of a configuration on this host.

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use ropewalk_buffers::{Rule, check_budget};
use ropewalk_layers::Registry;
use ropewalk_nodes::JoinToken;
use ropewalk_protocol::congestion::CongestionName;
use ropewalk_protocol::help;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_security::{PasswordFile, Rules, valid_user_name};

use crate::config::{Config, Problem, RequiredProtection, RunAs, Severity, User, expand};
use crate::host::reservations::Reservations;
use crate::host::scitags::SciTags;
use crate::host::space::Space;
use crate::operations::DISK_DRIVERS;
use crate::quic_port::QUIC;
use crate::security::gsi::Authority;
use crate::security::tls;
use crate::security::tokens::TokenAuthority;

/// Longer times could overflow the clock.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

#[derive(Default)]
struct Report(Vec<Problem>);

impl Report {
    fn error(&mut self, setting: impl Into<String>, text: impl Into<String>) {
        self.0.push(Problem { severity: Severity::Error, setting: setting.into(), text: text.into() });
    }

    fn warning(&mut self, setting: impl Into<String>, text: impl Into<String>) {
        self.0.push(Problem { severity: Severity::Warning, setting: setting.into(), text: text.into() });
    }
}

impl Config {
    /// Finds everything that is wrong or doubtful about the settings on this host: directories,
    /// files, rules. A server starts if no problem is an error.
    pub fn check(&self) -> Vec<Problem> {
        let mut report = Report::default();
        check_log_in(self, &mut report);
        check_accounts(self, &mut report);
        check_numbers(self, &mut report);
        check_places(self, &mut report);
        check_nodes(self, &mut report);
        if let Err((setting, text)) = SciTags::check(&self.scitags) {
            report.error(setting, text);
        }
        if let Err((setting, text)) = Reservations::check(self) {
            report.error(setting, text);
        }
        if let Err((setting, text)) = Space::check(self) {
            report.error(setting, text);
        }
        check_relay(self, &mut report);
        report.0.sort_by_key(|p| std::cmp::Reverse(p.severity));
        report.0
    }
}

fn check_nodes(config: &Config, report: &mut Report) {
    let Some(nodes) = &config.nodes else { return };
    match &nodes.join_token_file {
        None => report.error(
            "nodes.join_token_file",
            "nodes could not prove that they belong to this front end: name a file with a secret \
             (`openssl rand -hex 32 > FILE` makes one)",
        ),
        Some(path) => {
            if let Err(error) = JoinToken::load(path) {
                report.error("nodes.join_token_file", error.to_string());
            }
        }
    }
    if let Some(root) = &nodes.root
        && !root.is_dir()
    {
        report.error("nodes.root", format!("{} is no directory", root.display()));
    }
}

fn check_relay(config: &Config, report: &mut Report) {
    if let Err(error) = config.relay.targets() {
        report.error("relay.to", error);
    }
    if !(1..=64).contains(&config.relay.hops) {
        report.error("relay.hops", "expected 1 to 64");
    }
    let registry = Registry::standard();
    if let Err((setting, text)) = config.relay.check_hops(|name| registry.has(name)) {
        report.error(setting, text);
    }
    if let Err((setting, text)) = config.relay.make_spool() {
        report.error(setting, text);
    }
    if !config.relay.to.is_empty() && config.nodes.is_some() {
        report.error("relay.to", "a relay moves its data itself, and cannot be the front end of data nodes");
    }
}

fn check_log_in(config: &Config, report: &mut Report) {
    let mut known = Vec::new();
    if let Some(path) = &config.password_file {
        match PasswordFile::load(path) {
            Ok(file) => {
                known = file.list().map(str::to_owned).collect();
                if known.is_empty() && config.anonymous.is_none() {
                    report.warning("password_file", "it has no user yet, so nobody can log in");
                }
            }
            Err(error) => report.error("password_file", error.to_string()),
        }
    } else if config.anonymous.is_none() && !has_accounts(config) {
        report.error(
            "password_file",
            "nobody could log in: name a password_file (see `ropewalk passwd`), set up [gsi], [kerberos], [[tokens.issuers]] or \
             [tls.users], or allow anonymous access",
        );
    }
    for name in config.users.keys() {
        if !valid_user_name(name) {
            report.error(format!("users.{name}"), "this cannot be a user's name");
        } else if !known.contains(name)
            && config.gsi.is_none()
            && config.kerberos.is_none()
            && config.tokens.is_none()
            && config.tls().is_none_or(|tls| !tls.users.values().any(|user| user == name))
        {
            let text = "is neither in the password file nor in tls.users, so cannot log in";
            report.warning(format!("users.{name}"), text);
        }
    }
    let required = config.required_protection();
    if required != RequiredProtection::None
        && config.tls().is_none()
        && config.gsi.is_none()
        && config.kerberos.is_none()
    {
        report.error(
            "tls.required",
            "nobody could log in: log-ins in clear are refused, and TLS is off; switch it on, or set up [gsi] or [kerberos]",
        );
    }
    if config.password_file.is_some()
        && required == RequiredProtection::None
        && config.listen.iter().any(|address| !address.ip().is_loopback())
    {
        report.warning(
            "password_file",
            "passwords travel in clear text where clients do not use TLS: set tls.required = \"control\", or use it on \
             networks that you trust only",
        );
    }
    check_tls(config, report);
    if let Some(anonymous) = &config.anonymous {
        if anonymous.names.is_empty() {
            report.error("anonymous.names", "there is no name to log in with");
        }
        if anonymous.write {
            report.warning("anonymous.write", "anybody who can connect may change and remove files");
        }
    }
    if let Some(gsi) = &config.gsi {
        match Authority::load(gsi, false) {
            Ok(_) => {
                crate::security::gsi::doubts(gsi).into_iter().for_each(|text| report.warning("gsi", text));
            }
            Err(error) => report.error("gsi", error),
        }
    }
    if let Some(kerberos) = &config.kerberos
        && let Err(error) = crate::security::kerberos::Authority::load(kerberos)
    {
        report.error("kerberos", error);
    }
    if config.testing.faults {
        report.warning("testing.faults", "any client can have commands of its session fail (SITE FAULT)");
    }
    check_identity(config, report);
    check_tokens(config, report);
}

/// Whether users can log in by other means than anonymously.
fn has_accounts(config: &Config) -> bool {
    config.password_file.is_some()
        || config.gsi.is_some()
        || config.kerberos.is_some()
        || config.tokens.is_some()
        || config.tls().is_some_and(|tls| !tls.users.is_empty())
}

fn check_tls(config: &Config, report: &mut Report) {
    let Some(tls) = config.tls() else { return };
    match tls::Authority::check(tls) {
        Ok(()) => tls::Authority::doubts(tls).into_iter().for_each(|text| report.warning("tls", text)),
        Err(error) if config.may_do_without_tls() => report.warning("tls", error),
        Err(error) => report.error("tls", config.without_tls(error)),
    }
    if !tls.users.is_empty() && tls.client_authorities.is_none() {
        report.error("tls.users", "certificates are not asked for: name client_authorities");
    }
    if tls.client_revocations.is_some() && tls.client_authorities.is_none() {
        report.error("tls.client_revocations", "certificates are not asked for: name client_authorities");
    }
    for (subject, name) in &tls.users {
        if !subject.starts_with('/') {
            report.error("tls.users", format!("{subject:?} is no subject: expected /O=Example/CN=Name"));
        }
        if !valid_user_name(name) {
            report.error("tls.users", format!("{name:?} cannot be a user's name"));
        }
    }
}

fn check_tokens(config: &Config, report: &mut Report) {
    let Some(tokens) = &config.tokens else { return };
    if let Err(error) = TokenAuthority::load(tokens) {
        report.error("tokens", error);
    }
    if config.gsi.is_none() && config.kerberos.is_none() && config.tls().is_none() {
        report.error("tokens", "they are taken on protected connections only: set up [tls] or [gsi]");
    }
}

fn check_identity(config: &Config, report: &mut Report) {
    let identity = &config.identity;
    let anonymous = config.anonymous.as_ref();
    if identity.umask.is_some_and(|umask| umask > 0o777) {
        report.error("identity.umask", "is more than permission bits (write it as 0o027)");
    }
    let accounts = [
        ("identity.unprivileged_user", identity.unprivileged_user.as_ref()),
        ("anonymous.user", anonymous.and_then(|access| access.user.as_ref())),
    ];
    for (setting, name) in accounts {
        if let Some(Err(text)) = name.map(|name| crate::accounts::identity::check(name)) {
            report.error(setting, text);
        }
    }
    let root = rustix::process::geteuid().is_root();
    let maps = identity.mapped && ropewalk_storage::Identity::can_act();
    if root && identity.mapped && !maps {
        report.error(
            "identity.mapped",
            "runs as root, but may not take on other identities (CAP_SETUID and CAP_SETGID); with mapped = false every \
             session works as root",
        );
        return;
    }
    if !maps {
        if root {
            report.warning(
                "identity",
                "runs as root, and every session reads and writes files as root, without its power over those of others; \
                 map users to local accounts, or use a user of its own",
            );
        }
        return;
    }
    if let Some(access) = anonymous {
        match crate::accounts::identity::anonymous_account(identity, access) {
            None if root => {
                report.warning("anonymous.run_as", "anonymous sessions read and write files as root");
            }
            Some(name) if access.user.is_none() && identity.unprivileged_user.is_none() => {
                if let Err(text) = crate::accounts::identity::check(name) {
                    let text = format!("{text}, as which anonymous sessions would work: name another one");
                    report.error("anonymous.user", text);
                }
            }
            _ => {}
        }
    }
    let as_server = |user: &User| root && user.run_as == Some(RunAs::Server);
    if as_server(&config.defaults) {
        report.warning("defaults.run_as", "sessions read and write files as root");
    }
    for (name, _) in config.users.iter().filter(|(_, user)| as_server(user)) {
        report.warning(format!("users.{name}.run_as"), "sessions read and write files as root");
    }
}

fn check_accounts(config: &Config, report: &mut Report) {
    check_rules("rules", config.rules.as_deref(), report);
    if let Some(anonymous) = &config.anonymous {
        check_rules("anonymous.rules", anonymous.rules.as_deref(), report);
        check_aliases("anonymous.rules", anonymous.rules.as_deref(), config, report);
        check_home("anonymous.home", &anonymous.home, report);
        check_empty("anonymous", anonymous.rules.as_deref(), anonymous.sessions, report);
        let setting =
            if anonymous.root.is_some() || config.root.is_none() { "anonymous.root" } else { "root" };
        check_root(setting, anonymous.root.as_deref().or(config.root.as_deref()), report);
    }
    if has_accounts(config) {
        check_user("defaults", "defaults", &config.defaults, config, report);
        for (name, user) in &config.users {
            check_user(&format!("users.{name}"), name, &user.or(&config.defaults), config, report);
        }
    }
}

fn check_user(setting: &str, name: &str, user: &User, config: &Config, report: &mut Report) {
    check_rules(&format!("{setting}.rules"), user.rules.as_deref(), report);
    check_aliases(&format!("{setting}.rules"), user.rules.as_deref(), config, report);
    check_empty(setting, user.rules.as_deref(), user.sessions, report);
    check_home(&format!("{setting}.home"), user.home.as_deref().unwrap_or("/"), report);
    let root = user.root.as_deref().or(config.root.as_deref());
    let expanded = root.map(|root| expand(&root.to_string_lossy(), name, None));
    let maps = config.identity.mapped && ropewalk_storage::Identity::can_act();
    let open = |name: &str| root.is_some_and(|root| root.to_string_lossy().contains(name));
    if root.is_some_and(|root| root.to_string_lossy().rfind("{home}").is_some_and(|at| at > 0)) {
        report.error(format!("{setting}.root"), "{home} is an absolute path: it can only be the beginning");
        return;
    }
    if open("{home}") || (setting == "defaults" && open("{user}")) || (maps && root.is_none()) {
        return;
    }
    check_root(&format!("{setting}.root"), expanded.as_deref().map(Path::new), report);
}

fn check_rules(setting: &str, rules: Option<&str>, report: &mut Report) {
    if let Some(rules) = rules
        && let Err(error) = Rules::parse(rules.as_bytes(), &VirtualPath::root())
    {
        report.error(setting, error.to_string());
    }
    if rules.is_some_and(|rules| rules.contains("{home}")) {
        report
            .error(setting, "{home} is not replaced here, as rules are about paths that users see: write ~");
    }
}

/// Checks that only one of the lists of rules that apply to a user defines aliases.
fn check_aliases(setting: &str, rules: Option<&str>, config: &Config, report: &mut Report) {
    let has = |rules: Option<&str>| {
        rules
            .and_then(|rules| Rules::parse(rules.as_bytes(), &VirtualPath::root()).ok())
            .is_some_and(|rules| rules.has_aliases())
    };
    if has(rules) && has(config.rules.as_deref()) {
        report.error(setting, "aliases (path:alias) are in `rules` already: they can be in one list only");
    }
}

/// Warns of settings that look as if they allowed nothing, but allow everything.
fn check_empty(setting: &str, rules: Option<&str>, sessions: Option<u32>, report: &mut Report) {
    if rules.is_some_and(|rules| rules.split(',').all(|rule| rule.trim().is_empty())) {
        report.warning(format!("{setting}.rules"), "no rules permit everything; `N/` permits nothing");
    }
    if sessions == Some(0) {
        report.warning(format!("{setting}.sessions"), "0 is no limit");
    }
}

fn check_home(setting: &str, home: &str, report: &mut Report) {
    if !home.starts_with('/') || VirtualPath::parse(home.as_bytes()).is_err() {
        report.error(setting, format!("{home:?} is not an absolute path"));
    }
}

fn check_root(setting: &str, root: Option<&Path>, report: &mut Report) {
    let Some(root) = root else {
        report.error(setting, "there is no directory to serve: set root");
        return;
    };
    match std::fs::metadata(root) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => report.error(setting, format!("{} is not a directory", root.display())),
        Err(error) => report.error(setting, format!("{}: {error}", root.display())),
    }
}

fn check_numbers(config: &Config, report: &mut Report) {
    if config.listen.is_empty() {
        report.error("listen", "there is no address to listen on");
    }
    let implicit = config.tls().map(|tls| tls.implicit.as_slice()).unwrap_or_default();
    let addresses: Vec<_> = config.listen.iter().chain(implicit).collect();
    for (at, address) in addresses.iter().enumerate() {
        if address.port() != 0 && addresses[..at].contains(address) {
            report.error("listen", format!("{address} is there twice"));
        }
    }
    for (setting, ports) in
        [("data.ports", config.data.ports), ("data.source_ports", config.data.source_ports)]
    {
        if let Some((first, last)) = ports
            && (first == 0 || first > last)
        {
            report.error(setting, format!("{first} to {last} is not a range of ports"));
        }
    }
    check_congestion(config, report);
    check_drivers(config, report);
    check_socket_memory(config, report);
    if !(4096..=1 << 30).contains(&config.data.block_size) {
        report.error("data.block_size", "must be from 4 KiB to 1 GiB");
    }
    let positive = [
        ("data.max_streams", u64::from(config.data.max_streams)),
        ("data.buffer_memory", config.data.buffer_memory),
        ("limits.active", u64::from(config.limits.active)),
        ("limits.password_checks", u64::from(config.limits.password_checks)),
        ("limits.queue", config.limits.queue as u64),
    ];
    for (setting, value) in positive {
        if value == 0 {
            report.error(setting, "must be at least 1");
        }
    }
    if !(0.0..=100.0).contains(&config.limits.cpu_pressure) {
        report.error("limits.cpu_pressure", "must be from 0 to 100 percent");
    }
    if config.limits.line_length < 512 {
        report.error("limits.line_length", "must be at least 512");
    }
    for (setting, mode) in [
        ("files.create_mode", config.files.create_mode),
        ("files.directory_mode", config.files.directory_mode),
    ] {
        if mode > 0o7777 {
            report.error(setting, format!("{mode:#o} is more than permission bits"));
        }
    }
    // Each setting with its value, and whether it must not be 0.
    let times = [
        ("timeouts.login", config.timeouts.login, true),
        ("timeouts.idle", config.timeouts.idle, true),
        ("timeouts.write", config.timeouts.write, true),
        ("timeouts.drain", config.timeouts.drain, false),
        ("timeouts.login_failure", config.timeouts.login_failure, false),
        ("limits.disk_wait", config.limits.disk_wait, false),
        ("data.connect_timeout", config.data.connect_timeout, true),
        ("data.stall_timeout", config.data.stall_timeout, false),
        ("profiling.longest", config.profiling.longest, true),
    ];
    for (setting, time, wanted) in times {
        if wanted && time.is_zero() {
            report.error(setting, "must be more than 0");
        } else if time > LONGEST {
            report.error(setting, "must be no more than ten years (315360000)");
        }
    }
    if config.limits.sessions > 0
        && let Some(files) = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum
        && u64::from(config.limits.sessions).saturating_mul(2) > files
    {
        let text = format!(
            "{} sessions need as many open files, and twice as many with a data port each; the system grants {files}",
            config.limits.sessions
        );
        report.warning("limits.sessions", text);
    }
}

fn check_socket_memory(config: &Config, report: &mut Report) {
    if let Some(Err(error)) = config.data.socket_memory.map(check_budget) {
        report.error("data.socket_memory", error.to_string());
    }
    if let Err(error) = config.data.socket_policy.parse::<Rule>() {
        report.error("data.socket_policy", error.to_string());
    }
}

fn check_congestion(config: &Config, report: &mut Report) {
    // The algorithms that are loaded. root may have a module loaded by asking for it.
    let there = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").ok();
    let default = config.data.congestion.iter().map(|name| ("data.congestion", name));
    let choices = config.data.congestion_choices.iter().map(|name| ("data.congestion_choices", name));
    for (setting, name) in default.chain(choices) {
        if let Err(error) = name.parse::<CongestionName>() {
            report.error(setting, format!("{name:?}: {error}"));
        } else if let Some(there) = &there
            && !there.split_whitespace().any(|known| known == name)
        {
            report.warning(setting, format!("this host has no {name}, only {}", there.trim()));
        }
    }
}

fn check_drivers(config: &Config, report: &mut Report) {
    let network = Registry::standard();
    if config.data.quic_port.is_some_and(|port| port > 0) {
        let setting = "data.quic_port";
        if !config.data.drivers.iter().any(|name| name == QUIC) {
            report.warning(setting, "it is not used, because data.drivers has no quic".to_owned());
        } else if config.data.interface.is_some() {
            let text = "it is at the addresses of the control port, so that data.interface excludes it";
            report.error(setting, text.to_owned());
        } else if config.nodes.is_some() {
            report.error(setting, "data nodes have ports of their own".to_owned());
        }
    }
    let lists: [(_, &[String], Vec<&str>); 2] = [
        ("data.drivers", &config.data.drivers, network.names().collect()),
        ("files.drivers", &config.files.drivers, DISK_DRIVERS.to_vec()),
    ];
    for (setting, drivers, known) in lists {
        for unknown in drivers.iter().filter(|name| !known.contains(&name.as_str())) {
            report.error(setting, format!("{unknown:?} is no driver: there are {}", known.join(", ")));
        }
    }
    for (name, path) in &config.files.programs {
        let setting = "files.programs";
        if !path.is_absolute() {
            report.error(setting, format!("{name}: {} is no absolute path", path.display()));
        } else if !path.is_file() {
            report.warning(setting, format!("{name}: there is no file {}", path.display()));
        }
    }
}

/// Whether a session can know this command (in upper case), with any settings.
fn is_command(name: &str) -> bool {
    const UNLISTED: [&str; 7] = ["ABOR", "AUTH", "ADAT", "CCC", "DCSC", "SITE FAULT", "SITE PROFILE"];
    match name.strip_prefix("SITE ") {
        Some(verb) => help::knows_site(verb) || UNLISTED.contains(&name),
        None => help::knows(name) || UNLISTED.contains(&name),
    }
}

fn check_places(config: &Config, report: &mut Report) {
    // The address may be added later.
    if let Some(address) = config.data.interface
        && let Err(error) = UdpSocket::bind((address, 0))
    {
        report.warning("data.interface", format!("there are no data connections from {address}: {error}"));
    }
    let logs = [
        ("log.transfer_log", &config.log.transfer_log),
        ("log.transfer_log_json", &config.log.transfer_log_json),
        ("log.audit", &config.log.audit),
    ];
    for (setting, path) in logs {
        if let Some(path) = path.as_deref().filter(|path| path.is_dir()) {
            report.error(setting, format!("{} is a directory: name a file", path.display()));
        } else if let Some(directory) = path.as_deref().and_then(Path::parent)
            && !directory.as_os_str().is_empty()
            && !directory.is_dir()
        {
            report.error(setting, format!("{} is not a directory", directory.display()));
        }
    }
    for name in &config.disabled_commands {
        let words =
            name.split(' ').all(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphabetic()));
        if name.eq_ignore_ascii_case("QUIT") || !words {
            report.error("disabled_commands", format!("{name:?} is not a command that can be turned off"));
        } else if !is_command(&name.to_ascii_uppercase()) {
            report.warning("disabled_commands", format!("{name:?} is no command that this server knows"));
        }
    }
}

#[cfg(test)]
mod tests;
