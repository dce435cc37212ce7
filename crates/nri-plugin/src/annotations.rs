// SPDX-License-Identifier: Apache-2.0
//! Finds the annotation of a pod that applies to one container.

use nri_api as api;

/// Returns key and value of the pod's annotation `key` that applies to the container called `container`: the
/// first of `KEY/container.NAME`, `KEY/pod` and `KEY` that exists, even if its value is empty.
#[must_use]
pub fn annotation<'a>(
    pod: &'a api::PodSandbox,
    container: &str,
    key: &str,
) -> Option<(String, &'a str)> {
    let scopes = [format!("{key}/container.{container}"), format!("{key}/pod"), key.to_owned()];
    let found = |key: String| pod.annotations.get(&key).map(|value| (key, value.as_str()));
    scopes.into_iter().find_map(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(annotations: &[(&str, &str)]) -> Option<(String, String)> {
        let annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let pod = api::PodSandbox { annotations: annotations.collect(), ..Default::default() };
        annotation(&pod, "web", "k").map(|(key, value)| (key, value.to_owned()))
    }

    fn under(key: &str, value: &str) -> Option<(String, String)> {
        Some((key.to_owned(), value.to_owned()))
    }

    #[test]
    fn the_narrowest_scope_applies_even_if_its_value_is_empty() {
        let all = [("k", "bare"), ("k/pod", "pod"), ("k/container.web", "")];
        assert_eq!(found(&all), under("k/container.web", ""));
        assert_eq!(found(&all[..2]), under("k/pod", "pod"));
        assert_eq!(found(&all[..1]), under("k", "bare"));
    }

    #[test]
    fn annotations_for_another_container_are_not_found() {
        assert_eq!(found(&[("k/container.db", "x"), ("k/web", "x"), ("kk", "x")]), None);
    }
}
