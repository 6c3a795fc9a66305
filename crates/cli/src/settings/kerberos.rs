//! Settings of log-ins with certificates or tickets.

use ropewalk_client::Authentication;

use super::Settings;

pub(super) fn set(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.authentication = match text {
        "auto" => Authentication::Auto,
        "gsi" => Authentication::Gsi,
        "kerberos" => Authentication::Kerberos,
        _ => return Err(format!("{text:?}: expected auto, gsi or kerberos")),
    };
    Ok(())
}

pub(super) fn show(settings: &Settings) -> String {
    match settings.options.login.authentication {
        Authentication::Auto => "auto",
        Authentication::Gsi => "gsi",
        Authentication::Kerberos => "kerberos",
    }
    .to_owned()
}

pub(super) fn set_services(settings: &mut Settings, text: &str) -> Result<(), String> {
    let names: Vec<String> = text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if let Some(bad) = names.iter().find(|name| name.contains(['/', '@', '\\'])) {
        return Err(format!("{bad:?}: expected the name of a service alone, as host"));
    }
    settings.options.login.kerberos_services = names;
    Ok(())
}

pub(super) fn show_services(settings: &Settings) -> String {
    settings.options.login.kerberos_services.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kerberos_names_are_parsed() {
        let mut settings = Settings::default();
        for text in ["gsi", "kerberos", "auto"] {
            assert_eq!(set(&mut settings, text), Ok(()));
            assert_eq!(show(&settings), text);
        }
        assert!(set(&mut settings, "krb5").is_err());
        assert_eq!(set_services(&mut settings, "ftp,host"), Ok(()));
        assert_eq!(show_services(&settings), "ftp,host");
        assert!(set_services(&mut settings, "host/a").is_err());
    }
}
