// SPDX-License-Identifier: Apache-2.0
//! Kubelet's allocations of devices to a pod: `v1.PodResourcesLister/List` on its socket, and
//! kubelet's records beside the socket for allocations that it does not list. Only the few fields
//! that promises match are read from the message, by kubelet's field numbers
//! (k8s.io/kubelet/pkg/apis/podresources/v1/api.proto). Allocations that cannot be read are an
//! error, never an absence: the caller decides whether that refuses a container.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::engine::{Allocated, Allocations, PodAllocations};
use crate::error::{Error, Result, quoted};
use crate::files;
use crate::formats::protobuf::{fields, member, text};
use crate::host::Host;
use crate::limits;
use crate::presence::IfThere;

use super::unary;

const PATH: &str = "/v1.PodResourcesLister/List";

/// Time limit for kubelet's response. It lists all pods of the node, within milliseconds.
const KUBELET_WAIT: Duration = Duration::from_secs(2);

/// Kubelet's record of claims, relative to kubelet's folder, which also contains the socket's
/// folder. Kubelet writes it before it asks the engine for a pod.
const CLAIMS_FILE: &str = "dra_manager_state";
/// Kubelet's record of extended resources, relative to kubelet's folder.
const DEVICES_FILE: &str = "device-plugins/kubelet_internal_checkpoint";

/// Names by holder: drivers by claim, or resources by container.
type Names = BTreeMap<String, BTreeSet<String>>;

/// Kubelet's records about a pod. Kubelet's response lacks ordinary init containers, drivers
/// without devices, and all claims if the feature `KubeletPodResourcesDynamicResources` is off.
#[derive(Debug, Default)]
struct Recorded {
    claims: Names,
    resources: Names,
}

/// A pod, by the names that kubelet uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KubeletPod<'p> {
    pub(crate) namespace: &'p str,
    pub(crate) name: &'p str,
    pub(crate) uid: &'p str,
}

/// Returns kubelet's allocations to a pod, or why they are unknown.
pub(crate) async fn allocations(host: &Host, socket: &Path, pod: KubeletPod<'_>) -> Allocations {
    let shown = socket.display();
    let socket = host.path(socket);
    let Ok(answered) = tokio::time::timeout(KUBELET_WAIT, ask(&socket, pod)).await else {
        let seconds = KUBELET_WAIT.as_secs();
        return Allocations::Unreadable(format!("{shown}: no answer within {seconds} s"));
    };
    match answered {
        Ok(listed) => Allocations::Listed(listed),
        Err(error) => Allocations::Unreadable(format!("{shown}: {}", error.why())),
    }
}

/// Checks that kubelet answers, for `check`.
///
/// # Errors
/// Fails with the reason in one line.
pub(crate) fn try_kubelet(host: &Host, socket: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let path = host.path(socket);
    let asked = runtime.block_on(async { tokio::time::timeout(KUBELET_WAIT, list(&path)).await });
    let answered = asked.unwrap_or_else(|_elapsed| Err(Error::new("no answer in time")));
    answered.map(drop).map_err(|error| error.doing(socket.display().to_string()))
}

async fn list(socket: &Path) -> Result<Vec<u8>> {
    let answer = unary::call(socket, PATH, &[], &[Vec::new()]).await?.into_iter().next();
    let answer = answer.ok_or_else(|| Error::new("it closed its connection"))?;
    answer.map_err(|status| Error::new(status.to_string()))
}

async fn ask(socket: &Path, pod: KubeletPod<'_>) -> Result<PodAllocations> {
    let listed = list(socket).await?;
    let folder = socket.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default();
    let uid = pod.uid.to_owned();
    // The files are on kubelet's disk, which may hang: the caller's time limit applies.
    let recorded = tokio::task::spawn_blocking(move || read_records(&folder, &uid)).await;
    read(&listed, pod, &recorded.map_err(|ended| Error::new(ended.to_string()))??)
}

