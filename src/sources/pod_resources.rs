// SPDX-License-Identifier: Apache-2.0
//! Kubelet's word on the devices of a pod: `v1.PodResourcesLister/List` on its socket. Only the few fields
//! that promises match are read from the message; their numbers are kubelet's
//! (k8s.io/kubelet/pkg/apis/podresources/v1/api.proto). What cannot be known is an error, never an
//! absence: the caller decides whether that refuses a container.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::engine::{Allocated, Allocations, PodAllocations};
use crate::error::{Error, Result, quoted};
use crate::files;
use crate::formats::protobuf::{fields, member, text};
use crate::host::Host;
use crate::limits;
use crate::presence::IfThere;

use super::unary;

const PATH: &str = "/v1.PodResourcesLister/List";

/// The time that kubelet has for an answer. It lists all pods of the node, in milliseconds.
const KUBELET_WAIT: Duration = Duration::from_secs(2);

/// Kubelet's record of the pods with claims, beside the folder of its socket; it has them also where kubelet does
/// not list claims.
const CLAIMS_FILE: &str = "dra_manager_state";

/// A pod by kubelet's names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KubeletPod<'p> {
    pub(crate) namespace: &'p str,
    pub(crate) name: &'p str,
    pub(crate) uid: &'p str,
}

/// What kubelet allocated to a pod, or why that cannot be known.
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

/// Whether kubelet answers, for `check`.
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
    let answer = answer.ok_or_else(|| Error::new("it ended the connection"))?;
    answer.map_err(|status| Error::new(status.to_string()))
}

async fn ask(socket: &Path, pod: KubeletPod<'_>) -> Result<PodAllocations> {
    let listed = read(&list(socket).await?, pod)?;
    let has_claims = listed.values().any(|of| !of.claims.is_empty());
    let state = socket.ancestors().nth(2).map(|folder| folder.join(CLAIMS_FILE));
    if !has_claims && is_among_claims(state.unwrap_or_default(), pod.uid).await? {
        let hint = "its feature KubeletPodResourcesDynamicResources is off";
        return Err(Error::new(format!("kubelet does not list the pod's claims: {hint}")));
    }
    Ok(listed)
}

/// Whether kubelet records claims of this pod.
async fn is_among_claims(file: PathBuf, uid: &str) -> Result<bool> {
    // It is on kubelet's disk, which may hang: the caller's limit holds.
    let read = move || files::read_text(&file, limits::CONTAINER_FILE).if_there();
    let read = tokio::task::spawn_blocking(read).await;
    let text = read.map_err(|ended| Error::new(ended.to_string()))??;
    Ok(!uid.is_empty() && text.is_some_and(|text| text.contains(uid)))
}

/// Reads a `ListPodResourcesResponse` (pods 1): of `PodResources` name 1, namespace 2, containers 3.
/// Of two pods of this name (one that is ending and its successor) the allocations of both count, since the
/// message has no UID.
fn read(response: &[u8], pod: KubeletPod<'_>) -> Result<PodAllocations> {
    let mut found: Option<PodAllocations> = None;
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
                let (name, allocated) = container(field.value)?;
                let known = found.entry(name).or_default();
                known.claims.extend(allocated.claims);
                known.resources.extend(allocated.resources);
            }
        }
    }
    found.ok_or_else(|| {
        let name = quoted(&format!("{}/{}", pod.namespace, pod.name));
        Error::new(format!("kubelet does not list the pod {name}"))
    })
}

/// `ContainerResources`: name 1, devices 2 (resource_name 1), dynamic_resources 5 (claim_resources 4, of which
/// driver_name is 2).
fn container(bytes: &[u8]) -> Result<(String, Allocated)> {
    let mut allocated = Allocated::default();
    for field in fields(bytes) {
        let field = field?;
        match field.number {
            2 => drop(allocated.resources.insert(text(member(field.value, 1)?))),
            5 => {
                let mut drivers = Vec::new();
                for claim in fields(field.value) {
                    let claim = claim?;
                    if claim.number == 4 {
                        drivers.push(text(member(claim.value, 2)?));
                    }
                }
                if drivers.is_empty() || drivers.iter().any(String::is_empty) {
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
    use tokio::net::UnixListener;

    const POD: KubeletPod<'_> = KubeletPod { namespace: "ml", name: "train", uid: "u-1" };

    /// A response with the pod `train`, whose container `app` has a device and a claim.
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

    /// Serves one response at `socket`, and returns what is then known.
    fn known(response: &[u8], state: &str) -> Allocations {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("var/pod-resources");
        std::fs::create_dir_all(&folder).unwrap();
        files::replace(&temp.path().join("var/dra_manager_state"), state.as_bytes()).unwrap();
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
        let Allocations::Listed(listed) = known(&response("dra.net"), "{}") else { panic!() };
        assert_eq!(listed.keys().collect::<Vec<_>>(), ["app", "side"]);
        assert_eq!(listed["app"].claims, ["dra.net".to_owned()].into());
        assert_eq!(listed["app"].resources, ["nvidia.com/gpu".to_owned()].into());
        assert_eq!(listed["side"], Allocated::default());
    }

    #[test]
    fn of_two_pods_of_one_name_both_allocations_count() {
        let both = [response("dra.net"), response("dra.gpu")].concat();
        let Allocations::Listed(listed) = known(&both, "{}") else { panic!() };
        assert_eq!(listed["app"].claims, ["dra.gpu".to_owned(), "dra.net".to_owned()].into());
    }

    #[test]
    fn a_pod_that_kubelet_does_not_list_has_unknown_devices() {
        let why = known(&field(1, &[field(1, b"train"), field(2, b"x")].concat()), "{}");
        assert!(reason(&why).ends_with("kubelet does not list the pod ml/train"), "{why:?}");
        assert!(reason(&why).starts_with("/var/pod-resources/kubelet.sock: "), "{why:?}");
    }

    #[test]
    fn a_claim_without_driver_is_unreadable() {
        let why = known(&response(""), "{}");
        assert!(reason(&why).ends_with("kubelet lists a claim without its driver"), "{why:?}");
    }

    #[test]
    fn claims_that_kubelet_has_and_does_not_list_are_unreadable() {
        let pod = [field(1, b"train"), field(2, b"ml"), field(3, &field(1, b"app"))].concat();
        let state = r#"{"Data":"{\"entries\":[{\"PodUIDs\":[\"u-1\"]}]}"}"#;
        let why = known(&field(1, &pod), state);
        assert!(reason(&why).contains("does not list the pod's claims"), "{why:?}");
        let Allocations::Listed(listed) = known(&field(1, &pod), "{}") else { panic!() };
        assert_eq!(listed["app"], Allocated::default());
    }

    #[test]
    fn a_kubelet_that_is_away_is_unreadable_and_check_says_why() {
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
            prop_assert!(read(&bytes, POD).is_err());
        }

        #[test]
        fn a_response_that_is_cut_short_lists_nothing_else(cut in 0_usize..1000) {
            let whole = response("dra.net");
            let cut = &whole[..cut % whole.len()];
            prop_assert!(read(cut, POD).is_err());
        }
    }
}
