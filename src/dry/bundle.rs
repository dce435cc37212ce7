// SPDX-License-Identifier: Apache-2.0
//! A bundle without an engine: its document, and the pod and container that plugins receive for it.
//! On request, the document is replaced in one step.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::describe::{self, Spec};
use crate::engine::{self, Role};
use crate::error::{Context, Result};
use crate::files::{self, Original};
use crate::host::Host;
use crate::plugin::api;
use crate::sources::Sources;
use crate::text::printable;

/// The document of every bundle (OCI runtime-spec, "Filesystem Bundle").
const DOCUMENT: &str = "config.json";

/// A bundle that has been read.
pub(super) struct DryRunBundle {
    dir: OwnedFd,
    path: PathBuf,
    original: Original,
}

/// A bundle as its files describe it, without an engine.
pub(super) struct DescribedBundle {
    pub(super) role: Role,
    pub(super) pod: api::PodSandbox,
    pub(super) container: api::Container,
    /// The engine that the bundle's files indicate, and whether a tenant may have chosen it.
    pub(super) origin: (String, bool),
}

impl DryRunBundle {
    /// Reads the document of the bundle at `path`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let dir = files::open_dir(path)?;
        let original =
            files::read_at(&dir, DOCUMENT).doing(|| format!("the bundle {}", path.display()))?;
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { dir, path, original })
    }

    pub(super) fn document(&self) -> &[u8] {
        &self.original.bytes
    }

    /// Returns the default container ID: the bundle directory's name, as with engines.
    pub(super) fn id(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Returns the pod and container that plugins receive for the bundle, with the container's role
    /// and the pod's origin.
    ///
    /// # Errors
    /// Fails when the document is not an OCI spec.
    pub(super) fn describe(
        &self,
        id: &str,
        host: &Host,
        config: &Config,
    ) -> Result<DescribedBundle> {
        let spec = Spec::parse(self.document())?;
        let bundle = self.path.to_string_lossy();
        let nobody: &[Vec<u8>] = &[];
        let (parent, grandparent) = (nobody, nobody);
        let call = engine::CallerInfo { id, bundle: &bundle, parent, grandparent, variables: &[] };
        let told = spec.for_engine();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.doing(|| "starting the event loop")?;
        let mut facts = runtime.block_on(Sources::default().facts(host, &call, &told));
        engine::doubt_sandbox(&mut facts, &told);
        facts.judge(config.exemptions());
        facts.name_namespace(&config.default_namespace);
        Ok(DescribedBundle {
            role: facts.role,
            pod: describe::pod(&facts, &spec),
            container: describe::container(&facts, &spec),
            origin: (facts.engine.name().to_owned(), facts.is_doubtful()),
        })
    }

    /// Replaces the document with `bytes`.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<()> {
        let new = format!(".{DOCUMENT}.nri-runc.{}", std::process::id());
        files::remove_at(&self.dir, &new);
        files::create_at(&self.dir, &new, bytes, &self.original)?;
        let placed = files::exchange_at(&self.dir, &new, DOCUMENT);
        // The name `new` now has the old document, or the new one if the exchange failed.
        files::remove_at(&self.dir, &new);
        placed
    }

    /// Formats the changes as `diff -u` does. A document on one line, as engines write it, is
    /// indented first.
    pub(super) fn diff(&self, new: &[u8]) -> String {
        let is_laid_out = self.document().iter().filter(|byte| **byte == b'\n').count() > 1;
        let (old, new) = if is_laid_out {
            (lossy(self.document()), lossy(new))
        } else {
            (laid_out(self.document()), laid_out(new))
        };
        let name = printable(&self.path.join(DOCUMENT).display().to_string());
        similar::TextDiff::from_lines(&old, &new)
            .unified_diff()
            .header(&name, &format!("{name} (adjusted)"))
            .to_string()
    }
}

fn lossy(document: &[u8]) -> String {
    String::from_utf8_lossy(document).into_owned()
}

fn laid_out(document: &[u8]) -> String {
    let value = serde_json::from_slice::<serde_json::Value>(document);
    let text = value.and_then(|value| serde_json::to_string_pretty(&value));
    text.map_or_else(|_| lossy(document), |text| text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(document: &str) -> (tempfile::TempDir, DryRunBundle) {
        let temp = tempfile::tempdir().unwrap();
        files::replace(&temp.path().join(DOCUMENT), document.as_bytes()).unwrap();
        let bundle = DryRunBundle::open(temp.path()).unwrap();
        (temp, bundle)
    }

    #[test]
    fn a_document_on_one_line_is_indented_for_the_diff() {
        let (_temp, bundle) = bundle("{\"hostname\":\"a\",\"ociVersion\":\"1.0.2\"}");
        let diff = bundle.diff(b"{\"hostname\":\"b\",\"ociVersion\":\"1.0.2\"}");
        assert!(diff.contains("\n-  \"hostname\": \"a\",\n+  \"hostname\": \"b\",\n"), "{diff}");
    }

    #[test]
    fn a_document_of_several_lines_is_compared_unchanged() {
        let (_temp, bundle) = bundle("{\n\"a\"  : 1,\n\"b\":2\n}\n");
        let diff = bundle.diff(b"{\n\"a\"  : 1,\n\"b\":3\n}\n");
        assert!(diff.contains("\n \"a\"  : 1,\n-\"b\":2\n+\"b\":3\n"), "{diff}");
        assert_eq!(bundle.diff(bundle.document()), "");
    }

    #[test]
    fn writing_keeps_the_mode_and_leaves_nothing_behind() {
        use std::os::unix::fs::PermissionsExt;
        let (temp, bundle) = bundle("{}");
        bundle.write(b"{\"hostname\":\"b\"}").unwrap();
        let path = temp.path().join(DOCUMENT);
        assert_eq!(std::fs::read(&path).unwrap(), b"{\"hostname\":\"b\"}");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_invalid_bundle_is_an_error_that_names_it() {
        let temp = tempfile::tempdir().unwrap();
        let error = DryRunBundle::open(temp.path()).err().unwrap().to_string();
        assert!(error.contains(&temp.path().display().to_string()), "{error}");
        assert!(DryRunBundle::open(&temp.path().join("nowhere")).is_err());
    }

    #[test]
    fn an_invalid_document_cannot_be_described() {
        let (_temp, bundle) = bundle("5");
        assert!(bundle.describe("c0", &Host::default(), &Config::default()).is_err());
    }
}
