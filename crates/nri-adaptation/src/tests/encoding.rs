// SPDX-License-Identifier: Apache-2.0
//! Encoded requests and containers: the same messages as decoded ones, before and after every change.

use protobuf::Message;

use super::each_field::setting;
use super::*;

/// Returns a creation with pod, labels and mounts, which are encoded once for several plugins.
fn labelled() -> Creation {
    creation_of(api::Container {
        labels: map(&[("app", "web"), ("tier", "front")]),
        mounts: vec![mount("/a", "old"), mount("/b", "old")],
        env: vec!["A=1".to_owned()],
        ..Default::default()
    })
}

/// Decodes the encoded request, and the encoded container with the empty parts that it lacks.
fn decoded(creation: &mut Creation) -> (api::CreateContainerRequest, api::Container) {
    let request = creation.encode_request().unwrap();
    let container = creation.encode_container().unwrap();
    let mut container = api::Container::parse_from_bytes(&container).unwrap();
    let resources = container.linux.mut_or_insert_default().resources.mut_or_insert_default();
    resources.memory.mut_or_insert_default();
    resources.cpu.mut_or_insert_default();
    (api::CreateContainerRequest::parse_from_bytes(&request).unwrap(), container)
}

#[test]
fn encoded_messages_have_every_change_and_change_nothing() {
    let mut smallest = Creation::new(api::PodSandbox::new(), api::Container::new());
    let request = smallest.request().clone();
    assert_eq!(decoded(&mut smallest), (request.clone(), smallest.container().clone()));
    for field in NriField::ALL {
        let mut creation = labelled();
        for adjust in [api::ContainerAdjustment::new(), setting(field), of_env(&[("B", "2")])] {
            answer(&mut creation, "10-foo", adjust).unwrap();
            let request = creation.request().clone();
            for _ in 0..2 {
                assert_eq!(decoded(&mut creation), (request.clone(), creation.container().clone()));
                assert_eq!(creation.request(), &request, "{field}");
            }
        }
    }
}

#[test]
fn a_mount_of_an_offer_is_encoded_for_the_next_plugins() {
    let mut creation = labelled();
    for step in [
        |creation: Creation| {
            creation.offer("inject:a", &Rights::default(), setting(NriField::Mounts))
        },
        Creation::settle,
    ] {
        decoded(&mut creation);
        creation = step(creation).unwrap();
        let request = creation.request().clone();
        assert_eq!(decoded(&mut creation).0, request);
    }
}

#[test]
fn an_encoded_container_lacks_the_empty_parts_added_for_plugins() {
    let mut creation = labelled();
    let plain = creation.encode_container().unwrap();
    let plain = api::Container::parse_from_bytes(&plain).unwrap();
    assert!(plain.linux.resources.memory.is_none() && plain.linux.resources.cpu.is_none());
    answer(&mut creation, "10-foo", of_resources(shares(7))).unwrap();
    let changed = creation.encode_container().unwrap();
    let changed = api::Container::parse_from_bytes(&changed).unwrap();
    assert_eq!(changed.linux.resources.cpu.shares, uint64(7));
    assert!(changed.linux.resources.memory.is_none());
}
