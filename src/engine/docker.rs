// SPDX-License-Identifier: Apache-2.0
//! Docker: the document has almost no data. Name, labels, image and handler are in the container's
//! directory below Docker's data root. The data root is found by the path of the container's root
//! file system, then by the container's mounts; then the default is tried, and last the settings of
//! running daemons. Mounts of another container (`--network container:X`) are not used. The container is its
//! own pod. Addresses are omitted, because at `create` the files have those of the container's last
//! run. Labels come from the operator and the image, and Docker also records the image's;
//! nri-runc's keys are accepted only if they are not among these.

use serde_json::Value;

use super::image::ImageWords;
use super::{
    CallerInfo, DetectedEngine, Dockerd, Document, Facts, FetchedFacts, Image, SeccompProfile,
    Seen, Wanted, digest, dockerd, image, is_id, own, text, texts,
};

const CONFIG: &str = "config.v2.json";
const HOST_CONFIG: &str = "hostconfig.json";

/// The driver of device requests whose IDs are names of CDI devices (Docker 25 and later).
const CDI_DRIVER: &str = "cdi";

/// The files that Docker creates for each container and mounts into it, by their mount point.
const OWN_MOUNTS: [(&str, &str); 3] =
    [("/etc/resolv.conf", "resolv.conf"), ("/etc/hostname", "hostname"), ("/etc/hosts", "hosts")];

/// Number of levels from a container's root file system up to the data root: `overlay2/ID/merged`,
/// `vfs/dir/ID`, `rootfs/overlayfs/ID`, `devicemapper/mnt/ID/rootfs`.
const LEVELS: std::ops::RangeInclusive<usize> = 2..=4;

pub(super) fn wanted(call: &CallerInfo<'_>, document: &Document<'_>) -> Wanted {
    wanted_below(call, roots(call, document).into_iter())
}

/// Returns the files of a container in each of these data roots.
pub(super) fn wanted_below<'r>(
    call: &CallerInfo<'_>,
    roots: impl Iterator<Item = &'r str>,
) -> Wanted {
    let files = roots.flat_map(|root| [CONFIG, HOST_CONFIG].map(|file| path(call, root, file)));
    Wanted::files(files)
}

fn path(call: &CallerInfo<'_>, root: &str, file: &str) -> Option<String> {
    is_id(call.id).then(|| format!("{root}/containers/{}/{file}", call.id))
}

/// Lists Docker's possible data roots, the likeliest first.
fn roots<'d>(call: &CallerInfo<'_>, document: &Document<'d>) -> Vec<&'d str> {
    let above = std::path::Path::new(document.root_path).ancestors();
    let above = above
        .skip(*LEVELS.start())
        .take(LEVELS.end() - LEVELS.start() + 1)
        .filter_map(|path| path.to_str());
    let own = OWN_MOUNTS.iter().filter_map(|(destination, file)| {
        let mounted = document.mounts.iter().find(|(on, _)| on == destination);
        mounted?.1.strip_suffix(&format!("/containers/{}/{file}", call.id))
    });
    let mut roots: Vec<&str> = Vec::new();
    for root in above.chain(own).chain([dockerd::DATA_ROOT]) {
        if root.starts_with('/') && root != "/" && !roots.contains(&root) {
            roots.push(root);
        }
    }
    roots
}

/// Returns Docker's record of this container, and its data root.
pub(super) fn record(seen: Seen<'_>) -> Option<(&str, Value)> {
    let Seen { call, document, found } = seen;
    let running = found.dockers.iter().map(Dockerd::data_root);
    roots(call, document).into_iter().chain(running).find_map(|root| {
        let config = found.json(&path(call, root, CONFIG)?)?;
        // The file may describe another container.
        (config["ID"] == call.id).then_some((root, config))
    })
}

/// Returns further files about the image, given those already read: its configuration, in
/// containerd's store first the manifest that names the configuration, and in Docker's store the
/// file with the images' names and digests.
pub(super) fn wanted_more(seen: Seen<'_>) -> Wanted {
    let Some((root, config)) = record(seen) else { return Wanted::default() };
    let (configs, manifests) = image_files(root, &config, seen.found);
    let repositories = repositories(root, &config).into_iter().collect();
    Wanted { files: [configs, manifests, repositories].concat(), store: None }
}

