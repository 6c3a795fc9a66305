//! The options of GCT's program, all of them.

use std::ffi::OsString;
use std::time::Duration;

use ropewalk_client::{DataProtection, SyncLevel};
use ropewalk_protocol::stack::{DriverSpec, StackSpec, StackSyntaxError};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_tuning::tuner::MAX_STREAMS;

use super::options::Guc;
use crate::settings::data_credential;
use crate::units::parse_size;

/// Applies an option; the value is empty if the option takes none.
pub(super) type Set = fn(&mut Guc, OsString) -> Result<(), String>;

#[derive(Clone, Copy)]
pub(super) enum Action {
    Set(Set),
    /// Accepted without effect, because it requests the default behaviour.
    Ignored,
    /// Refused: ignoring it would change what is copied, where to, or how safely.
    NotPossible,
}

pub(super) struct Opt {
    /// The names without the dash.
    pub(super) names: &'static [&'static str],
    pub(super) argument: Option<&'static str>,
    /// Empty: hidden, as in GCT.
    pub(super) help: &'static str,
    pub(super) action: Action,
}

const fn flag(names: &'static [&'static str], help: &'static str, set: Set) -> Opt {
    Opt { names, argument: None, help, action: Action::Set(set) }
}

const fn value(names: &'static [&'static str], argument: &'static str, help: &'static str, set: Set) -> Opt {
    Opt { names, argument: Some(argument), help, action: Action::Set(set) }
}

const fn ignored(names: &'static [&'static str], argument: Option<&'static str>, help: &'static str) -> Opt {
    Opt { names, argument, help, action: Action::Ignored }
}

const fn refused(names: &'static [&'static str], argument: Option<&'static str>, help: &'static str) -> Opt {
    Opt { names, argument, help, action: Action::NotPossible }
}

macro_rules! on {
    ($($field:ident).+) => { |guc: &mut Guc, _: OsString| { guc.$($field).+ = true; Ok(()) } };
}

macro_rules! take {
    ($field:ident, $parse:expr) => {
        |guc: &mut Guc, value: OsString| {
            guc.$field = $parse(value)?;
            Ok(())
        }
    };
}

