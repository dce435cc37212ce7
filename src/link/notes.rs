// SPDX-License-Identifier: Apache-2.0
//! The notes that wrappers leave in the run directory about calls that the daemon did not handle. The next daemon reads
//! and removes them; `check` counts them.

use nri_transport::Blob;
use serde::{Deserialize, Serialize};

use super::WrapperRequest;
use crate::error::Result;

/// Folder of the run directory in which a wrapper records a command that bypassed the daemon.
pub(crate) const BYPASSED_DIR: &str = "bypassed";

/// File in [`BYPASSED_DIR`] with the number of notes that wrappers removed or did not write because
/// of the limits.
pub(crate) const DROPPED_NOTES: &str = "dropped";

/// Folder of the run directory in which a wrapper records its refusals without the daemon.
pub(crate) const REFUSED_DIR: &str = "refused";

/// A note about one call; `T` has the members of its kind.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct WrapperNote<T> {
    #[serde(default)]
    pub(crate) at: i64,
    pub(crate) verb: String,
    pub(crate) id: Option<String>,
    pub(crate) why: String,
    /// The frame with the wrapper's request; empty if it was too long for a note.
    #[serde(default)]
    pub(crate) question: NoteBytes,
    #[serde(flatten)]
    pub(crate) of_kind: T,
}

impl<T> WrapperNote<T> {
    /// Decodes the wrapper's request.
    ///
    /// # Errors
    /// Fails when the note has no request, or one of an unknown form.
    pub(crate) fn request(&self) -> Result<WrapperRequest> {
        WrapperRequest::decode(self.question.0.get(4..).unwrap_or_default())
    }
}

/// Members of a note about a call that bypassed the daemon.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Bypassed {
    pub(crate) root: Option<String>,
    pub(crate) bundle: Option<String>,
    pub(crate) runtime: String,
    /// The resources that an `update` requested.
    pub(crate) resources: Option<NoteBytes>,
}

/// Members of a note about a call that a wrapper refused.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) namespace: Option<String>,
    pub(crate) pod: Option<String>,
    pub(crate) name: Option<String>,
}

/// Bytes in a note, encoded as base64.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenBytes", into = "Blob")]
pub(crate) struct NoteBytes(pub(crate) Vec<u8>);

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenBytes {
    Text(Blob),
    /// The form of notes that earlier versions of the wrapper wrote.
    Numbers(Vec<u8>),
}

impl From<WrittenBytes> for NoteBytes {
    fn from(written: WrittenBytes) -> Self {
        match written {
            WrittenBytes::Text(Blob(bytes)) | WrittenBytes::Numbers(bytes) => Self(bytes),
        }
    }
}

impl From<NoteBytes> for Blob {
    fn from(bytes: NoteBytes) -> Self {
        Self(bytes.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_note_are_read_in_both_forms() {
        let bytes: Vec<u8> = (0..=255).collect();
        let written = [serde_json::json!(NoteBytes(bytes.clone())), serde_json::json!(bytes)];
        assert!(written[0].is_string());
        for written in written {
            assert_eq!(serde_json::from_value::<NoteBytes>(written).unwrap().0, bytes);
        }
        for wrong in ["\"%\"", "[256]", "[-1]", "{}", "7"] {
            assert!(serde_json::from_str::<NoteBytes>(wrong).is_err(), "{wrong}");
        }
    }
}
