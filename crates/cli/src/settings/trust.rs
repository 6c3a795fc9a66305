//! Settings of trust in servers, and of the protection of data.

use ropewalk_client::{DataProtection, NoFingerprint};

use super::{Settings, ends};

pub(super) fn authorities(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.trust.authorities = (!text.is_empty()).then(|| text.into());
    Ok(())
}

pub(super) fn revocations(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.trust.revocations = (!text.is_empty()).then(|| text.into());
    Ok(())
}

pub(super) fn subject(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.trust.server_subject = ends::subject(text)?;
    Ok(())
}

pub(super) fn show_subject(settings: &Settings) -> String {
    settings.options.trust.server_subject.clone().unwrap_or_default()
}

pub(super) fn fingerprint(settings: &mut Settings, text: &str) -> Result<(), String> {
    let text = text.trim();
    let given = (!text.is_empty()).then(|| text.parse().map_err(|e: NoFingerprint| e.to_string()));
    settings.options.trust.fingerprint = given.transpose()?;
    Ok(())
}

pub(super) fn show_fingerprint(settings: &Settings) -> String {
    settings.options.trust.fingerprint.map(|fingerprint| fingerprint.to_string()).unwrap_or_default()
}

pub(super) fn data_protection(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.data_security.protection = match text {
        "auto" => DataProtection::Auto,
        "clear" => DataProtection::Clear,
        "safe" => DataProtection::Safe,
        "private" => DataProtection::Private,
        _ => return Err(format!("{text:?}: expected auto, clear, safe or private")),
    };
    Ok(())
}

pub(super) fn show_data_protection(settings: &Settings) -> String {
    match settings.options.data_security.protection {
        DataProtection::Auto => "auto",
        DataProtection::Clear => "clear",
        DataProtection::Safe => "safe",
        DataProtection::Private => "private",
    }
    .to_owned()
}
