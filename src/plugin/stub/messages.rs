// SPDX-License-Identifier: Apache-2.0
//! Shortcuts for the messages that plugins write most, and the rule by which annotations of a
//! pod are meant for one container. Nothing here does I/O.

use super::super::api;

/// The annotation `key` of `pod` that is meant for the container called `container`, and the key
/// it was found under: `KEY/container.NAME`, else `KEY/pod`, else `KEY`. The first found counts
/// alone, even if it is empty: nothing is merged.
pub fn annotation<'a>(
    pod: &'a api::PodSandbox,
    container: &str,
    key: &str,
) -> Option<(String, &'a str)> {
    let scopes = [format!("{key}/container.{container}"), format!("{key}/pod"), key.to_owned()];
    let found = |key: String| pod.annotations.get(&key).map(|value| (key, value.as_str()));
    scopes.into_iter().find_map(found)
}

/// An environment variable.
pub fn env(key: &str, value: &str) -> api::KeyValue {
    api::KeyValue { key: key.to_owned(), value: value.to_owned(), ..api::KeyValue::default() }
}

/// An adjustment of nothing but resources.
pub fn resources(resources: api::LinuxResources) -> api::ContainerAdjustment {
    let linux = api::LinuxContainerAdjustment {
        resources: Some(resources).into(),
        ..api::LinuxContainerAdjustment::default()
    };
    api::ContainerAdjustment { linux: Some(linux).into(), ..api::ContainerAdjustment::default() }
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
    fn the_narrowest_scope_counts_alone_even_if_it_is_empty() {
        let all = [("k", "bare"), ("k/pod", "pod"), ("k/container.web", "")];
        assert_eq!(found(&all), under("k/container.web", ""));
        assert_eq!(found(&all[..2]), under("k/pod", "pod"));
        assert_eq!(found(&all[..1]), under("k", "bare"));
    }

    #[test]
    fn what_is_meant_for_another_container_or_key_is_not_found() {
        assert_eq!(found(&[("k/container.db", "x"), ("k/web", "x"), ("kk", "x")]), None);
    }
}
