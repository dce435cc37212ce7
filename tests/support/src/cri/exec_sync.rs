// SPDX-License-Identifier: Apache-2.0
//! ExecSync: runs a command in a container and waits for it, as kubelet's exec probes do.

use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
struct ExecSyncRequest {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(string, repeated, tag = "2")]
    cmd: Vec<String>,
    #[prost(int64, tag = "3")]
    timeout: i64,
}

/// The result of the command.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExecSyncResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub exit_code: i32,
}

/// Runs `cmd` in the container, for at most a minute.
pub async fn exec_sync(
    channel: Channel,
    id: &str,
    cmd: &[&str],
) -> Result<ExecSyncResponse, tonic::Status> {
    let request = ExecSyncRequest {
        container_id: id.to_owned(),
        cmd: cmd.iter().map(|word| (*word).to_owned()).collect(),
        timeout: 60,
    };
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| tonic::Status::unknown(error.to_string()))?;
    let path =
        tonic::codegen::http::uri::PathAndQuery::from_static("/runtime.v1.RuntimeService/ExecSync");
    let codec: ProstCodec<ExecSyncRequest, ExecSyncResponse> = ProstCodec::default();
    client.unary(tonic::Request::new(request), path, codec).await.map(tonic::Response::into_inner)
}
