// SPDX-License-Identifier: Apache-2.0
//! The plugin with the crate's runtime.

use nri_plugin::harness::{Runtime, container, pod};
use nri_plugin::{Plugin, api};

use super::{Rdt, lines};

const CONFIG: &str = r#"{"classes": {"gold": ["default"], "silver": ["shop"], "bronze": ["*"]},
    "schemata": ["default"], "monitoring": ["*"]}"#;

async fn create(
    config: &str,
    namespace: &str,
    annotations: &[(&str, &str)],
) -> nri_plugin::Result<Option<api::LinuxRdt>> {
    let mut runtime = Runtime::new()?;
    runtime.start(Plugin::new("20-rdt", Rdt::default())?.config(config)).await?;
    let mut web = pod("web");
    namespace.clone_into(&mut web.namespace);
    for (field, value) in annotations {
        let key = format!("{field}.rdt.noderesource.dev/container.nginx");
        web.annotations.insert(key, (*value).to_owned());
    }
    runtime.run_pod(web).await?;
    let created = runtime.create(container("nginx", "web")).await?;
    Ok(created.adjust.linux.rdt.clone().into_option())
}

#[tokio::test]
async fn permitted_rdt_values_are_set() {
    let asked =
        [("closid", "gold"), ("schemata", "L3:0=f;1=f,MB:0=50"), ("enablemonitoring", "true")];
    let rdt = create(CONFIG, "default", &asked).await.unwrap().unwrap();
    assert_eq!(rdt.clos_id.value, "gold");
    assert_eq!(rdt.schemata.value, ["L3:0=f;1=f", "MB:0=50"]);
    assert!(rdt.enable_monitoring.value);
}

#[tokio::test]
async fn a_class_with_a_star_is_permitted_in_every_namespace() {
    let rdt = create(CONFIG, "any", &[("closid", "bronze")]).await.unwrap().unwrap();
    assert_eq!(rdt.clos_id.value, "bronze");
    assert!(rdt.schemata.is_none() && rdt.enable_monitoring.is_none());
}

#[tokio::test]
async fn a_container_without_annotations_is_unchanged() {
    assert_eq!(create(CONFIG, "default", &[]).await.unwrap(), None);
}

#[tokio::test]
async fn requests_beyond_the_lists_are_refused_by_key() {
    let only_classes = r#"{"classes": {"gold": ["default"]}}"#;
    for (config, namespace, field, value) in [
        (CONFIG, "default", "closid", "silver"),
        (CONFIG, "default", "closid", "platinum"),
        (CONFIG, "default", "closid", ""),
        (CONFIG, "shop", "schemata", "L3:0=f"),
        (only_classes, "default", "schemata", "L3:0=f"),
        (only_classes, "default", "enablemonitoring", "true"),
    ] {
        let why = create(config, namespace, &[(field, value)]).await.unwrap_err().to_string();
        let wanted = format!("{field}.rdt.noderesource.dev/container.nginx: the namespace");
        assert!(why.contains(&wanted), "{field} {value}: {why}");
    }
}

#[tokio::test]
async fn unreadable_values_are_refused() {
    for (field, value) in [("enablemonitoring", "yes"), ("schemata", ""), ("schemata", "L3:0=f,")] {
        let why = create(CONFIG, "default", &[(field, value)]).await.unwrap_err().to_string();
        assert!(why.contains(&format!("{field}.rdt.noderesource.dev")), "{why}");
    }
}

#[tokio::test]
async fn an_invalid_configuration_ends_the_plugin() {
    for config in ["", "{}", r#"{"classes": ["gold"]}"#, r#"{"classes": {}, "class": 1}"#] {
        let why = create(config, "default", &[]).await.unwrap_err().to_string();
        assert!(why.contains("its configuration"), "{config}: {why}");
    }
}

#[test]
fn schemata_are_split_into_lines_and_invalid_ones_refused() {
    assert_eq!(lines("L3:0=f,MB:0=50").unwrap(), ["L3:0=f", "MB:0=50"]);
    for bad in ["L3:0=f\nMB:0=1", "L3", ":0=f", "L3:", "L3: 0=f", "L3:0=\u{e9}"] {
        assert!(lines(bad).is_err(), "{bad:?}");
    }
}