fn read_records(folder: &Path, uid: &str) -> Result<Recorded> {
    let of = |file: &str, names: fn(&str, &str) -> Option<Names>| {
        let text = files::read_text(&folder.join(file), limits::CONTAINER_FILE).if_there()?;
        let text = text.filter(|text| !uid.is_empty() && text.contains(uid));
        let names = text.map(|text| names(&text, uid).filter(|names| !names.is_empty()));
        let unknown =
            || Error::new(format!("kubelet's record of the pod has an unknown format: {file}"));
        names.map_or(Ok(Names::new()), |names| names.ok_or_else(unknown))
    };
    Ok(Recorded {
        claims: of(CLAIMS_FILE, recorded_claims)?,
        resources: of(DEVICES_FILE, recorded_resources)?,
    })
}

/// Returns the drivers of the pod's claims, from `dra_manager_state` of Kubernetes 1.32 and later.
fn recorded_claims(text: &str, uid: &str) -> Option<Names> {
    let document: Value = serde_json::from_str(text).ok()?;
    let data: Value = serde_json::from_str(document["Data"].as_str()?).ok()?;
    let claims = data["ClaimInfoStateList"].as_array()?.iter();
    let own = claims.filter(|claim| claim["PodUIDs"].get(uid).is_some());
    let named = own.map(|claim| {
        let drivers: BTreeSet<_> = claim["DriverState"].as_object()?.keys().cloned().collect();
        let name = claim["ClaimName"].as_str()?.to_owned();
        (!drivers.is_empty()).then_some((name, drivers))
    });
    named.collect()
}

/// Returns the extended resources of the pod's containers.
fn recorded_resources(text: &str, uid: &str) -> Option<Names> {
    let document: Value = serde_json::from_str(text).ok()?;
    let mut names = Names::new();
    for entry in document["Data"]["PodDeviceEntries"].as_array()? {
        if entry["PodUID"].as_str()? == uid {
            let resources = names.entry(entry["ContainerName"].as_str()?.to_owned()).or_default();
            resources.insert(entry["ResourceName"].as_str()?.to_owned());
        }
    }
    Some(names)
}

/// Reads a `ListPodResourcesResponse` (field 1: pods) and its `PodResources` (1: name, 2:
/// namespace, 3: containers). If two pods have this name (an ending one and its successor), the
/// allocations of both are merged, because the message has no UID.
fn read(response: &[u8], pod: KubeletPod<'_>, recorded: &Recorded) -> Result<PodAllocations> {
    let mut found: Option<PodAllocations> = None;
    let mut unlisted = recorded.claims.clone();
    for field in fields(response) {
        let field = field?;
        let is_it = field.number == 1
            && member(field.value, 1)? == pod.name.as_bytes()
            && member(field.value, 2)? == pod.namespace.as_bytes();
        if !is_it {
            continue;
        }
        let found = found.get_or_insert_default();
        for field in fields(field.value) {
            let field = field?;
            if field.number == 3 {
                let (name, allocated) = container(field.value, recorded, &mut unlisted)?;
                let known = found.entry(name).or_default();
                known.claims.extend(allocated.claims);
                known.resources.extend(allocated.resources);
            }
        }
    }
    let mut found = found.ok_or_else(|| {
        let name = quoted(&format!("{}/{}", pod.namespace, pod.name));
        Error::new(format!("kubelet does not list the pod {name}"))
    })?;
    add_unlisted(&mut found, unlisted, recorded);
    Ok(found)
}

