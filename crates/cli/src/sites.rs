//! Names for servers: `[sites.NAME]` of the configuration files, and `NAME:PATH` in place of a URL.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use bstr::{BString, ByteSlice};
use ropewalk_client::{Location, RelayedLogin, parse_location};
use ropewalk_protocol::scitag::{SciTag, split_flow};
use ropewalk_protocol::url::{Target, Url};

use crate::credentials::Side;
use crate::exit::usage;
use crate::habits;
use crate::settings::{SYSTEM_FILE, Setting, text_of, user_file};
use crate::via;

/// Reserved words, which have another meaning before a colon.
const TAKEN: [&str; 9] = ["file", "ftp", "ftpes", "ftps", "gsiftp", "null", "sshftp", "zero", "http"];
/// Settings that exist for each end of a copy, and their names there.
const OF_ENDS: [(&str, &str, &str); 3] = [
    ("credential", "source-credential", "destination-credential"),
    ("password-file", "source-password-file", "destination-password-file"),
    ("server-subject", "source-subject", "destination-subject"),
];

/// A named server, and the settings that apply to operations there.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) name: String,
    pub(crate) url: Url,
    pub(crate) settings: Vec<(&'static str, String)>,
}

/// The configured sites by their names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sites(pub(crate) BTreeMap<String, Site>);

impl Sites {
    /// Loads the sites of the system's file and of the user's file, which override those of the
    /// same name.
    ///
    /// # Errors
    /// A file cannot be read, or a site in it is invalid.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let mut sites = Self::default();
        for path in
            [Some(PathBuf::from(SYSTEM_FILE)), user_file(|name| env::var_os(name))].into_iter().flatten()
        {
            // Errors of the file as a whole are reported when its settings are read.
            let text = fs::read_to_string(&path).unwrap_or_default();
            if let Some(toml::Value::Table(table)) =
                text.parse::<toml::Table>().ok().and_then(|mut t| t.remove("sites"))
            {
                sites.add(&path, &table)?;
            }
        }
        Ok(sites)
    }

    fn add(&mut self, file: &Path, table: &toml::Table) -> anyhow::Result<()> {
        for (name, value) in table {
            let wrong = |problem: String| usage(format!("{}: sites.{name}: {problem}", file.display()));
            let site = value.as_table().ok_or_else(|| wrong("expected a table".to_owned()))?;
            self.0.insert(name.clone(), Site::new(name, site).map_err(wrong)?);
        }
        Ok(())
    }

    /// The same as [`parse_location`], but also accepts `NAME:PATH` of a site, and then returns the
    /// site as well.
    fn parse(&self, given: &OsStr) -> anyhow::Result<(Location, Option<Site>)> {
        let Some((name, path)) = split(given) else { return Ok((parse_location(given)?, None)) };
        if let Some(site) = self.0.get(name) {
            return Ok((Location::Remote(site.place(path)), Some(site.clone())));
        }
        let here = Path::new(given);
        let parent = here.parent().filter(|parent| !parent.as_os_str().is_empty());
        // A local file of that name exists, or could be created.
        if fs::symlink_metadata(here).is_ok() || parent.is_none_or(Path::exists) {
            return Ok((parse_location(given)?, None));
        }
        Err(usage(format!(
            "{0}: there is no such file, and no site {name}: write\n  [sites.{name}]\n  url = \"gsiftp://SERVER/\"\n\
             into config.toml (`ropewalk config path` prints its name); for a log-in with ssh use {1}; ./{0} is a local \
             file",
            given.to_string_lossy(),
            habits::url(name, &path.to_str_lossy())
        )))
    }
}

/// Returns the name before the first colon, if it can be a name.
fn split(given: &OsStr) -> Option<(&str, &[u8])> {
    let (name, path) = given.as_bytes().split_once_str(":")?;
    let name = name.to_str().ok().filter(|name| is_name(name))?;
    Some((name, path)).filter(|_| !path.starts_with(b"//"))
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.chars().all(plain) && !TAKEN.contains(&&*name.to_ascii_lowercase())
}

impl Site {
    fn new(name: &str, table: &toml::Table) -> Result<Self, String> {
        if !is_name(name) {
            return Err(
                "a site's name has letters, digits, `-`, `_` and `.`, and is not a URL scheme".to_owned()
            );
        }
        let mut site = Self { name: name.to_owned(), url: url_of(table)?, settings: Vec::new() };
        for (key, value) in table.iter().filter(|(key, _)| *key != "url") {
            let text = text_of(value).map_err(|problem| format!("{key}: {problem}"))?;
            if key == "user" {
                site.url.user = Some(BString::from(text));
                continue;
            }
            let setting = Setting::find(key).filter(|setting| !setting.is_of_an_end());
            let setting = setting.ok_or_else(|| {
                format!(
                    "unknown setting {key:?}; a site has url, user, and settings of `ropewalk config show`"
                )
            })?;
            setting.check(&text).map_err(|problem| format!("{key}: {problem}"))?;
            site.settings.push((setting.key, text));
        }
        Ok(site)
    }

