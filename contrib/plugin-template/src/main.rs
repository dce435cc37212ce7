//! {{project-name}}: a plugin of the Node Resource Interface.

use nri_plugin::{Adjustment, Context, Event, Handler, Result, annotation, api, async_trait};

/// The annotation of a pod whose value this plugin writes into a variable of each container.
const KEY: &str = "greeting.example.org";

struct Plugin;

#[async_trait]
impl Handler for Plugin {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> Result<api::CreateContainerResponse> {
        let Some((_key, text)) = annotation(&request.pod, &request.container.name, KEY) else {
            return Ok(Adjustment::new().into());
        };
        if text.is_empty() {
            return Err(format!("{KEY} is empty").into());
        }
        Ok(Adjustment::new().env("GREETING", text).into())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("{{plugin_index}}-{{project-name}}", Plugin)
}

#[cfg(test)]
mod tests {
    use nri_plugin::harness::{Runtime, container, pod};

    use super::*;

    /// A runtime with this plugin and a pod with this annotation.
    async fn runtime(greeting: Option<&str>) -> Runtime {
        let mut runtime = Runtime::new().unwrap();
        runtime.add("{{plugin_index}}-{{project-name}}", Plugin).await.unwrap();
        let mut web = pod("web");
        web.annotations.extend(greeting.map(|text| (KEY.to_owned(), text.to_owned())));
        runtime.run_pod(web).await.unwrap();
        runtime
    }

    #[tokio::test]
    async fn the_annotation_becomes_a_variable() {
        let mut runtime = runtime(Some("hello")).await;
        let created = runtime.create(container("nginx", "web")).await.unwrap();
        assert_eq!(created.container.env, ["GREETING=hello"]);
    }

    #[tokio::test]
    async fn a_pod_without_the_annotation_stays_as_it_is() {
        let mut runtime = runtime(None).await;
        let created = runtime.create(container("nginx", "web")).await.unwrap();
        assert!(created.container.env.is_empty());
    }

    #[tokio::test]
    async fn an_empty_annotation_refuses_the_container() {
        let mut runtime = runtime(Some("")).await;
        let why = runtime.create(container("nginx", "web")).await.unwrap_err().to_string();
        assert!(why.contains("greeting.example.org is empty"), "{why}");
    }
}