/// Returns the file in which Docker's store keeps its images' names and manifest digests.
fn repositories(root: &str, config: &Value) -> Option<String> {
    let driver = text(config, "/Driver").filter(|driver| is_id(driver))?;
    Some(format!("{root}/image/{driver}/repositories.json"))
}

/// Returns the digest of the image's manifest. With containerd's store the container's record has
/// it; Docker's store has it with each of the image's names, of which the requested one is
/// preferred.
fn manifest_digest(root: &str, config: &Value, found: &FetchedFacts) -> Option<String> {
    if let Some(named) = text(config, "/ImageManifest/digest") {
        return Some(named);
    }
    let image = text(config, "/Image")?;
    let all = found.json(&repositories(root, config)?)?;
    let asked = text(config, "/Config/Image").unwrap_or_default();
    let names = all["Repositories"].as_object()?.values().filter_map(Value::as_object).flatten();
    let digests =
        names.filter(|(_, id)| **id == image).filter_map(|(name, _)| name.split_once('@'));
    let digests: Vec<(&str, &str)> = digests.collect();
    let own = digests.iter().find(|(repository, _)| *repository == repository_of(&asked));
    own.or(digests.first()).map(|(_, digest)| (*digest).to_owned())
}

/// Returns the digest of the image's configuration. In Docker's store it is the image's ID; in
/// containerd's that ID is another digest, and the manifest names the configuration.
fn config_digest(root: &str, config: &Value, found: &FetchedFacts) -> Option<String> {
    if text(config, "/ImageManifest/digest").is_none() {
        return text(config, "/Image");
    }
    let (_, manifests) = image_files(root, config, found);
    image::config_digest(found.first(&manifests)?)
}

/// Returns the repository of an image's name, as Docker shortens it.
fn repository_of(name: &str) -> &str {
    let name = name.split('@').next().unwrap_or_default();
    let name = match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    };
    let short = name.strip_prefix("docker.io/library/");
    short.or_else(|| name.strip_prefix("docker.io/")).unwrap_or(name)
}

/// Returns the possible paths of the image's configuration, and of the manifest that names it.
fn image_files(root: &str, config: &Value, found: &FetchedFacts) -> (Vec<String>, Vec<String>) {
    let driver = text(config, "/Driver").unwrap_or_default();
    let mut files = Vec::new();
    if let Some(hex) = text(config, "/Image").and_then(|image| sha256(&image))
        && is_id(&driver)
    {
        files.push(format!("{root}/image/{driver}/imagedb/content/sha256/{hex}"));
    }
    let stores = [root.to_owned() + "/containerd/daemon", "/var/lib/containerd".to_owned()];
    let blobs = |hex: &str| {
        let blob = |store| format!("{store}/io.containerd.content.v1.content/blobs/sha256/{hex}");
        stores.iter().map(blob).collect::<Vec<_>>()
    };
    let manifest = text(config, "/ImageManifest/digest").and_then(|image| sha256(&image));
    let manifests = manifest.map(|hex| blobs(&hex)).unwrap_or_default();
    let digests = manifests.iter().filter_map(|file| image::config_digest(found.file(file)?));
    let configs = digests.filter_map(|digest| sha256(&digest)).flat_map(|hex| blobs(&hex));
    files.extend(configs.collect::<Vec<_>>());
    (files, manifests)
}

/// Returns the hexadecimal part of a digest.
fn sha256(digest: &str) -> Option<String> {
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    let is_hex = !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| hex.to_owned())
}

/// Returns the labels of the image's configuration; `None` if unknown.
fn images_labels(root: &str, config: &Value, found: &FetchedFacts) -> Option<ImageWords> {
    let (configs, _) = image_files(root, config, found);
    ImageWords::read(found.first(&configs)?)
}

pub(super) fn facts(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let Seen { call, document, found } = seen;
    let mut facts = Facts::alone(engine, call);
    facts.pod.annotations = document.annotations.clone();
    facts.pod.uid = call.id.to_owned();
    let mut said = document.annotations.clone();
    if let Some((root, config)) = record(seen) {
        if let Some(name) = text(&config, "/Name") {
            let name = name.trim_start_matches('/').to_owned();
            facts.pod.name.clone_from(&name);
            facts.container.name = name;
        }
        let labels = texts(config.pointer("/Config/Labels"));
        facts.container.image = text(&config, "/Config/Image").map(|name| Image {
            name,
            digest: manifest_digest(root, &config, found).unwrap_or_default(),
            config_digest: digest(&config_digest(root, &config, found).unwrap_or_default()),
        });
        let images = images_labels(root, &config, found);
        said.extend(own::of_operator(&mut facts, "label", &labels, images.as_ref()));
        facts.pod.labels = labels.clone();
        facts.container.labels = labels;
        if let Some(host) = path(call, root, HOST_CONFIG).and_then(|path| found.json(&path)) {
            facts.pod.runtime_handler = text(&host, "/Runtime").unwrap_or_default();
            facts.container.seccomp = seccomp(&host, document.has_seccomp);
            facts.container.cdi_devices = cdi_devices(&host);
        }
    } else {
        facts.unread = Some("Docker's record of the container".to_owned());
        facts.missing.push(what_is_missing(found));
    }
    own::apply(&mut facts, document, &said);
    facts
}

