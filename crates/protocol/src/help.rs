//! HELP and SITE HELP (RFC 959 section 4.1.3), with GCT's texts.

use bstr::{BStr, ByteSlice};

use crate::reply::Reply;

/// Verbs with their syntax, in the order of GCT's list.
const COMMANDS: [(&str, &str); 52] = [
    ("ALLO", "ALLO <sp> <size>"),
    ("APPE", "APPE <sp> pathname"),
    ("REST", "REST [<sp> restart marker]"),
    ("CWD", "CWD <sp> pathname"),
    ("CDUP", "CDUP (up one directory)"),
    ("DCAU", "DCAU <S,N,A>"),
    ("EPSV", "EPSV [<sp> ALL]"),
    ("FEAT", "FEAT"),
    ("ERET", "ERET <sp> mod_name=\"mod_parms\" <sp> pathname"),
    ("MDTM", "MDTM <sp> <filename>"),
    ("STAT", "STAT [<sp> pathname]"),
    ("ESTO", "ESTO <sp> mod_name=\"mod_parms\" <sp> pathname"),
    ("HELP", "HELP [<sp> command]"),
    ("LIST", "LIST [<sp> <filename>]"),
    ("MODE", "MODE <sp> mode-code"),
    ("NLST", "NLST [<sp> <filename>]"),
    ("MLSC", "MLSC [<sp> <filename>]"),
    ("MLSD", "MLSD [<sp> <filename>]"),
    ("PASV", "PASV"),
    ("RNFR", "RNFR <sp> pathname"),
    ("MLSR", "MLSR [<sp> <filename>]"),
    ("MLST", "MLST [<sp> <filename>]"),
    ("NOOP", "NOOP (no operation)"),
    ("OPTS", "OPTS <sp> opt-type [parameters]"),
    ("STOR", "STOR [<sp> pathname]"),
    ("PASS", "PASS <sp> password"),
    ("PBSZ", "PBSZ <sp> size"),
    ("PORT", "PORT <port>"),
    ("PROT", "PROT <C|P|S>"),
    ("SITE", ""),
    ("EPRT", "EPRT <sp> <port>"),
    ("RETR", "RETR [<sp> pathname]"),
    ("SPOR", "SPOR <sp> <port list>"),
    ("MFMT", "MFMT <sp> YYYYMMDDHHMMSS <sp> pathname"),
    ("SCKS", "SCKS <sp> algorithm <sp> checksum"),
    ("TREV", "TREV <event name> <frequency> [info list]"),
    ("PWD", "PWD (returns current working directory)"),
    ("QUIT", "QUIT (close control connection)"),
    ("SBUF", "SBUF <sp> window-size"),
    ("SIZE", "SIZE <sp> pathname"),
    ("SPAS", "SPAS"),
    ("STRU", "STRU (specify file structure)"),
    ("SYST", "SYST (returns system type)"),
    ("RNTO", "RNTO <sp> pathname"),
    ("TYPE", "TYPE <sp> type-code"),
    ("USER", "USER <sp> username"),
    ("LANG", "LANG: set language for messages"),
    ("MKD", "MKD <sp> pathname"),
    ("RMD", "RMD <sp> pathname"),
    ("DELE", "DELE <sp> pathname"),
    ("CKSM", "CKSM <sp> algorithm <sp> offset <sp> length <sp> pathname"),
    ("ABUF", "ABUF <sp> window-size"),
];

/// SITE verbs with their lines in HELP SITE.
const SITE_COMMANDS: [(&str, &str); 39] = [
    ("SBUF", "SITE SBUF: set send and receive buffers"),
    ("RETRBUFSIZE", "SITE RETRBUFSIZE: set receive buffers"),
    ("RBUFSZ", "SITE RBUFSZ: set receive buffers"),
    ("RBUFSIZ", "SITE RBUFSIZ: set receive buffers"),
    ("CHROOT", "SITE CHROOT <sp> new root path"),
    ("STORBUFSIZE", "SITE STORBUFSIZE: set send buffers"),
    ("SBUFSIZ", "SITE SBUFSIZ: set send buffers"),
    ("SBUFSZ", "SITE SBUFSZ: set send buffers"),
    ("BUFSIZE", "SITE BUFSIZE: set send and receive buffers"),
    ("TRNC", "SITE TRNC <sp> length <sp> path"),
    ("HELP", "SITE HELP: help on server commands"),
    ("FAULT", "SITE FAULT: force a failure on given command"),
    ("WHOAMI", "SITE WHOAMI"),
    ("RDEL", "SITE RDEL <sp> pathname"),
    ("CHMOD", "SITE CHMOD <sp> mode <sp> pathname"),
    ("CHGRP", "SITE CHGRP <sp> group <sp> pathname"),
    ("UTIME", "SITE UTIME <sp> YYYYMMDDHHMMSS <sp> pathname"),
    ("SYMLINKFROM", "SITE SYMLINKFROM <sp> reference-path"),
    ("SYMLINKTO", "SITE SYMLINKTO <sp> link-path"),
    ("SYMLINK", "SITE SYMLINK <sp> reference-path <sp> link-path"),
    ("DSI", "SITE DSI <sp> dsi name"),
    ("VERSION", "SITE VERSION"),
    ("SETNETSTACK", "SITE SETNETSTACK <sp> comma separated list of xio drivers for the data channel"),
    ("SETDISKSTACK", "SITE SETDISKSTACK <sp> comma separated list of xio drivers for the disk channel"),
    (
        "CLIENTINFO",
        "SITE CLIENTINFO <sp> appname=\"<name of app>\";appver=\"<version string>\";\
         scheme=\"<ftp,gsiftp,sshftp>\";anyother=\"<interesting client info>\";",
    ),
    ("DATAKEY", "SITE DATAKEY <sp> key number <sp> secret | NONE"),
    ("HOPLOGIN", "SITE HOPLOGIN <sp> host:port <sp> user <sp> password"),
    ("ONEPORT", "SITE ONEPORT [<sp> token <sp> |1|address|port| ]"),
    ("RESTRICT", "SITE RESTRICT <sp> RP string"),
    ("PROFILE", "SITE PROFILE <sp> START [<sp> seconds] | CLOCK | STOP | FETCH"),
    ("RANGES", "SITE RANGES <sp> pathname"),
    ("SCITAG", "SITE SCITAG [<sp> 64 * experiment + activity | 0]"),
    (
        "SLOTS",
        "SITE SLOTS <sp> RESERVE <sp> slots <sp> bytes per second <sp> delay <sp> seconds <sp> lease | \
         EXTEND <sp> token <sp> lease | RELEASE <sp> token | USE <sp> token | USE <sp> NONE | LIST",
    ),
    (
        "SPACE",
        "SITE SPACE <sp> RESERVE <sp> bytes <sp> seconds [<sp> pathname] | EXTEND <sp> token <sp> seconds | RELEASE <sp> token | \
         USE <sp> token | USE <sp> NONE | LIST",
    ),
    ("STORATTR", "SITE STORATTR <sp> attributes"),
    ("STREAMS", "SITE STREAMS <sp> number of data connections"),
    ("TASKID", "SITE TASKID <sp> taskid"),
    (
        "UPLOAD",
        "SITE UPLOAD <sp> BEGIN | RANGES | COMMIT | SUSPEND | DISCARD <sp> id [<sp> parameters [<sp> pathname]]",
    ),
    ("USAGE", "SITE USAGE [<sp> TOKEN <sp> token] <sp> pathname"),
];

