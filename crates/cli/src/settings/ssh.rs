//! The settings of sshftp://.

use super::Settings;

/// Splits the text into words as a shell would; no shell is started.
pub(super) fn program(settings: &mut Settings, text: &str) -> Result<(), String> {
    let words = shlex::split(text).ok_or_else(|| format!("{text:?}: a quote is not closed"))?;
    settings.options.ssh.program = words.into_iter().map(Into::into).collect();
    Ok(())
}

pub(super) fn show_program(settings: &Settings) -> String {
    let words = settings.options.ssh.program.iter().map(|word| word.to_string_lossy());
    let quoted = words.map(|word| shlex::try_quote(&word).map(String::from).unwrap_or_default());
    quoted.collect::<Vec<_>>().join(" ")
}

pub(super) fn remote(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.ssh.remote_command = (!text.is_empty()).then(|| text.to_owned());
    Ok(())
}

pub(super) fn show_remote(settings: &Settings) -> String {
    settings.options.ssh.remote_command.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn program_is_split_into_words() {
        let mut settings = Settings::default();
        program(&mut settings, "ssh -F 'a b' -o X=Y").unwrap();
        assert_eq!(settings.options.ssh.program, ["ssh", "-F", "a b", "-o", "X=Y"]);
        let shown = show_program(&settings);
        let mut again = Settings::default();
        program(&mut again, &shown).unwrap();
        assert_eq!(again.options.ssh, settings.options.ssh);
        assert!(program(&mut settings, "ssh 'open").is_err());
    }
}