fn what_is_missing(found: &FetchedFacts) -> String {
    let mut places: Vec<&str> = found.dockers.iter().map(Dockerd::data_root).collect();
    places.sort_unstable();
    places.dedup();
    let places = match places.as_slice() {
        [] => "and no dockerd with a known data root was found".to_owned(),
        places => format!("and is not below {}", places.join(", ")),
    };
    format!(
        "the container's config.v2.json is not where its root file system is, {places}: \
         plugins see no name, no labels, no image and none of the annotations that labels carry"
    )
}

/// Returns the names of the CDI devices of `--device VENDOR/CLASS=NAME`.
fn cdi_devices(host: &Value) -> Vec<String> {
    let requests = host["DeviceRequests"].as_array().into_iter().flatten();
    let requests = requests.filter(|request| request["Driver"] == CDI_DRIVER);
    let names = requests.filter_map(|request| request["DeviceIDs"].as_array()).flatten();
    names.filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}

/// Returns the seccomp profile: Docker records the content of a user's profile, not its name.
fn seccomp(host: &Value, has_filter: bool) -> Option<SeccompProfile> {
    let said = host["SecurityOpt"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut named = said.filter_map(|said| said.strip_prefix("seccomp")?.get(1..));
    match named.next_back() {
        _ if !has_filter => Some(SeccompProfile::Unconfined),
        None | Some("builtin") => Some(SeccompProfile::RuntimeDefault),
        Some(_content) => Some(SeccompProfile::Localhost(String::new())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn candidates(root_path: &str, mounts: &[(&str, &str)]) -> Vec<String> {
        let annotations = BTreeMap::new();
        let document = Document {
            annotations: &annotations,
            root_path,
            cgroups_path: "",
            mounts: mounts.to_vec(),
            namespaces: Vec::new(),
            clos: None,
            limits_block_io: false,
            has_seccomp: false,
        };
        let (id, bundle) = ("d0c1", "/b");
        let call = CallerInfo { id, bundle, parent: &[], grandparent: &[], variables: &[] };
        roots(&call, &document).into_iter().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn the_rootfs_path_of_every_storage_driver_yields_the_data_root() {
        for below in [
            "overlay2/f0/merged",
            "overlay2/f0-init/merged",
            "fuse-overlayfs/f0/merged",
            "vfs/dir/f0",
            "btrfs/subvolumes/f0",
            "zfs/graph/f0",
            "aufs/mnt/f0",
            "devicemapper/mnt/f0/rootfs",
            "rootfs/overlayfs/d0c1",
        ] {
            let found = candidates(&format!("/srv/docker/165536.165536/{below}"), &[]);
            assert!(found.contains(&"/srv/docker/165536.165536".to_owned()), "{below}: {found:?}");
            assert!(found.len() <= 4, "{found:?}");
        }
    }

    #[test]
    fn only_the_containers_own_mounts_yield_the_data_root() {
        let usual = [dockerd::DATA_ROOT.to_owned()];
        let of = |on: &str, source: &str| candidates("", &[(on, source)]);
        assert_eq!(of("/etc/hosts", "/srv/d/containers/d0c1/hosts"), ["/srv/d", &usual[0]]);
        assert_eq!(of("/etc/hosts", "/srv/d/containers/other/hosts"), usual);
        assert_eq!(of("/data", "/home/me/containers/d0c1/hosts"), usual);
        assert_eq!(of("/etc/hosts", "/home/me/containers/d0c1/x/hosts"), usual);
        assert_eq!(of("/etc/hosts", "containers/d0c1/hosts"), usual);
    }

    #[test]
    fn a_path_of_another_form_yields_no_data_root() {
        for path in ["", "/", "rootfs", "/a", "/a/b", "a/b/c/d/e"] {
            assert_eq!(candidates(path, &[]), [dockerd::DATA_ROOT], "{path}");
        }
    }

    #[test]
    fn the_seccomp_profile_comes_from_the_options_and_the_filter() {
        let told = |said: &[&str], has_filter| seccomp(&json!({"SecurityOpt": said}), has_filter);
        let default = Some(SeccompProfile::RuntimeDefault);
        assert_eq!(told(&[], true), default);
        assert_eq!(seccomp(&json!({"SecurityOpt": null}), true), default);
        assert_eq!(told(&["label=disable", "seccomp=builtin"], true), default);
        let own = Some(SeccompProfile::Localhost(String::new()));
        assert_eq!(told(&["no-new-privileges", "seccomp={\"defaultAction\":1}"], true), own);
        for said in [&["seccomp=unconfined"][..], &["seccomp:unconfined"], &[]] {
            assert_eq!(told(said, false), Some(SeccompProfile::Unconfined), "{said:?}");
        }
    }

    #[test]
    fn only_requests_of_the_cdi_driver_name_cdi_devices() {
        let told = |requests| cdi_devices(&json!({"DeviceRequests": requests}));
        let cdi = json!([
            {"Driver": "nvidia", "Count": -1, "DeviceIDs": null, "Capabilities": [["gpu"]]},
            {"Driver": "cdi", "Count": 0, "DeviceIDs": ["vendor.com/class=one", "b.com/c=all"]},
        ]);
        assert_eq!(told(cdi), ["vendor.com/class=one", "b.com/c=all"]);
        for odd in [json!(null), json!([{"Driver": "cdi"}]), json!([7]), json!({"Driver": "cdi"})] {
            assert_eq!(told(odd), [""; 0]);
        }
    }

    #[test]
    fn an_image_has_the_digest_of_the_requested_name() {
        let names = json!({"Repositories": {
            "mirror.local:5000/web": {"mirror.local:5000/web@sha256:aa": "sha256:cf59"},
            "shop/web": {"shop/web:1": "sha256:cf59", "shop/web@sha256:bb": "sha256:cf59",
                "shop/web@sha256:cc": "sha256:0000"},
        }});
        let files = [("/d/image/overlay2/repositories.json".to_owned(), names.to_string().into())];
        let found = FetchedFacts { files: files.into(), ..FetchedFacts::default() };
        let told = |name: &str, image: &str| {
            let config = json!({"Driver": "overlay2", "Image": image, "Config": {"Image": name}});
            manifest_digest("/d", &config, &found)
        };
        for name in ["shop/web:1", "docker.io/shop/web", "shop/web@sha256:bb"] {
            assert_eq!(told(name, "sha256:cf59").as_deref(), Some("sha256:bb"), "{name}");
        }
        let mirrored = told("mirror.local:5000/web", "sha256:cf59");
        assert_eq!(mirrored.as_deref(), Some("sha256:aa"));
        assert_eq!(told("cf59", "sha256:cf59").as_deref(), Some("sha256:aa"), "by its id");
        assert_eq!(told("built/here", "sha256:1111"), None);
        let in_containerd = json!({"ImageManifest": {"digest": "sha256:dd"}, "Image": "sha256:ee"});
        assert_eq!(manifest_digest("/d", &in_containerd, &found).as_deref(), Some("sha256:dd"));
    }

    #[test]
    fn an_image_in_containerds_store_has_the_config_of_its_manifest() {
        let blobs = "/d/containerd/daemon/io.containerd.content.v1.content/blobs/sha256";
        let manifest = json!({"config": {"digest": "sha256:cf59"}}).to_string().into();
        let files = [(format!("{blobs}/dd"), manifest)];
        let found = FetchedFacts { files: files.into(), ..FetchedFacts::default() };
        let told = |config: Value| config_digest("/d", &config, &found);
        let with = |manifest: &str| json!({"ImageManifest": {"digest": manifest}, "Image": "dd"});
        assert_eq!(told(with("sha256:dd")).as_deref(), Some("sha256:cf59"));
        assert_eq!(told(with("sha256:ee")), None, "not read");
        assert_eq!(told(json!({"Image": "sha256:cf59"})).as_deref(), Some("sha256:cf59"));
        assert_eq!(told(json!({"Image": "cf59", "ImageManifest": null})).as_deref(), Some("cf59"));
    }
}
