//! The frame of a page: one file that loads nothing from elsewhere and has no scripts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::markup::Markup;

const STYLE: &str = include_str!("style.css");

/// Returns a whole document. The policy (CSP Level 3) allows the one style sheet by its hash, and
/// nothing else: even if text of a profile became markup, it could not run, load or send anything.
pub(in crate::report) fn page(title: &str, body: &Markup) -> String {
    let mut out = Markup::default();
    out.raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    let hash = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    // `attribute` escapes the quotes of the policy; browsers read the escaped form in the same way.
    let policy =
        format!("default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'");
    out.raw("<meta http-equiv=\"Content-Security-Policy\"").attribute("content", &policy).raw(">\n");
    out.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    out.raw("<meta name=\"referrer\" content=\"no-referrer\">\n");
    out.raw("<meta name=\"color-scheme\" content=\"light dark\">\n");
    out.raw("<title>").text(title).raw("</title>\n<style>").raw(STYLE).raw("</style></head>\n<body><main>\n");
    out.part(body);
    out.raw("\n</main></body></html>\n");
    out.finish()
}
