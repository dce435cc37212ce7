// SPDX-License-Identifier: Apache-2.0
//! The cases over real sockets: one `replay` of the built binary, and a plugin for every name in
//! the cases, each responding as the current case requires. A plugin that the case does not name
//! responds with an empty message; an additional last plugin records the messages.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nri_plugin::{Context, Handler, Result, Stub, async_trait};
use nri_runc::plugin::{Event, api};
use protobuf::MessageFull;
use serde_json::{Value, json};
use test_support::play::{on_a_thread, reach};
use test_support::replay::Replay;

use super::case::{Case, message, show_container, show_resources};

const LAST: &str = "99-last";

/// The current case.
#[derive(Default)]
struct Scene {
    answers: Vec<(String, Value)>,
    /// The message that the last plugin received.
    seen: Option<Value>,
}

/// A `replay` and its plugins.
pub(super) struct Live {
    replay: Replay,
    scene: Arc<Mutex<Scene>>,
}

impl Live {
    /// Starts every plugin of the cases.
    pub(super) fn start(cases: &[Case]) -> Self {
        let mut replay = Replay::start();
        let names = cases.iter().flat_map(|case| &case.answers).map(|(plugin, _)| plugin.clone());
        let cast: BTreeSet<String> = names.chain([LAST.to_owned()]).collect();
        let scene = Arc::new(Mutex::new(Scene::default()));
        let (socket, players) = (replay.path("nri.sock"), cast.clone());
        let theirs = Arc::clone(&scene);
        act(socket, players, theirs);
        for name in cast {
            replay.event("synchronized", &name);
        }
        Self { replay, scene }
    }

    /// Plays a case; returns its verdict.
    pub(super) fn play(&mut self, case: &Case) -> Value {
        *self.scene.lock().unwrap() = Scene { answers: case.answers.clone(), seen: None };
        let (call, request) = (&case.asked.call, &case.asked.request);
        let line = json!({"id": case.name, "call": call, "request": request});
        let mut verdict = self.replay.ask(&line);
        let members = verdict.as_object_mut().unwrap();
        members.remove("id");
        if let Some(seen) = self.scene.lock().unwrap().seen.take() {
            assert!(
                members.contains_key("reply"),
                "{}: no plugin is asked after a refusal",
                case.name
            );
            members.insert("seen".to_owned(), seen);
        }
        verdict
    }
}

/// Connects every plugin, and serves until the runtime exits.
fn act(socket: PathBuf, cast: BTreeSet<String>, scene: Arc<Mutex<Scene>>) {
    on_a_thread(async move || {
        let mut stubs = Vec::new();
        for name in cast {
            let stream = reach(&socket).await;
            let player = ScriptedPlugin { name: name.clone(), scene: Arc::clone(&scene) };
            stubs.push(Stub::serve(stream, &name, "", Arc::new(player)).await.unwrap());
        }
        for stub in stubs {
            stub.closed().await;
        }
    });
}

struct ScriptedPlugin {
    name: String,
    scene: Arc<Mutex<Scene>>,
}

impl ScriptedPlugin {
    fn answer<M: MessageFull>(&self, sees: impl FnOnce() -> Option<Value>) -> M {
        let mut scene = self.scene.lock().unwrap();
        if self.name == LAST {
            scene.seen = sees();
        }
        let answer = scene.answers.iter().find(|(plugin, _)| *plugin == self.name);
        answer.map(|(_, answer)| message(answer)).unwrap_or_default()
    }
}

#[async_trait]
impl Handler for ScriptedPlugin {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer, Event::UpdateContainer, Event::StopContainer]
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> Result<api::CreateContainerResponse> {
        Ok(self.answer(|| Some(show_container(&request.container))))
    }

    async fn update_container(
        &self,
        _: &Context,
        request: api::UpdateContainerRequest,
    ) -> Result<api::UpdateContainerResponse> {
        Ok(self.answer(|| Some(show_resources(&request.linux_resources))))
    }

    async fn stop_container(
        &self,
        _: &Context,
        _: api::StopContainerRequest,
    ) -> Result<api::StopContainerResponse> {
        Ok(self.answer(|| None))
    }
}
