//! `--token`

use ropewalk_client::TokenSource;

use super::Settings;

/// The setting names the place of the token, never the token itself: other users can see arguments.
pub(super) fn set(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.token = match text {
        "" => TokenSource::None,
        "auto" => TokenSource::Discover,
        // The beginning of a JSON object in base64: the text is a token. The error does not repeat
        // it.
        _ if text.starts_with("eyJ") && text.matches('.').count() == 2 => {
            return Err(
                "that is a token itself, which other users can see on the command line; put it into \
                 a file or into BEARER_TOKEN, and use --token auto"
                    .into(),
            );
        }
        path => TokenSource::File(path.into()),
    };
    Ok(())
}

pub(super) fn show(settings: &Settings) -> String {
    match &settings.options.login.token {
        TokenSource::None => String::new(),
        TokenSource::Discover => "auto".into(),
        TokenSource::File(path) => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_places_are_accepted_and_tokens_refused() {
        let mut settings = Settings::default();
        for text in ["", "auto", "/run/token", "eyJ.txt"] {
            assert_eq!(set(&mut settings, text), Ok(()));
            assert_eq!(show(&settings), text);
        }
        let error = set(&mut settings, "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.c2ln").err().unwrap_or_default();
        assert!(error.contains("other users can see") && !error.contains("eyJ"), "{error}");
    }
}