#[rustfmt::skip]
pub(super) const OPTIONS: &[Opt] = &[
    flag(&["help", "usage"], "Print help", on!(help)),
    flag(&["version"], "Print the version of this program", on!(version)),
    flag(&["versions"], "Print the version of this program", on!(version)),
    flag(&["c", "continue-on-error"], "Continue with other files after an error", on!(continue_on_error)),
    flag(&["a", "ascii"], "Convert line ends (TYPE A)", on!(ascii)),
    flag(&["b", "binary"], "Convert no line ends; the default", |guc, _| { guc.ascii = false; Ok(()) }),
    value(&["f", "filename"], "filename",
        "Read pairs from this file (-: standard input), one on each line: <sourceURL> <destURL> \
         [offset[,length]]; URLs with spaces in double quotes", take!(pairs_file, path)),
    flag(&["cd", "create-dest"], "Create missing directories of the destination", on!(create_destination)),
    flag(&["r", "recurse"], "Copy files in subdirectories", on!(recurse)),
    flag(&["fast", "fast-data-channels"], "MODE E for everything, with reused data connections", on!(fast)),
    value(&["t", "transfer-time"], "seconds", "Stop after this time", take!(run_time, some_seconds)),
    flag(&["q", "quiet"], "Print nothing on success; the default", |guc, _| {
        (guc.verbose, guc.performance) = (false, false);
        Ok(())
    }),
    flag(&["v", "verbose"], "Print URLs as they are copied", on!(verbose)),
    flag(&["vb", "verbose-perf"], "Print URLs, and bytes and rates while they are copied", |guc, _| {
        (guc.verbose, guc.performance) = (true, true);
        Ok(())
    }),
    flag(&["dbg", "debugftp"], "Print the dialogue of control connections on standard error", on!(debug)),
    flag(&["rst", "restart"], "Try failed transfers again", on!(restart)),
    value(&["rst-retries"], "retries", "Number of retries, 5 by default; 0: unlimited", take!(retries, number)),
    value(&["rst-interval"], "seconds", "First pause before a retry; 0: automatic", take!(retry_interval, seconds)),
    value(&["rst-timeout"], "seconds", "Stop retrying this long after the first failure; 0: no limit",
        take!(retry_limit, some_seconds)),
    value(&["stall-timeout", "st"], "seconds", "Cancel a transfer in which nothing moves for this \
                                                long, 600 by default; 0: never",
        take!(stall, some_seconds)),
    value(&["df", "dumpfile"], "filename",
        "Write the pairs that were not copied to this file, in the format of -f; if it exists, copy \
         only the pairs in it",
        take!(dump_file, path)),
    value(&["do", "dump-only"], "filename", "Copy nothing; write the pairs to this file, in the \
                                             format of -f",
        take!(dump_only, path)),
    flag(&["rp", "relative-paths"], "Paths of URLs are relative to the log-in directory; %2F at the \
                                     start means the root",
        on!(relative_paths)),
    value(&["s", "subject"], "subject", "Subject of both servers' certificates", take!(subject, some_text)),
    value(&["ss", "source-subject"], "subject", "Subject of the source's server", |guc, value| {
        guc.source.server_subject = some_text(value)?;
        Ok(())
    }),
    value(&["ds", "dest-subject"], "subject", "Subject of the destination's server", |guc, value| {
        guc.destination.server_subject = some_text(value)?;
        Ok(())
    }),
    value(&["tcp-bs", "tcp-buffer-size"], "size", "Socket buffers of data connections, in bytes", take!(tcp_buffer, some_size)),
    value(&["bs", "block-size"], "size", "Block size, in bytes", take!(block_size, some_size)),
    value(&["p", "parallel"], "parallelism", "Data connections of a file, in MODE E; 0 is one in MODE S", take!(parallel, streams)),
    flag(&["notpt", "no-third-party-transfers"], "Copy between two servers through this program", on!(no_third_party)),
    flag(&["nodcau", "no-data-channel-authentication"], "No authentication of data connections", on!(no_authentication)),
    flag(&["dcsafe", "data-channel-safe"], "Protect data connections against modification", |guc, _| {
        guc.protection = DataProtection::Safe;
        Ok(())
    }),
    flag(&["dcpriv", "data-channel-private"], "Encrypt data connections", |guc, _| {
        guc.protection = DataProtection::Private;
        Ok(())
    }),
    value(&["off", "partial-offset"], "bytes", "Start at this byte", take!(offset, some_size)),
    value(&["len", "partial-length"], "bytes", "Copy this many bytes", take!(length, length)),
    value(&["list", "list-url"], "URL", "List this directory", |guc, value| { guc.list = Some(value); Ok(()) }),
    flag(&["stripe", "striped"], "Use all addresses of a server with several data nodes, in MODE E", on!(striped)),
    value(&["striped-block-size", "sbs"], "size",
        "A source of several addresses distributes a file in blocks of this many bytes; 0: one \
         range for each", take!(stripe_block, some_size)),
    ignored(&["ipv6"], None, "Use IPv6 if it is available; this is always on"),
    flag(&["u", "udt"], "Move data over UDT: -dcstack udt", |guc, _| {
        guc.source.stack = net_stack("udt".into())?;
        guc.destination.stack.clone_from(&guc.source.stack);
        Ok(())
    }),
    ignored(&["g2", "gridftp2"], None, ""),
    ignored(&["no-g2", "nogridftp2"], None, "No GFD.47 commands; this is always on"),
    flag(&["dp", "delayed-pasv"], "Delayed passive mode", on!(delayed_passive)),
    refused(&["mn", "module-name"], Some("name"), "sets the storage module of both servers"),
    refused(&["mp", "module-parameters"], Some("parameters"), "sets parameters of the storage modules"),
    refused(&["smn", "src-module-name"], Some("name"), "sets the storage module of the source"),
    refused(&["smp", "src-module-parameters"], Some("parameters"), "sets parameters of the source's storage module"),
    refused(&["dmn", "dst-module-name"], Some("name"), "sets the storage module of the destination"),
    refused(&["dmp", "dst-module-parameters"], Some("parameters"), "sets parameters of the destination's storage module"),
    refused(&["aa", "authz-assert"], Some("filename"), "sends an authorisation assertion to both servers"),
    refused(&["saa", "src-authz-assert"], Some("filename"), "sends an authorisation assertion to the source"),
    refused(&["daa", "dst-authz-assert"], Some("filename"), "sends an authorisation assertion to the destination"),
    refused(&["cache-aa", "cache-authz-assert"], None, "keeps the authorisation assertion"),
    refused(&["cache-saa", "cache-src-authz-assert"], None, "keeps the source's authorisation assertion"),
    refused(&["cache-daa", "cache-dst-authz-assert"], None, "keeps the destination's authorisation assertion"),
    flag(&["pipeline", "pp"], "Send commands for further files before a file is done", |guc, _| {
        guc.pipeline.get_or_insert(10);
        Ok(())
    }),
    value(&["pipelineq", "ppq"], "commands", "Number of pipelined commands, 10 by default", |guc, value| {
        guc.pipeline = Some(positive(value)?);
        Ok(())
    }),
    value(&["concurrency", "cc"], "number", "Files in flight", take!(concurrency, positive)),
    refused(&["nl-bottleneck", "nlb"], None, "writes NetLogger events; `ropewalk cp` names the slowest part"),
    refused(&["nli"], Some("interval"), "writes NetLogger events; `ropewalk cp` names the slowest part"),
    value(&["src-pipe", "SP"], "command", "Program of the source's server in place of the file, with its arguments", |guc, value| {
        guc.source.disk_stack = Some(pipe(value)?);
        Ok(())
    }),
    value(&["dst-pipe", "DP"], "command", "Program of the destination's server in place of the file", |guc, value| {
        guc.destination.disk_stack = Some(pipe(value)?);
        Ok(())
    }),
    value(&["pipe", "P"], "command", "Program of both servers in place of the file", |guc, value| {
        guc.disk_stack = Some(pipe(value)?);
        Ok(())
    }),
    value(&["dcstack", "data-channel-stack"], "stack", "Network drivers of both servers, with options behind a colon: tcp,rate:rate=10M", |guc, value| {
        guc.source.stack = net_stack(value)?;
        guc.destination.stack.clone_from(&guc.source.stack);
        Ok(())
    }),
    value(&["fsstack", "file-system-stack"], "stack", "Disk drivers of both servers: file, popen:argv=#tar#cf#-#/data", |guc, value| {
        guc.disk_stack = disk_stack(value)?;
        Ok(())
    }),
    value(&["src-dcstack", "source-data-channel-stack"], "stack", "Network drivers of the source", |guc, value| {
        guc.source.stack = net_stack(value)?;
        Ok(())
    }),
    value(&["src-fsstack", "source-file-system-stack"], "stack", "Disk drivers of the source", |guc, value| {
        guc.source.disk_stack = disk_stack(value)?;
        Ok(())
    }),
    value(&["dst-dcstack", "dest-data-channel-stack"], "stack", "Network drivers of the destination", |guc, value| {
        guc.destination.stack = net_stack(value)?;
        Ok(())
    }),
    value(&["dst-fsstack", "dest-file-system-stack"], "stack", "Disk drivers of the destination", |guc, value| {
        guc.destination.disk_stack = disk_stack(value)?;
        Ok(())
    }),
    value(&["cred"], "path", "Credential for both servers: certificate, key and chain in one file, \
                              like a proxy", |guc, value| {
        guc.source.credential = path(value.clone())?;
        guc.destination.credential = path(value)?;
        Ok(())
    }),
    value(&["src-cred", "sc"], "path", "Credential for the source's server", |guc, value| {
        guc.source.credential = path(value)?;
        Ok(())
    }),
    value(&["dst-cred", "dc"], "path", "Credential for the destination's server", |guc, value| {
        guc.destination.credential = path(value)?;
        Ok(())
    }),
    value(&["data-cred"], "path", "Credential for data connections, which servers get by DCSC; auto: one made for this run",
        |guc, value| {
            guc.data_credential = data_credential(&text(value)?);
            Ok(())
        }),
    refused(&["af", "alias-file"], Some("filename"), "spreads transfers over several hosts"),
    flag(&["sync"], "Copy only files that the destination does not have", on!(sync)),
    value(&["sync-level"], "number",
        "When the destination has a file: 0 the name exists, 1 the size is the same, 2 and it is \
         not older (the default), 3 size and checksum are the same",
        take!(sync_level, level)),
    value(&["checksum-alg", "algo"], "algorithm", "Checksum algorithm, MD5 by default", take!(algorithm, algorithm)),
    flag(&["verify-checksum", "checksum"], "Compare checksums at both ends after each file", on!(verify)),
    ignored(&["allo"], None, ""),
    ignored(&["no-allo"], None, ""),
    refused(&["X"], Some("extension"), ""),
    refused(&["MC", "multicast"], Some("filename"), ""),
    refused(&["CP"], Some("plugin"), ""),
    flag(&["cp", "copy-perms"], "", on!(preserve.modes)),
    flag(&["preserve"], "", |guc, _| {
        (guc.preserve.times, guc.preserve.modes) = (true, true);
        Ok(())
    }),
];