    /// The URL of this path beneath the site's URL.
    fn place(&self, path: &[u8]) -> Url {
        let mut url = self.url.clone();
        let within = path.trim_start_with(|c| c == '/');
        if !within.is_empty() {
            let end = url.path.trim_end_with(|c| c == '/').len();
            url.path.truncate(end);
            url.path.push(b'/');
            url.path.extend_from_slice(within);
        }
        url
    }
}

fn url_of(table: &toml::Table) -> Result<Url, String> {
    let text = table.get("url").and_then(toml::Value::as_str);
    let text = text.ok_or_else(|| "expected url = \"gsiftp://SERVER/\"".to_owned())?;
    match parse_location(text) {
        Ok(Location::Remote(url)) if url.password.is_some() => {
            Err("url: leave the password out, and name a password-file".to_owned())
        }
        Ok(Location::Remote(url)) => Ok(url),
        Ok(_) => Err(format!("url: {text:?} is not the URL of a server")),
        Err(error) => Err(format!("url: {error}")),
    }
}

/// The servers that a command names, and at which end: configured sites, and log-ins at servers
/// behind relays.
#[derive(Clone, Debug, Default)]
pub struct Used {
    pub(crate) sites: Vec<(Side, Site)>,
    pub hops: Vec<(Side, RelayedLogin)>,
    /// The SciTag at the end of a URL (`?scitag.flow=147`).
    pub(crate) scitag: Option<SciTag>,
}

impl Used {
    /// Parses a location with [`parse_location`] or as `NAME:PATH` of a site, which is recorded. So
    /// are log-ins in the path of a relay, and a SciTag at the end of a URL, which are removed from
    /// it.
    ///
    /// # Errors
    /// The text names no location, the configured sites are invalid, or two URLs have different
    /// tags.
    pub fn parse(&mut self, side: Side, given: impl AsRef<OsStr>) -> anyhow::Result<Location> {
        let given = given.as_ref();
        habits::check_place(given)?;
        let (given, tag) = self.without_tag(given)?;
        self.scitag = tag.or(self.scitag);
        let mut location = if split(given).is_none() {
            parse_location(given)?
        } else {
            let (location, site) = Sites::load()?.parse(given)?;
            self.sites.extend(site.map(|site| (side, site)));
            location
        };
        if let Location::Remote(url) = &mut location {
            self.hops.extend(via::take_log_ins(url)?.into_iter().map(|hop| (side, hop)));
        }
        Ok(location)
    }

