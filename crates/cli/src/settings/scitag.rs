//! `--scitag`, `--fireflies` and the registry of names.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ropewalk_scitags::{Collector, InvalidRegistryUrl, RegistryCopy, RegistryUrl, SciTag};

use super::{Settings, ends};

/// The registry that the administrator of this host keeps up to date.
const SYSTEM_FILES: [&str; 2] = ["/var/cache/ropewalk/scitags.json", "/etc/ropewalk/scitags.json"];

/// A tag as given: names need the registry, which is read once all settings are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct SciTagSettings {
    name: String,
    registry: Option<PathBuf>,
    url: Option<RegistryUrl>,
}

impl SciTagSettings {
    /// The number of the tag.
    ///
    /// # Errors
    /// There is no registry, or it does not have the name.
    pub(crate) fn tag(&self) -> Result<Option<SciTag>, String> {
        if self.name.is_empty() {
            return Ok(None);
        }
        if let Ok(tag) = self.name.parse() {
            return Ok(Some(tag));
        }
        let variable = |name: &str| env::var_os(name);
        let usual = || usual_file(variable, Path::exists);
        // A copy that is fetched belongs to the user.
        let new = || own_file(variable).filter(|_| self.url.is_some());
        let Some(file) = self.registry.clone().or_else(usual).or_else(new) else {
            return Err(format!(
                "{:?}: names need a copy of https://scitags.org/api.json: name it with --scitag-registry, let it be \
                 fetched with --scitag-registry-url, or give the number 64 * experiment + activity",
                self.name
            ));
        };
        let copy = RegistryCopy { file, url: self.url.clone() };
        let found = copy.load().and_then(|registry| registry.find(&self.name));
        found.map(Some).map_err(|error| error.to_string())
    }
}

/// The registry in the usual places: the user's cache, then those of the host.
fn usual_file(
    variable: impl Fn(&str) -> Option<OsString>,
    exists: impl Fn(&Path) -> bool,
) -> Option<PathBuf> {
    own_file(variable).into_iter().chain(SYSTEM_FILES.map(PathBuf::from)).find(|path| exists(path))
}

/// The registry in the user's cache.
fn own_file(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    cache.map(|cache| cache.join("ropewalk/scitags.json"))
}

pub(super) fn set(settings: &mut Settings, text: &str) -> Result<(), String> {
    let text = text.trim();
    settings.scitag.name = match text {
        "off" | "none" => String::new(),
        text => text.to_owned(),
    };
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse::<SciTag>().map_err(|error| format!("{text:?}: {error}"))?;
    }
    Ok(())
}

pub(super) fn show(settings: &Settings) -> String {
    match settings.scitag.name.as_str() {
        "" => "off".to_owned(),
        name => name.to_owned(),
    }
}

pub(super) fn set_registry(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.scitag.registry = ends::path(text);
    Ok(())
}

pub(super) fn show_registry(settings: &Settings) -> String {
    super::values::show_path(settings.scitag.registry.as_ref())
}

pub(super) fn set_url(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.scitag.url = match text.trim() {
        "off" | "none" | "" => None,
        url => Some(url.parse().map_err(|error: InvalidRegistryUrl| error.to_string())?),
    };
    Ok(())
}

pub(super) fn show_url(settings: &Settings) -> String {
    settings.scitag.url.as_ref().map_or_else(|| "off".to_owned(), RegistryUrl::to_string)
}

pub(super) fn set_fireflies(settings: &mut Settings, text: &str) -> Result<(), String> {
    let names = text.split(',').map(str::trim).filter(|name| !matches!(*name, "" | "none"));
    let collectors: Result<Vec<Collector>, _> = names.map(str::parse).collect();
    settings.options.data.fireflies = collectors.map_err(|error| error.to_string())?;
    Ok(())
}

pub(super) fn show_fireflies(settings: &Settings) -> String {
    let names: Vec<_> = settings.options.data.fireflies.iter().map(Collector::to_string).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tag_by_number_needs_no_registry() {
        let mut settings = Settings::default();
        set(&mut settings, "132").unwrap();
        assert_eq!(settings.scitag.tag().unwrap().map(SciTag::number), Some(132));
        set(&mut settings, "off").unwrap();
        assert_eq!((settings.scitag.tag(), show(&settings).as_str()), (Ok(None), "off"));
        for wrong in ["64", "65536", "0"] {
            assert!(set(&mut settings, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tag_by_name_is_found_in_the_named_registry() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("api.json");
        let text = r#"{"experiments":[{"expName":"cms","expId":3,"activities":[]}]}"#;
        std::fs::write(&file, text).unwrap();
        let mut settings = Settings::default();
        set(&mut settings, "CMS/4").unwrap();
        set_registry(&mut settings, file.to_str().unwrap()).unwrap();
        assert_eq!(settings.scitag.tag().unwrap().map(SciTag::number), Some(3 * 64 + 4));
        set(&mut settings, "atlas").unwrap();
        assert!(settings.scitag.tag().unwrap_err().contains("atlas"));
    }

    #[test]
    fn registry_of_the_user_precedes_that_of_the_host() {
        let home = |name: &str| (name == "HOME").then(|| OsString::from("/h"));
        let found = usual_file(home, |_| true).unwrap();
        assert_eq!(found, Path::new("/h/.cache/ropewalk/scitags.json"));
        assert_eq!(usual_file(home, |path| path.starts_with("/etc")).unwrap(), Path::new(SYSTEM_FILES[1]));
        assert_eq!(usual_file(home, |_| false), None);
    }

    #[test]
    fn address_of_the_registry_is_checked() {
        let mut settings = Settings::default();
        assert_eq!(show_url(&settings), "off");
        set_url(&mut settings, "https://scitags.org/api.json").unwrap();
        assert_eq!(show_url(&settings), "https://scitags.org/api.json");
        assert!(set_url(&mut settings, "file:///etc/passwd").is_err());
        set_url(&mut settings, "off").unwrap();
        assert_eq!(settings.scitag.url, None);
    }

    #[test]
    fn fireflies_are_a_list_of_destinations() {
        let mut settings = Settings::default();
        set_fireflies(&mut settings, "peer, collector.example").unwrap();
        assert_eq!(show_fireflies(&settings), "peer,collector.example:10514");
        assert!(set_fireflies(&mut settings, "a b").is_err());
        set_fireflies(&mut settings, "none").unwrap();
        assert_eq!(show_fireflies(&settings), "none");
    }
}
