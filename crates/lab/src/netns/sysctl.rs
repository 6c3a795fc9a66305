//! Kernel settings of a host.

use crate::scenario::{Kernel, Size, Value};
use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt,
};

/// Linux's own defaults (tcp(7)); a namespace would otherwise inherit this machine's.
const TCP_RMEM: [Size; 3] = [Size(4096), Size(131_072), Size(6_291_456)];
const TCP_WMEM: [Size; 3] = [Size(4096), Size(16_384), Size(4_194_304)];

/// What was applied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Applied {
    /// Everything, defaults filled in.
    pub(crate) kernel: Kernel,
    /// The congestion control must be asked for by routes, since this machine does not allow namespaces to choose it.
    pub(crate) by_route: Option<String>,
}

/// Why a setting was not applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SysctlError {
    #[error(
        "congestion control {name} is not available on this machine, there are: {available}(`modprobe tcp_{name}` may add it)"
    )]
    NoSuchCongestion { name: String, available: String },
    #[error("there is no setting {name} in a namespace")]
    Missing { name: String, value: String },
    #[error("the kernel refuses {name} = {value}: {error}")]
    Refused { name: String, value: String, error: io::Error },
}

impl SysctlError {
    /// What to do about it. The calling thread must be on the machine's own network.
    pub(crate) fn explain(&self) -> String {
        let Self::Missing { name, value } = self else { return self.to_string() };
        match get(name) {
            Some(now) => format!(
                "{name} is a setting of the whole machine on this kernel, not of a namespace, and the lab leaves the \
                 machine's settings alone. It is {now} now: set it to {value} yourself (sysctl -w), or take it out of the \
                 scenario"
            ),
            None => format!("this kernel has no setting {name}"),
        }
    }
}

/// Applies settings to the network namespace of the calling thread.
pub(crate) fn apply(kernel: &Kernel, forwards: bool) -> Result<Applied, SysctlError> {
    let mut kernel = kernel.clone();
    let rmem = *kernel.tcp_rmem.get_or_insert(TCP_RMEM);
    let wmem = *kernel.tcp_wmem.get_or_insert(TCP_WMEM);
    let list = |sizes: [Size; 3]| sizes.map(|Size(bytes)| bytes.to_string()).join(" ");
    let mut settings =
        vec![("net.ipv4.tcp_rmem".to_owned(), list(rmem)), ("net.ipv4.tcp_wmem".to_owned(), list(wmem))];
    if forwards {
        settings.push(("net.ipv4.ip_forward".into(), "1".into()));
        if fs::exists("/proc/sys/net/ipv6").unwrap_or(false) {
            settings.push(("net.ipv6.conf.all.forwarding".into(), "1".into()));
        }
    }
    settings.extend(kernel.sysctl.iter().map(|(name, value)| (name.clone(), text(value))));
    for (name, value) in settings {
        let Err(error) = set(&name, &value) else { continue };
        if shared_value(&name).is_some_and(|now| same(&now, &value)) {
            // The machine's, and already as it is wanted.
            continue;
        }
        return Err(match error.kind() {
            ErrorKind::NotFound => SysctlError::Missing { name, value },
            _ if shared_value(&name).is_some() => SysctlError::Missing { name, value },
            _ => SysctlError::Refused { name, value, error },
        });
    }
    let by_route = congestion(kernel.congestion.as_deref().unwrap_or_default())?;
    Ok(Applied { kernel, by_route })
}

/// What a setting is that namespaces can read but not change.
fn shared_value(name: &str) -> Option<String> {
    let writable = fs::metadata(path(name)).ok()?.mode() & 0o200 != 0;
    if writable { None } else { get(name) }
}

fn same(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

/// A setting of the machine that is a number.
pub(crate) fn number(name: &str) -> u64 {
    get(name).and_then(|value| value.parse().ok()).unwrap_or_default()
}

fn congestion(name: &str) -> Result<Option<String>, SysctlError> {
    const SETTING: &str = "net.ipv4.tcp_congestion_control";
    let Err(error) = set(SETTING, name) else { return Ok(None) };
    let available = get("net.ipv4.tcp_available_congestion_control").unwrap_or_default();
    if !available.split_whitespace().any(|other| other == name) {
        let available = available.split_whitespace().map(|name| format!("{name} ")).collect();
        return Err(SysctlError::NoSuchCongestion { name: name.to_owned(), available });
    }
    match error.kind() {
        // Not in net.ipv4.tcp_allowed_congestion_control. Routes may name any (ip-route(8), congctl).
        ErrorKind::PermissionDenied | ErrorKind::NotFound => Ok(Some(name.to_owned())),
        _ => Err(SysctlError::Refused { name: SETTING.into(), value: name.to_owned(), error }),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Bool(value) => u8::from(*value).to_string(),
        other => other.to_string(),
    }
}

fn path(name: &str) -> String {
    // `net/ipv4/conf/eth0.1/rp_filter` may be written with slashes, as sysctl(8) has it.
    if name.contains('/') {
        format!("/proc/sys/{name}")
    } else {
        format!("/proc/sys/{}", name.replace('.', "/"))
    }
}

fn set(name: &str, value: &str) -> io::Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .open(path(name))
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
}

/// A setting, as the calling thread's network namespace has it.
fn get(name: &str) -> Option<String> {
    Some(fs::read_to_string(path(name)).ok()?.trim().to_owned())
}
