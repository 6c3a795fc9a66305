//! The settings for servers with several data nodes.

use super::Settings;
use super::values::{auto, show_auto, show_size};
use crate::units::parse_size;

pub(super) fn stripes(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.data.stripes = match text {
        "off" => None,
        text => Some(auto(text).map_err(|error| format!("{error}, or off"))?),
    };
    Ok(())
}

pub(super) fn show_stripes(settings: &Settings) -> String {
    settings.options.data.stripes.map_or_else(|| "off".into(), show_auto)
}

pub(super) fn stripe_block_size(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.data.stripe_block = match text {
        "default" => None,
        "partitioned" => Some(0),
        size => match parse_size(size)? {
            0 => return Err("expected a size above 0, partitioned or default".into()),
            size => Some(size),
        },
    };
    Ok(())
}

pub(super) fn show_stripe_block_size(settings: &Settings) -> String {
    match settings.options.data.stripe_block {
        None => "default".into(),
        Some(0) => "partitioned".into(),
        Some(size) => show_size(size),
    }
}
