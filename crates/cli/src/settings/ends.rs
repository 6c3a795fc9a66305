//! Settings of log-ins that may differ between the two ends of a copy.

use std::path::PathBuf;

use ropewalk_client::{DataCredential, EndOptions};
use ropewalk_protocol::space::is_token;
use ropewalk_protocol::stack::StackSpec;

use super::Settings;

pub(super) fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

pub(super) fn subject(text: &str) -> Result<Option<String>, String> {
    // A principal (`host/dtn.example.org@EXAMPLE.ORG`) for log-ins with Kerberos.
    if !text.is_empty() && !text.starts_with('/') && !text.contains('@') {
        return Err(format!(
            "{text:?}: expected a subject such as /O=Grid/CN=host/dtn.example.org, or a principal such as \
             host/dtn.example.org@EXAMPLE.ORG"
        ));
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

pub(super) fn password_file(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.password_files.common = path(text);
    Ok(())
}

pub(super) fn source_password_file(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.password_files.source = path(text);
    Ok(())
}

pub(super) fn destination_password_file(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.password_files.destination = path(text);
    Ok(())
}

pub(super) fn source_credential(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.source.credential = path(text);
    Ok(())
}

pub(super) fn destination_credential(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.destination.credential = path(text);
    Ok(())
}

pub(super) fn source_subject(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.source.server_subject = subject(text)?;
    Ok(())
}

pub(super) fn destination_subject(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.destination.server_subject = subject(text)?;
    Ok(())
}

pub(super) fn show_credential(end: &EndOptions) -> String {
    end.credential.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
}

pub(super) fn show_subject(end: &EndOptions) -> String {
    end.server_subject.clone().unwrap_or_default()
}

fn parsed_stack(text: &str) -> Result<Option<StackSpec>, String> {
    StackSpec::parse(text.as_bytes()).map_err(|error| error.to_string())
}

pub(super) fn stack(settings: &mut Settings, text: &str) -> Result<(), String> {
    let auto = text.eq_ignore_ascii_case("auto");
    settings.options.data.stack = if auto { None } else { parsed_stack(text)? };
    settings.options.tuning.choose_stack = auto;
    Ok(())
}

pub(super) fn source_stack(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.source.stack = parsed_stack(text)?;
    Ok(())
}

pub(super) fn destination_stack(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.destination.stack = parsed_stack(text)?;
    Ok(())
}

pub(super) fn disk_stack(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.data.disk_stack = parsed_stack(text)?;
    Ok(())
}

fn token(text: &str) -> Result<Option<String>, String> {
    match text {
        "" => Ok(None),
        token if is_token(token.as_bytes()) => Ok(Some(token.to_owned())),
        _ => Err("expected the token of a reservation: up to 64 visible ASCII characters".into()),
    }
}

pub(super) fn space_token(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.destination.space_token = token(text)?;
    Ok(())
}

pub(super) fn source_slots_token(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.source.slots_token = token(text)?;
    Ok(())
}

pub(super) fn destination_slots_token(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.destination.slots_token = token(text)?;
    Ok(())
}

pub(super) fn show_slots_token(end: &EndOptions) -> String {
    end.slots_token.clone().unwrap_or_default()
}

pub(super) fn show_space_token(settings: &Settings) -> String {
    settings.options.login.destination.space_token.clone().unwrap_or_default()
}

pub(super) fn source_disk_stack(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.source.disk_stack = parsed_stack(text)?;
    Ok(())
}

pub(super) fn destination_disk_stack(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.destination.disk_stack = parsed_stack(text)?;
    Ok(())
}

pub(super) fn show_common_stack(settings: &Settings) -> String {
    match settings.options.tuning.choose_stack {
        true => "auto".into(),
        false => show_stack(settings.options.data.stack.as_ref()),
    }
}

pub(super) fn show_stack(stack: Option<&StackSpec>) -> String {
    stack.map_or_else(|| "default".into(), StackSpec::to_string)
}

/// `auto` makes a fresh one, as with GCT's `-data-cred`.
pub(crate) fn data_credential(text: &str) -> DataCredential {
    match text {
        "" | "login" => DataCredential::Usual,
        "auto" => DataCredential::Fresh,
        path => DataCredential::File(path.into()),
    }
}

pub(super) fn set_data_credential(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.data_security.credential = data_credential(text);
    Ok(())
}

pub(super) fn show_data_credential(settings: &Settings) -> String {
    match &settings.options.data_security.credential {
        DataCredential::Usual => "login".into(),
        DataCredential::Fresh => "auto".into(),
        DataCredential::File(path) => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_of_each_end_are_shown_as_they_were_set() {
        let mut settings = Settings::default();
        assert_eq!(stack(&mut settings, "TCP:sndbuf=65536,rate:rate=10M"), Ok(()));
        assert_eq!(destination_stack(&mut settings, "tcp"), Ok(()));
        assert_eq!(show_stack(settings.options.data.stack.as_ref()), "tcp:sndbuf=65536,rate:rate=10M");
        assert_eq!(show_stack(settings.options.login.source.stack.as_ref()), "default");
        assert_eq!(show_stack(settings.options.login.destination.stack.as_ref()), "tcp");
        assert!(source_stack(&mut settings, "tcp,").is_err());
        assert_eq!(stack(&mut settings, "auto"), Ok(()));
        assert_eq!(
            (show_common_stack(&settings), settings.options.data.stack.clone()),
            ("auto".into(), None)
        );
        assert_eq!(stack(&mut settings, "udt"), Ok(()));
        assert_eq!(
            (show_common_stack(&settings).as_str(), settings.options.tuning.choose_stack),
            ("udt", false)
        );
    }

    #[test]
    fn data_credential_values_are_parsed() {
        let mut settings = Settings::default();
        for text in ["login", "auto", "/some/file"] {
            assert_eq!(set_data_credential(&mut settings, text), Ok(()));
            assert_eq!(show_data_credential(&settings), text);
        }
        assert!(subject("CN=x").is_err());
    }
}