/// The reply to HELP. `allowed` is called with `VERB` and `SITE VERB`.
///
/// `subject` is the argument of HELP: `None` for the list, or SITE or another verb in any case.
pub fn reply(subject: Option<&BStr>, allowed: impl Fn(&str) -> bool) -> Reply {
    let Some(subject) = subject else {
        return general(allowed);
    };
    let verb = subject.to_ascii_uppercase();
    let lines: Vec<&str> = match COMMANDS.iter().find(|(v, _)| v.as_bytes() == verb && allowed(v)) {
        Some(("SITE", _)) => SITE_COMMANDS
            .iter()
            .filter(|(v, _)| allowed(&format!("SITE {v}")))
            .map(|(_, line)| *line)
            .collect(),
        Some((_, syntax)) => vec![syntax],
        // As in GCT, this includes ABOR and AUTH.
        None => return Reply::new(502, format!("Unknown command '{}'.", verb.as_bstr())),
    };
    Reply::indented(214, format!("Help for {}:", verb.as_bstr()), lines, "End.")
}

fn general(allowed: impl Fn(&str) -> bool) -> Reply {
    let verbs: Vec<&str> = COMMANDS.iter().map(|(verb, _)| *verb).filter(|verb| allowed(verb)).collect();
    // Each verb is indented by four columns; the reply itself adds the first column of the row.
    let rows = verbs.chunks(8).map(|row| {
        let row: String = row.iter().map(|verb| format!("    {verb:<4}")).collect();
        row[1..].to_owned()
    });
    Reply::indented(214, "The following commands are recognized:", rows, "End")
}

/// Whether HELP lists this verb, which is in upper case.
pub fn knows(verb: &str) -> bool {
    COMMANDS.iter().any(|(v, _)| *v == verb)
}

/// Whether HELP SITE lists this SITE verb, which is in upper case.
pub fn knows_site(verb: &str) -> bool {
    SITE_COMMANDS.iter().any(|(v, _)| *v == verb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_without_subject_lists_verbs() {
        let text = reply(None, |_| true).to_bytes();
        let lines: Vec<&[u8]> = text.lines().collect();
        assert_eq!(lines[0], b"214-The following commands are recognized:");
        assert_eq!(lines[1], b"    ALLO    APPE    REST    CWD     CDUP    DCAU    EPSV    FEAT");
        assert_eq!(lines[6], b"    SPAS    STRU    SYST    RNTO    TYPE    USER    LANG    MKD ");
        assert_eq!(lines[7], b"    RMD     DELE    CKSM    ABUF");
        assert_eq!(lines[8], b"214 End");
        assert_eq!(lines.len(), 9);
    }

    #[test]
    fn help_with_subject_shows_its_syntax() {
        let help = |subject: &str| reply(Some(subject.into()), |_| true).to_string();
        assert_eq!(help("noop"), "214-Help for NOOP:| NOOP (no operation)|214 End.");
        assert_eq!(help("XX"), "502 Unknown command 'XX'.");
        assert_eq!(help("noop x"), "502 Unknown command 'NOOP X'.");
        assert_eq!(help("ABOR"), "502 Unknown command 'ABOR'.");
        assert!(help("SITE").contains("| SITE TRNC <sp> length <sp> path|"));
    }

    #[test]
    fn help_leaves_out_commands_that_are_not_allowed() {
        let allowed = |verb: &str| verb != "ALLO" && verb != "SITE FAULT";
        assert_eq!(reply(Some("ALLO".into()), allowed).to_string(), "502 Unknown command 'ALLO'.");
        assert!(!reply(Some("SITE".into()), allowed).to_string().contains("FAULT"));
        assert!(!reply(None, allowed).to_string().contains("ALLO"));
    }
}
