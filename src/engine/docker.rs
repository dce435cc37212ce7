// SPDX-License-Identifier: Apache-2.0
//! Docker: next to nothing is in the document. Name, labels, image and handler stand in the
//! container's folder below Docker's data root, which shows in the sources of its mounts. The
//! container is its own pod. Addresses are left out: at `create` the files show those of its
//! last run.

use serde_json::Value;

use super::{
    Call, Document, Engine, Facts, Found, Image, SeccompProfile, Wanted, digest, is_id, own, text,
    texts,
};

const DEFAULT_ROOT: &str = "/var/lib/docker";

pub(super) fn wanted(call: &Call<'_>, document: &Document<'_>) -> Wanted {
    Wanted::files(["config.v2.json", "hostconfig.json"].map(|file| path(call, document, file)))
}

fn path(call: &Call<'_>, document: &Document<'_>, file: &str) -> Option<String> {
    let folder = format!("/containers/{}/", call.id);
    let root = document.mounts.iter().find_map(|(_, source)| Some(source.split_once(&folder)?.0));
    let root = root.filter(|root| root.starts_with('/')).unwrap_or(DEFAULT_ROOT);
    is_id(call.id).then(|| format!("{root}{folder}{file}"))
}

pub(super) fn facts(
    engine: Engine,
    call: &Call<'_>,
    document: &Document<'_>,
    found: &Found,
) -> Facts {
    let mut facts = Facts::alone(engine, call);
    facts.pod.annotations = document.annotations.clone();
    facts.pod.uid = call.id.to_owned();
    let read = |file: &str| path(call, document, file).and_then(|path| found.json(&path));
    let mut said = document.annotations.clone();
    // A folder may be named like a container and hold something else.
    let config = read("config.v2.json").filter(|config| config["ID"] == call.id);
    if let Some(config) = config {
        if let Some(name) = text(&config, "/Name") {
            let name = name.trim_start_matches('/').to_owned();
            facts.pod.name.clone_from(&name);
            facts.container.name = name;
        }
        let labels = texts(config.pointer("/Config/Labels"));
        facts.container.image = text(&config, "/Config/Image").map(|name| Image {
            name,
            config_digest: digest(&text(&config, "/Image").unwrap_or_default()),
            ..Image::default()
        });
        said.extend(labels.clone());
        facts.pod.labels = labels.clone();
        facts.container.labels = labels;
    } else {
        let what = "Docker's config.v2.json of the container could not be read";
        facts.missing.push(format!("{what}: its name, labels and image are absent"));
    }
    if let Some(host) = read("hostconfig.json") {
        facts.pod.runtime_handler = text(&host, "/Runtime").unwrap_or_default();
        facts.container.seccomp = seccomp(&host, document.has_seccomp);
    }
    own::apply(&mut facts, &said);
    facts
}

/// Docker keeps the content of a profile that the user names, not its name.
fn seccomp(host: &Value, has_filter: bool) -> Option<SeccompProfile> {
    let said = host["SecurityOpt"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut named = said.filter_map(|said| said.strip_prefix("seccomp")?.get(1..));
    match named.next_back() {
        _ if !has_filter => Some(SeccompProfile::Unconfined),
        None | Some("builtin") => Some(SeccompProfile::RuntimeDefault),
        Some(_content) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_seccomp_profile_is_told_by_the_options_and_by_what_came_of_them() {
        let told = |said: &[&str], has_filter| seccomp(&json!({"SecurityOpt": said}), has_filter);
        let default = Some(SeccompProfile::RuntimeDefault);
        assert_eq!(told(&[], true), default);
        assert_eq!(seccomp(&json!({"SecurityOpt": null}), true), default);
        assert_eq!(told(&["label=disable", "seccomp=builtin"], true), default);
        assert_eq!(told(&["no-new-privileges", "seccomp={\"defaultAction\":1}"], true), None);
        for said in [&["seccomp=unconfined"][..], &["seccomp:unconfined"], &[]] {
            assert_eq!(told(said, false), Some(SeccompProfile::Unconfined), "{said:?}");
        }
    }
}