    /// A local file may have any name.
    fn without_tag<'a>(&self, given: &'a OsStr) -> anyhow::Result<(&'a OsStr, Option<SciTag>)> {
        let is_of_site = match split(given) {
            Some((name, _)) => Sites::load()?.0.contains_key(name),
            None => false,
        };
        if !is_of_site && !given.to_str().is_some_and(Target::looks_like_url) {
            return Ok((given, None));
        }
        let wrong = |problem: String| usage(format!("{}: {problem}", given.to_string_lossy()));
        let (rest, tag) = split_flow(given.as_bytes()).map_err(|error| wrong(error.to_string()))?;
        match (self.scitag, tag) {
            (Some(other), Some(tag)) if other != tag => {
                Err(wrong(format!("the SciTag of another URL is {other}, and a copy has one")))
            }
            _ => Ok((OsStr::from_bytes(rest), tag)),
        }
    }

    /// The settings of all used sites, each with its site.
    ///
    /// # Errors
    /// Two sites have contradictory settings.
    pub fn settings(&self) -> anyhow::Result<Vec<(&'static str, &str, &str)>> {
        let mut all: Vec<(&'static str, &str, &str)> = Vec::new();
        for (side, site) in &self.sites {
            for (key, text) in &site.settings {
                let of_ends = OF_ENDS.iter().find(|(common, ..)| common == key);
                let key = match (side, of_ends) {
                    (Side::Source, Some((_, source, _))) => source,
                    (Side::Destination, Some((_, _, destination))) => destination,
                    _ => key,
                };
                match all.iter().find(|(known, ..)| known == key) {
                    None => all.push((key, text, &site.name)),
                    Some((_, same, _)) if same == text => {}
                    Some((_, _, other)) => {
                        return Err(usage(format!(
                            "sites {other} and {} have different settings of {key}: they cannot be used in one command",
                            site.name
                        )));
                    }
                }
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sites(text: &str) -> anyhow::Result<Sites> {
        let mut sites = Sites::default();
        sites.add(Path::new("/c.toml"), &text.parse().unwrap())?;
        Ok(sites)
    }

    #[test]
    fn tag_at_the_end_of_a_url_is_taken() {
        let mut used = Used::default();
        let mut parse = |text: &str| used.parse(Side::Source, text).map(|place| place.path().to_string());
        assert_eq!(parse("gsiftp://h/f?scitag.flow=147").unwrap(), "/f");
        assert_eq!(parse("gsiftp://h/f?scitag.flow=x").unwrap(), "/f?scitag.flow=x");
        // An escaped question mark belongs to the name, and so does any of a local file.
        assert_eq!(parse("gsiftp://h/f%3Fscitag.flow=131").unwrap(), "/f?scitag.flow=131");
        assert_eq!(parse("./f?scitag.flow=131").unwrap(), "./f?scitag.flow=131");
        assert!(parse("gsiftp://h/f?scitag.flow=64").unwrap_err().to_string().contains("65 to 65535"));
        assert!(parse("gsiftp://h/f?scitag.flow=131").unwrap_err().to_string().contains("147"));
        assert_eq!(used.scitag.map(SciTag::number), Some(147));
    }

    const TWO: &str = "[cern]\nurl = \"gsiftp://dtn.example.ch:2811/data/\"\nuser = \"alice\"\ncredential = \"/a\"\n\
                       data-protection = \"private\"\n[a]\nurl = \"ftp://h\"\ncredential = \"/b\"\nstreams = 4\n";

    #[test]
    fn site_name_with_path_is_parsed_as_url() {
        let sites = sites(TWO).unwrap();
        let place = |given: &str| match sites.parse(given.as_ref()).unwrap().0 {
            Location::Remote(url) => url.to_string(),
            other => format!("{other:?}"),
        };
        for (given, path) in [
            ("cern:", "data/"),
            ("cern:/", "data/"),
            ("cern:x/y", "data/x/y"),
            ("cern:/x/*.h5", "data/x/*.h5"),
            ("cern:/d/", "data/d/"),
            ("cern:/a b:c", "data/a b:c"),
        ] {
            let Location::Remote(url) = sites.parse(given.as_ref()).unwrap().0 else { panic!("{given}") };
            assert_eq!((&*url.host, url.port, url.user), ("dtn.example.ch", 2811, Some("alice".into())));
            assert_eq!(url.path, format!("/{path}"), "{given}");
        }
        assert_eq!(place("a:/x"), "ftp://h/x");
        // The bytes of a path are not changed.
        let raw = OsStr::from_bytes(b"a:\xff");
        assert!(matches!(sites.parse(raw).unwrap().0, Location::Remote(url) if url.path == b"/\xff"[..]));
    }

    #[test]
    fn other_names_are_parsed_as_locations() {
        let sites = sites(TWO).unwrap();
        for local in ["./cern:x", "Cern:x", "12:30.txt", "d/cern:x", "cern", "b:x"] {
            assert_eq!(sites.parse(local.as_ref()).unwrap().0, Location::Local(local.into()), "{local}");
        }
        assert!(matches!(sites.parse("zero:1K".as_ref()).unwrap().0, Location::Measure { size: 1024 }));
        assert!(matches!(sites.parse("ftp://cern/x".as_ref()).unwrap().0, Location::Remote(_)));
        let error = sites.parse("desy:/x".as_ref()).unwrap_err().to_string();
        assert!(error.contains("[sites.desy]\n") && error.contains("./desy:/x"), "{error}");
        let directory = tempfile::tempdir().unwrap();
        let there = directory.path().join("desy:");
        fs::create_dir(&there).unwrap();
        assert!(matches!(sites.parse(there.join("x").as_os_str()).unwrap().0, Location::Local(_)));
    }

    #[test]
    fn settings_of_sites_apply_to_their_ends() {
        let sites = sites(TWO).unwrap();
        let used = |names: &[(Side, &str)]| {
            let sites = names.iter().map(|(side, name)| (*side, sites.0[*name].clone())).collect();
            Used { sites, ..Used::default() }
        };
        let copy = used(&[(Side::Source, "cern"), (Side::Destination, "a"), (Side::Source, "cern")]);
        assert_eq!(
            copy.settings().unwrap(),
            [
                ("source-credential", "/a", "cern"),
                ("data-protection", "private", "cern"),
                ("destination-credential", "/b", "a"),
                ("streams", "4", "a")
            ]
        );
        assert_eq!(used(&[(Side::Only, "a")]).settings().unwrap()[0], ("credential", "/b", "a"));
        let error = used(&[(Side::Only, "a"), (Side::Only, "cern")]).settings().unwrap_err().to_string();
        assert!(error.contains("sites a and cern have different settings of credential"), "{error}");
    }

    #[test]
    fn invalid_site_is_named() {
        for (text, expected) in [
            ("cern = \"gsiftp://h/\"", "/c.toml: sites.cern: expected a table"),
            ("[cern]\nuser = \"a\"", "sites.cern: expected url ="),
            ("[cern]\nurl = \"/data\"", "is not the URL of a server"),
            ("[cern]\nurl = \"ftp://u:p@h/\"", "leave the password out"),
            ("[cern]\nurl = \"ftp://h/\"\nstream = 1", "unknown setting \"stream\""),
            ("[cern]\nurl = \"ftp://h/\"\nsource-credential = \"/x\"", "unknown setting"),
            ("[cern]\nurl = \"ftp://h/\"\nstreams = 0", "sites.cern: streams: "),
            ("[zero]\nurl = \"ftp://h/\"", "is not a URL scheme"),
            ("[\"a/b\"]\nurl = \"ftp://h/\"", "a site's name has"),
        ] {
            let error = sites(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
