// SPDX-License-Identifier: Apache-2.0
//! Sets a variable of each container to a greeting from the plugin's configuration, and the container's name.
//!
//! `cargo run -p nri-plugin --example greeter -- --socket /var/run/nri/nri.sock --reconnect`

use std::sync::RwLock;

use nri_plugin::{Adjustment, Blocking, BlockingHandler, Context, Event, Result, api};

struct Greeter(RwLock<String>);

impl BlockingHandler for Greeter {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    fn configure(&self, _: &Context, request: api::ConfigureRequest) -> Result<()> {
        if !request.config.is_empty() {
            *self.0.write().map_err(|error| error.to_string())? = request.config.trim().to_owned();
        }
        Ok(())
    }

    fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> Result<api::CreateContainerResponse> {
        let greeting = self.0.read().map_err(|error| error.to_string())?;
        let greeting = format!("{greeting} {}", request.container.name);
        Ok(Adjustment::new().env("GREETING", &greeting).into())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("10-greeter", Blocking::new(Greeter(RwLock::new("hello".to_owned()))))
}