/// As with GCT's program, a stack that only names the usual drivers may be given for any server.
fn net_stack(value: OsString) -> Result<Option<StackSpec>, String> {
    let stack = StackSpec::parse(text(value)?.as_bytes()).map_err(|error| error.to_string())?;
    let usual = |driver: &DriverSpec| matches!(driver.name(), "tcp" | "gsi") && driver.options().is_empty();
    Ok(stack.filter(|stack| !stack.drivers().iter().all(usual)))
}

/// The stack of plain files is that of every server.
fn disk_stack(value: OsString) -> Result<Option<StackSpec>, String> {
    let stack = StackSpec::parse(text(value)?.as_bytes()).map_err(|error| error.to_string())?;
    Ok(stack.filter(|stack| stack.to_string() != "file"))
}

/// The stack of a program with its arguments, which are separated by spaces.
fn pipe(value: OsString) -> Result<StackSpec, String> {
    const DELIMITERS: &str = "#$^*!|%&()'{}";
    let command = text(value)?;
    if let Some(reserved) = command.chars().find(|c| matches!(c, ',' | ';')) {
        return Err(format!("a command must not contain '{reserved}', which ends an option of a stack"));
    }
    let delimiter = DELIMITERS.chars().find(|delimiter| !command.contains(*delimiter));
    let delimiter = delimiter.ok_or_else(|| format!("a command must leave out one of {DELIMITERS}"))?;
    let words = command.split_whitespace().map(|word| format!("{delimiter}{word}"));
    format!("popen:argv={}", words.collect::<String>())
        .parse()
        .map_err(|error: StackSyntaxError| error.to_string())
}