/// Adds allocations that are only in kubelet's records. A claim that kubelet lists for no container may be
/// any container's, so its drivers are added to all. The resources of containers that kubelet does not list
/// are added under an empty name: promises compare such a container with all allocations of the pod.
fn add_unlisted(found: &mut PodAllocations, claims: Names, recorded: &Recorded) {
    let drivers: BTreeSet<String> = claims.into_values().flatten().collect();
    let is_unlisted = |name: &String| !found.contains_key(name);
    let resources = recorded.resources.iter().filter(|(name, _)| is_unlisted(name));
    let resources: BTreeSet<String> = resources.flat_map(|(_, names)| names).cloned().collect();
    if !drivers.is_empty() || !resources.is_empty() {
        found.entry(String::new()).or_default().resources = resources;
    }
    for allocated in found.values_mut() {
        allocated.claims.extend(drivers.iter().cloned());
    }
}

/// Parses a `ContainerResources`: name 1, devices 2 (resource_name 1), dynamic_resources 5
/// (claim_name 2, claim_resources 4, of which driver_name is 2). Removes the claims of the
/// container from `unlisted`.
fn container(
    bytes: &[u8],
    recorded: &Recorded,
    unlisted: &mut Names,
) -> Result<(String, Allocated)> {
    let mut allocated = Allocated::default();
    for field in fields(bytes) {
        let field = field?;
        match field.number {
            2 => drop(allocated.resources.insert(text(member(field.value, 1)?))),
            5 => {
                let name = text(member(field.value, 2)?);
                unlisted.remove(&name);
                let mut drivers = recorded.claims.get(&name).cloned().unwrap_or_default();
                for claim in fields(field.value) {
                    let claim = claim?;
                    if claim.number == 4 {
                        drivers.insert(text(member(claim.value, 2)?));
                    }
                }
                if drivers.is_empty() || drivers.contains("") {
                    return Err(Error::new("kubelet lists a claim without its driver"));
                }
                allocated.claims.extend(drivers);
            }
            _ => {}
        }
    }
    Ok((text(member(bytes, 1)?), allocated))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::protobuf::field;
    use proptest::prelude::*;
    use serde_json::json;
    use tokio::net::UnixListener;

    const POD: KubeletPod<'_> = KubeletPod { namespace: "ml", name: "train", uid: "u-1" };

    /// Returns a response with the pod `train`, whose container `app` has a device and a claim.
    fn response(driver: &str) -> Vec<u8> {
        let claim = [field(2, b"claim"), field(3, b"ml"), field(4, &field(2, driver.as_bytes()))];
        let app = [
            field(1, b"app"),
            field(2, &[field(1, b"nvidia.com/gpu"), field(2, b"id")].concat()),
            vec![0x18, 0x07],
            field(5, &claim.concat()),
        ];
        let other = [field(1, b"train"), field(2, b"other"), field(3, &field(1, b"x"))].concat();
        let pod = [
            field(1, b"train"),
            field(2, b"ml"),
            field(3, &app.concat()),
            field(3, &field(1, b"side")),
        ];
        [field(1, &other), field(1, &pod.concat())].concat()
    }

    /// Returns kubelet's record of a claim of the pod with that UID.
    fn claim(uid: &str, name: &str, drivers: Value) -> Value {
        json!({"ClaimName": name, "Namespace": "ml", "PodUIDs": {uid: {}}, "DriverState": drivers})
    }

    fn claims_file(claims: &[Value]) -> String {
        let data = json!({"kind": "DRACheckpoint", "ClaimInfoStateList": claims}).to_string();
        json!({"Data": data, "Checksum": 1}).to_string()
    }

    /// Returns a response with the pod, which has these containers.
    fn pod(containers: &[Vec<u8>]) -> Vec<u8> {
        let containers = containers.iter().flat_map(|one| field(3, one));
        let names = [field(1, b"train"), field(2, b"ml")].concat();
        field(1, &names.into_iter().chain(containers).collect::<Vec<u8>>())
    }

    fn listed(allocations: Allocations) -> PodAllocations {
        let Allocations::Listed(listed) = allocations else { panic!("{allocations:?}") };
        listed
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// Serves one response, with these records, and returns the resulting allocations.
    fn known(response: &[u8], claims: &str, devices: &str) -> Allocations {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("var/pod-resources");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::create_dir_all(temp.path().join("var/device-plugins")).unwrap();
        files::replace(&temp.path().join("var").join(CLAIMS_FILE), claims.as_bytes()).unwrap();
        files::replace(&temp.path().join("var").join(DEVICES_FILE), devices.as_bytes()).unwrap();
        let host = Host::new(&temp.path().display().to_string(), "");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
            let server = async {
                let (stream, _) = listener.accept().await.unwrap();
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let (request, mut respond) = connection.accept().await.unwrap().unwrap();
                assert_eq!(request.uri().path(), PATH);
                let head = http::Response::builder().body(()).unwrap();
                let mut body = respond.send_response(head, false).unwrap();
                let length = u32::try_from(response.len()).unwrap().to_be_bytes();
                let message = [&[0], &length[..], response].concat();
                body.send_data(message.into(), true).unwrap();
                while connection.accept().await.is_some() {}
            };
            let socket = Path::new("/var/pod-resources/kubelet.sock");
            tokio::join!(allocations(&host, socket, POD), server).0
        })
    }

    fn reason(allocations: &Allocations) -> &str {
        match allocations {
            Allocations::Unreadable(why) => why,
            Allocations::None | Allocations::Listed(_) => panic!("{allocations:?}"),
        }
    }

    #[test]
    fn a_pods_claims_and_resources_are_known_by_container() {
        let listed = listed(known(&response("dra.net"), "{}", "{}"));
        assert_eq!(listed.keys().collect::<Vec<_>>(), ["app", "side"]);
        assert_eq!(listed["app"].claims, ["dra.net".to_owned()].into());
        assert_eq!(listed["app"].resources, ["nvidia.com/gpu".to_owned()].into());
        assert_eq!(listed["side"], Allocated::default());
    }

    #[test]
    fn allocations_of_pods_with_the_same_name_are_united() {
        let both = [response("dra.net"), response("dra.gpu")].concat();
        let listed = listed(known(&both, "{}", "{}"));
        assert_eq!(listed["app"].claims, ["dra.gpu".to_owned(), "dra.net".to_owned()].into());
    }

    #[test]
    fn a_pod_that_kubelet_does_not_list_has_unknown_devices() {
        let why = known(&field(1, &[field(1, b"train"), field(2, b"x")].concat()), "{}", "{}");
        assert!(reason(&why).ends_with("kubelet does not list the pod ml/train"), "{why:?}");
        assert!(reason(&why).starts_with("/var/pod-resources/kubelet.sock: "), "{why:?}");
    }

    #[test]
    fn a_claim_without_driver_is_unreadable() {
        let why = known(&response(""), "{}", "{}");
        assert!(reason(&why).ends_with("kubelet lists a claim without its driver"), "{why:?}");
    }

    #[test]
    fn an_unlisted_recorded_claim_counts_for_every_container() {
        let state = claims_file(&[
            claim("u-1", "init", json!({"dra.gpu": {"Devices": null}})),
            claim("u-1", "claim", json!({"dra.net": {}})),
            claim("u-2", "other", json!({"dra.x": {}})),
        ]);
        let listed = listed(known(&response("dra.net"), &state, "{}"));
        assert_eq!(listed["app"].claims, set(&["dra.gpu", "dra.net"]));
        assert_eq!(listed["side"].claims, set(&["dra.gpu"]));
        assert_eq!(listed[""].claims, set(&["dra.gpu"]));
    }

    #[test]
    fn a_driver_without_devices_is_found_through_its_claim_record() {
        let app = [field(1, b"app"), field(5, &field(2, b"claim"))].concat();
        let pod = pod(&[app, field(1, b"side")]);
        let state = claims_file(&[claim("u-1", "claim", json!({"dra.net": {}}))]);
        let of_one = listed(known(&pod, &state, "{}"));
        assert_eq!(of_one["app"].claims, set(&["dra.net"]));
        assert_eq!(of_one["side"], Allocated::default());
        assert_eq!(of_one.len(), 2);

        let state = claims_file(&[claim("u-1", "claim", json!({"dra.gpu": {}, "dra.net": {}}))]);
        let of_two = listed(known(&response("dra.net"), &state, "{}"));
        assert_eq!(of_two["app"].claims, set(&["dra.gpu", "dra.net"]));
    }

    #[test]
    fn claims_that_kubelet_does_not_list_come_from_its_records() {
        let pod = pod(&[field(1, b"app")]);
        let state = claims_file(&[claim("u-1", "claim", json!({"dra.net": {}}))]);
        assert_eq!(listed(known(&pod, &state, "{}"))["app"].claims, set(&["dra.net"]));
        let state = claims_file(&[claim("u-2", "claim", json!({"dra.net": {}}))]);
        assert_eq!(listed(known(&pod, &state, "{}"))["app"], Allocated::default());
    }

    #[test]
    fn a_resource_of_an_unlisted_container_counts_for_its_pod() {
        let entry = |uid: &str, container: &str, resource: &str| json!({"PodUID": uid, "ContainerName": container, "ResourceName": resource});
        let entries = [
            entry("u-1", "init", "a.com/gpu"),
            entry("u-1", "app", "nvidia.com/gpu"),
            entry("u-2", "init", "b.com/x"),
        ];
        let state = json!({"Data": {"PodDeviceEntries": entries}, "Checksum": 1}).to_string();
        let listed = listed(known(&response("dra.net"), "{}", &state));
        assert_eq!(listed[""].resources, set(&["a.com/gpu"]));
        assert_eq!(listed["app"].resources, set(&["nvidia.com/gpu"]));
        assert_eq!(listed["side"], Allocated::default());
    }

    #[test]
    fn a_record_of_the_pod_in_an_unknown_format_is_unreadable() {
        let of_claims = [
            r#"{"entries": [{"PodUIDs": {"u-1": {}}}]}"#.to_owned(),
            r#"{"Data": "u-1"}"#.to_owned(),
            claims_file(&[claim("u-1", "claim", json!({}))]),
            claims_file(&[claim("u-1", "claim", json!(["dra.net"]))]),
            claims_file(&[json!({"PodUIDs": ["u-1"]})]),
        ];
        for state in of_claims {
            let why = known(&response("dra.net"), &state, "{}");
            assert!(reason(&why).ends_with("unknown format: dra_manager_state"), "{why:?}");
        }
        for state in ["u-1", r#"{"Data": {"PodDeviceEntries": [{"PodUID": "u-1"}]}}"#] {
            let why = known(&response("dra.net"), "{}", state);
            let wanted = "unknown format: device-plugins/kubelet_internal_checkpoint";
            assert!(reason(&why).ends_with(wanted), "{why:?}");
        }
    }

    #[test]
    fn an_absent_kubelet_is_unreadable_with_a_reason() {
        let temp = tempfile::tempdir().unwrap();
        let host = Host::new(&temp.path().display().to_string(), "");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let why = runtime.block_on(allocations(&host, Path::new("/k.sock"), POD));
        assert!(reason(&why).starts_with("/k.sock: "), "{why:?}");
        let error = try_kubelet(&host, Path::new("/k.sock")).unwrap_err().why();
        assert!(error.starts_with("/k.sock: "), "{error}");
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_never_lists_the_pod(
            bytes in proptest::collection::vec(any::<u8>(), 0..300)
        ) {
            prop_assert!(read(&bytes, POD, &Recorded::default()).is_err());
        }

        #[test]
        fn a_response_that_is_cut_short_lists_nothing_else(cut in 0_usize..1000) {
            let whole = response("dra.net");
            let cut = &whole[..cut % whole.len()];
            prop_assert!(read(cut, POD, &Recorded::default()).is_err());
        }
    }
}
