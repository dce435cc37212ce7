// SPDX-License-Identifier: Apache-2.0
//! A runtime and a plugin in one process, over a socket: the plugin registers, the runtime
//! configures it.
//!
//! `cargo run -p nri-transport --example handshake`
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nri_api::event::Event;
use nri_transport::{
    NoUpcalls, client, register, serve_plugin, serve_runtime, split, split_to_call,
};
use tokio::net::{UnixListener, UnixStream};
use ttrpc::r#async::TtrpcContext;

const TIMEOUT: Duration = Duration::from_secs(2);

struct Greeter;

#[async_trait]
impl nri_api::Plugin for Greeter {
    async fn configure(
        &self,
        _: &TtrpcContext,
        request: nri_api::ConfigureRequest,
    ) -> ttrpc::Result<nri_api::ConfigureResponse> {
        println!("plugin: configured by {}", request.runtime_name);
        let events = Event::CreateContainer.bit();
        Ok(nri_api::ConfigureResponse { events, ..Default::default() })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("nri-handshake-{}", std::process::id()));
    let listener = UnixListener::bind(&path)?;
    let plugin = UnixStream::connect(&path).await?;
    let (runtime, _address) = listener.accept().await?;
    std::fs::remove_file(&path)?;

    let (trunk, caller, connection) = split_to_call(runtime)?;
    let mut server = serve_runtime(&trunk, connection, None, Arc::new(NoUpcalls)).await?;

    let (_plugin_trunk, to_plugin, to_runtime) = split(plugin)?;
    let _plugin = serve_plugin(to_plugin, Arc::new(Greeter), None).await?;
    register(&client(to_runtime), "10", "greeter", TIMEOUT).await?;

    let identity = server.registered(&trunk, TIMEOUT).await?;
    let request =
        nri_api::ConfigureRequest { runtime_name: "example".into(), ..Default::default() };
    let answer = caller.call(&request, TIMEOUT, &[]).await;
    let answer = answer.map_err(|why| format!("Configure: {why:?}"))?;
    println!("runtime: {identity} subscribed to events 0x{:x}", answer.events);
    Ok(())
}
