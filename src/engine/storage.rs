// SPDX-License-Identifier: Apache-2.0
//! The layout that CRI-O and Podman share: `…/overlay-containers/ID/userdata`, below the run root
//! and below the graph root, beside the records of all containers.

use base64::Engine as _;
use serde_json::Value;

use super::{CallerInfo, FetchedFacts, Image, conmon, digest, image, is_id, text};

/// Lists the directories that contain one folder per container, this bundle's first.
pub(super) fn homes(call: &CallerInfo<'_>) -> Vec<String> {
    let mut homes = Vec::new();
    let mut add = |userdata: &str| {
        let container = userdata.trim_end_matches('/').strip_suffix("/userdata");
        let home = container.and_then(|path| path.rsplit_once('/'));
        if let Some((home, _)) = home.filter(|(home, _)| !homes.iter().any(|known| known == home)) {
            homes.push(home.to_owned());
        }
    };
    add(call.bundle);
    if let Some(pid_file) = conmon::option(call, &["-p", "--container-pidfile"]) {
        add(pid_file.rsplit_once('/').map(|(folder, _)| folder).unwrap_or_default());
    }
    if let Some(folder) = conmon::option(call, &["--persist-dir"]) {
        add(&folder);
    }
    let roots = ["/run/containers/storage/", "/var/lib/containers/storage/"];
    for home in homes.clone() {
        for (from, to) in [(roots[0], roots[1]), (roots[1], roots[0])] {
            let other = home.replacen(from, to, 1);
            if other != home && !homes.contains(&other) {
                homes.push(other);
            }
        }
    }
    homes
}

/// Returns the possible paths of a file in another container's directory.
pub(super) fn beside(call: &CallerInfo<'_>, id: &str, file: &str) -> Vec<String> {
    let homes = if is_id(id) { homes(call) } else { Vec::new() };
    homes.iter().map(|home| format!("{home}/{id}/userdata/{file}")).collect()
}

/// Lists the files with records of all containers.
pub(super) fn records(call: &CallerInfo<'_>) -> Vec<String> {
    let files = ["volatile-containers.json", "containers.json"];
    let homes = homes(call);
    homes.iter().flat_map(|home| files.map(|file| format!("{home}/{file}"))).collect()
}

/// Returns the `metadata` of a container's record, which is JSON in a string.
pub(super) fn metadata(call: &CallerInfo<'_>, found: &FetchedFacts, id: &str) -> Option<Value> {
    records(call).iter().find_map(|path| {
        let all = found.json(path)?;
        let record = all.as_array()?.iter().find(|record| record["id"] == id)?;
        serde_json::from_str(record["metadata"].as_str()?).ok()
    })
}

/// Lists the files with records of all images, next to those of containers.
pub(super) fn image_records(call: &CallerInfo<'_>) -> Vec<String> {
    let homes = homes(call);
    let folders = homes.iter().filter_map(|home| home.strip_suffix("-containers"));
    folders.map(|driver| format!("{driver}-images/images.json")).collect()
}

/// Returns the digest of an image's latest manifest, from the records of all images.
pub(super) fn manifest_digest(
    call: &CallerInfo<'_>,
    image: &str,
    found: &FetchedFacts,
) -> Option<String> {
    text(&image_record(call, image, found)?, "/digest")
}

fn image_record(call: &CallerInfo<'_>, image: &str, found: &FetchedFacts) -> Option<Value> {
    image_records(call).iter().find_map(|path| {
        let all = found.json(path)?;
        all.as_array()?.iter().find(|record| record["id"] == image).cloned()
    })
}

/// Returns every manifest of an image that the storage keeps, each with its possible paths. A later
/// pull may add another manifest, while earlier containers keep the annotations of the older one.
/// `None` without a record of the image.
pub(super) fn all_manifests(
    call: &CallerInfo<'_>,
    image: &str,
    found: &FetchedFacts,
) -> Option<Vec<Vec<String>>> {
    let record = image_record(call, image, found)?;
    let names = record["big-data-names"].as_array()?.iter().filter_map(Value::as_str);
    let files = names.filter_map(|name| match name.strip_prefix("manifest")? {
        "" => Some(manifests(call, image)),
        digest if digest.split(':').all(is_id) => Some(image_files(call, image, &blob_name(name))),
        _ => None,
    });
    Some(files.collect())
}

/// Returns the possible paths of an image's latest manifest.
pub(super) fn manifests(call: &CallerInfo<'_>, image: &str) -> Vec<String> {
    image_files(call, image, "manifest")
}

/// Returns the possible paths of an image's configuration. Its digest, which the manifest names, is
/// usually the image's ID.
pub(super) fn image_configs(
    call: &CallerInfo<'_>,
    image: &str,
    found: &FetchedFacts,
) -> Vec<String> {
    let mut files = image_files(call, image, &blob_name(&format!("sha256:{image}")));
    let manifest = found.first(&manifests(call, image));
    let digest = manifest.and_then(image::config_digest);
    if let Some(digest) = digest.filter(|digest| digest.split(':').all(is_id)) {
        files.extend(image_files(call, image, &blob_name(&digest)));
    }
    files
}

fn image_files(call: &CallerInfo<'_>, image: &str, file: &str) -> Vec<String> {
    let homes = if is_id(image) { homes(call) } else { Vec::new() };
    let folders = homes.iter().filter_map(|home| home.strip_suffix("-containers"));
    folders.map(|driver| format!("{driver}-images/{image}/{file}")).collect()
}

/// Returns the file name of a blob in containers/storage. An ID's or digest's base64 has no `/`.
fn blob_name(name: &str) -> String {
    format!("={}", base64::engine::general_purpose::STANDARD.encode(name))
}

/// Returns the image that a record names.
pub(super) fn image(metadata: &Value) -> Option<Image> {
    let name = text(metadata, "/image-name");
    let config = text(metadata, "/image-id");
    (name.is_some() || config.is_some()).then(|| Image {
        name: name.unwrap_or_default(),
        config_digest: digest(&config.unwrap_or_default()),
        ..Image::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_storage_roots_are_searched_starting_with_the_bundles() {
        let bundle = "/run/containers/storage/overlay-containers/c/userdata";
        let call = CallerInfo { id: "c", bundle, parent: &[], grandparent: &[], variables: &[] };
        let told = beside(&call, "ab", "config.json");
        assert_eq!(
            told,
            [
                "/run/containers/storage/overlay-containers/ab/userdata/config.json",
                "/var/lib/containers/storage/overlay-containers/ab/userdata/config.json"
            ]
        );
        assert!(beside(&call, "../../etc", "config.json").is_empty());
    }

    #[test]
    fn an_image_configuration_is_stored_under_its_encoded_digest() {
        assert_eq!(blob_name("sha256:cf59"), "=c2hhMjU2OmNmNTk=");
        let ids = (0..=127_u8).map(char::from).filter(|one| is_id(&format!("a{one}")));
        let every: String = ids.chain([':']).collect::<String>().repeat(3);
        for start in 0..3 {
            assert!(!blob_name(&every[start..]).contains('/'));
        }
    }

    #[test]
    fn a_bundle_elsewhere_has_no_storage_folders() {
        let call =
            CallerInfo { id: "c", bundle: "/b", parent: &[], grandparent: &[], variables: &[] };
        assert!(homes(&call).is_empty());
    }
}
