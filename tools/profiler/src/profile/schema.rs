//! The JSON Schema, generated from the types.

use schemars::{Schema, schema_for};

use super::Profile;

/// The schema of [`Profile`] (JSON Schema 2020-12).
pub fn profile_schema() -> Schema {
    schema_for!(Profile)
}

/// The schema as text, as it is stored in `profile.schema.json` of this crate.
///
/// # Errors
/// Serialising the schema failed. A test would show this.
pub fn schema_text() -> serde_json::Result<String> {
    serde_json::to_string_pretty(&profile_schema()).map(|text| text + "\n")
}
