// SPDX-License-Identifier: Apache-2.0
//! A snapshot of pods and containers as Synchronize requests that the protocol can carry.

use protobuf::Message;

use super::api;
use super::mux::TTRPC_LIMIT;

/// Cuts a snapshot into requests below the limit; every object goes into exactly one.
pub(super) fn parts(
    pods: &[api::PodSandbox],
    containers: &[api::Container],
) -> Vec<api::SynchronizeRequest> {
    const ROOM: u64 = (TTRPC_LIMIT - 1024) as u64;
    let mut parts = vec![api::SynchronizeRequest::new()];
    let mut size = 0;
    let mut room_for = |bytes: u64, parts: &mut Vec<api::SynchronizeRequest>| {
        // Tag and length before each object need at most 6 bytes.
        if size + bytes + 6 > ROOM {
            parts.push(api::SynchronizeRequest::new());
            size = 0;
        }
        size += bytes + 6;
    };
    for pod in pods {
        room_for(pod.compute_size(), &mut parts);
        if let Some(part) = parts.last_mut() {
            part.pods.push(pod.clone());
        }
    }
    for container in containers {
        room_for(container.compute_size(), &mut parts);
        if let Some(part) = parts.last_mut() {
            part.containers.push(container.clone());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(count: usize, size: usize) -> Vec<api::PodSandbox> {
        let pod = |index: usize| api::PodSandbox {
            id: index.to_string(),
            name: "x".repeat(size),
            ..api::PodSandbox::default()
        };
        (0..count).map(pod).collect()
    }

    #[test]
    fn every_object_goes_into_exactly_one_part_below_the_limit() {
        let parts = parts(&pods(10_000, 1000), &[api::Container::new(), api::Container::new()]);
        let told: usize = parts.iter().map(|part| part.pods.len()).sum();
        let containers: usize = parts.iter().map(|part| part.containers.len()).sum();
        assert_eq!((told, containers), (10_000, 2));
        assert!(parts.len() > 1);
        assert!(parts.iter().all(|part| part.compute_size() < TTRPC_LIMIT as u64));
    }

    #[test]
    fn an_empty_node_is_one_part() {
        assert_eq!(parts(&[], &[]).len(), 1);
    }

    #[test]
    fn an_object_too_large_for_any_part_stands_alone_and_ends() {
        assert_eq!(
            parts(&pods(3, TTRPC_LIMIT), &[]).iter().filter(|p| !p.pods.is_empty()).count(),
            3
        );
    }
}