fn text(value: OsString) -> Result<String, String> {
    value.into_string().map_err(|value| format!("{value:?} is not valid UTF-8"))
}

fn some_text(value: OsString) -> Result<Option<String>, String> {
    value.into_string().map(Some).map_err(|value| format!("{value:?} is not valid UTF-8"))
}

fn path(value: OsString) -> Result<Option<std::path::PathBuf>, String> {
    Ok(Some(value.into()))
}

fn number(value: OsString) -> Result<u32, String> {
    text(value)?.parse().map_err(|_| "expected a whole number".into())
}

fn streams(value: OsString) -> Result<u32, String> {
    match number(value)? {
        number if number > MAX_STREAMS => Err("expected a whole number up to 1024".into()),
        number => Ok(number),
    }
}

fn positive(value: OsString) -> Result<u32, String> {
    match number(value)? {
        0 => Err("expected a whole number from 1".into()),
        number => Ok(number),
    }
}

fn seconds(value: OsString) -> Result<Duration, String> {
    Ok(Duration::from_secs(number(value)?.into()))
}

/// 0 is none.
fn some_seconds(value: OsString) -> Result<Option<Duration>, String> {
    Ok(Some(seconds(value)?).filter(|time| !time.is_zero()))
}

fn some_size(value: OsString) -> Result<Option<u64>, String> {
    parse_size(&text(value)?).map(Some)
}

fn length(value: OsString) -> Result<Option<u64>, String> {
    if value == "-1" { Ok(None) } else { some_size(value) }
}

fn level(value: OsString) -> Result<SyncLevel, String> {
    match number(value)? {
        0 => Ok(SyncLevel::Exists),
        1 => Ok(SyncLevel::Size),
        2 => Ok(SyncLevel::Time),
        3 => Ok(SyncLevel::Checksum),
        _ => Err("expected a level from 0 to 3".into()),
    }
}

fn algorithm(value: OsString) -> Result<Algorithm, String> {
    text(value)?.parse().map_err(|error: ropewalk_storage::checksum::UnknownAlgorithm| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_names_are_unique() {
        let mut names: Vec<_> = OPTIONS.iter().flat_map(|option| option.names).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
