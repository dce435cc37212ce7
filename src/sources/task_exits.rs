// SPDX-License-Identifier: Apache-2.0
//! The exits of processes as containerd publishes them: `events.v1.Events/Subscribe` on its socket,
//! filtered for TaskExit (api/services/events/v1/events.proto, api/events/task.proto; gRPC over
//! HTTP/2 as in `unary.rs`). The subscription lasts as long as the connection. This module does not
//! retry, and keeps no event.

use std::path::Path;

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::unary::{self, ResponseStream};
use crate::error::{Context, Error, Result};
use crate::formats::protobuf::{self, fields, member, text};
use crate::limits;

const PATH: &str = "/containerd.services.events.v1.Events/Subscribe";
const FILTER: &[u8] = b"topic==\"/tasks/exit\"";

/// The exit of a container's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskExit {
    /// The container's ID.
    pub(crate) id: String,
    /// The PID of the process.
    pub(crate) pid: u32,
    /// The exit code, or 128 plus the signal.
    pub(crate) code: i32,
}

/// Receives the exits of all containers, until the connection ends.
///
/// # Errors
/// Fails when the connection fails, or containerd refuses the subscription or sends anything but
/// events.
pub(crate) async fn follow_task_exits(
    socket: &Path,
    mut on_exit: impl FnMut(TaskExit),
) -> Result<()> {
    let mut stream = UnixStream::connect(socket).await?;
    let request = protobuf::field(1, FILTER);
    stream.write_all(&unary::requests(PATH, &[], &[request])).await?;
    let mut received = ResponseStream::default();
    while !received.has_ended() {
        let frame = unary::next_frame(&mut stream).await.doing(|| "reading containerd's events")?;
        if frame.is_of_first() {
            received.take(frame.kind, frame.flags, &frame.body)?;
        }
        if frame.is_data() {
            stream.write_all(&frame.window_again()).await?;
        }
        while let Some(message) = received.next_message(limits::TASK_EVENT)? {
            task_exit(&message)?.into_iter().for_each(&mut on_exit);
        }
    }
    match received.refused() {
        Some(why) => Err(Error::new(why.to_string())),
        None => Ok(()),
    }
}

/// Reads a `TaskExit` (fields: 1 container_id, 2 id, 3 pid, 4 exit_status) from an `Envelope`,
/// whose field 4 is an `Any` with the value in field 2. `None` for the process of an `exec`, whose
/// `id` differs from the container's, and for an invalid PID or exit code.
///
/// # Errors
/// Fails if the bytes are not an `Envelope` with a `TaskExit`.
fn task_exit(envelope: &[u8]) -> Result<Option<TaskExit>> {
    let (mut id, mut process, mut pid, mut code) = (String::new(), String::new(), 0, 0);
    for field in fields(member(member(envelope, 4)?, 2)?) {
        let field = field?;
        let number = protobuf::number(&field).unwrap_or_default();
        match field.number {
            1 => id = text(field.value),
            2 => process = text(field.value),
            3 => pid = u32::try_from(number).unwrap_or_default(),
            4 => code = i32::try_from(number).unwrap_or(-1),
            _ => {}
        }
    }
    let is_init = !id.is_empty() && id == process && pid > 0 && (0..=255).contains(&code);
    Ok(is_init.then_some(TaskExit { id, pid, code }))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::formats::protobuf::{field, write_varint};
    use proptest::prelude::*;

    fn exit(id: &str, process: &str, pid: u64, code: u64) -> Vec<u8> {
        let mut event = [field(1, id.as_bytes()), field(2, process.as_bytes())].concat();
        for (number, value) in [(3_u64, pid), (4, code)] {
            write_varint(&mut event, number << 3);
            write_varint(&mut event, value);
        }
        field(4, &[field(1, b"containerd.events.TaskExit"), field(2, &event)].concat())
    }

    #[test]
    fn a_containers_exit_is_read_and_an_execs_is_ignored() {
        let wanted = TaskExit { id: "c".to_owned(), pid: 700, code: 137 };
        assert_eq!(task_exit(&exit("c", "c", 700, 137)).unwrap(), Some(wanted));
        assert_eq!(task_exit(&exit("c", "exec1", 700, 0)).unwrap(), None);
    }

    #[test]
    fn an_exit_without_process_or_with_an_odd_code_is_ignored() {
        for (id, pid, code) in [("c", 0, 1), ("", 7, 1), ("c", 7, 256), ("c", u64::MAX, 1)] {
            assert_eq!(task_exit(&exit(id, id, pid, code)).unwrap(), None, "{id} {pid} {code}");
        }
        assert!(task_exit(&exit("c", "c", 7, 1)[..9]).is_err());
    }

    /// Follows a server that sends `says` after the request, and then closes the connection.
    fn followed(says: Vec<u8>) -> (Result<()>, Vec<TaskExit>) {
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("s");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut all = Vec::new();
        let ended = runtime.block_on(async {
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            let server = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(&says).await.unwrap();
                stream.shutdown().await.unwrap();
                let mut rest = Vec::new();
                let _until_it_closes = stream.read_to_end(&mut rest).await;
            };
            tokio::join!(follow_task_exits(&socket, |exit| all.push(exit)), server).0
        });
        (ended, all)
    }

    fn data(message: &[u8], flags: u8) -> Vec<u8> {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let body = [&[0], &length[..], message].concat();
        unary::frame_of(0, flags, 1, &body)
    }

    #[test]
    fn events_in_one_frame_or_in_pieces_are_received() {
        let (one, two) = (exit("a", "a", 1, 3), exit("b", "b", 2, 4));
        let mut says = data(&one, 0);
        let whole = data(&two, 0);
        // The second event in two frames.
        let body = &whole[9..];
        says.extend(unary::frame_of(0, 0, 1, &body[..7]));
        says.extend(unary::frame_of(0, 1, 1, &body[7..]));
        let (ended, all) = followed(says);
        ended.unwrap();
        let codes: Vec<(&str, i32)> =
            all.iter().map(|exit| (exit.id.as_str(), exit.code)).collect();
        assert_eq!(codes, [("a", 3), ("b", 4)]);
    }

    #[test]
    fn a_server_that_breaks_off_or_sends_too_much_is_an_error() {
        let message = exit("a", "a", 1, 3);
        let mut cut = data(&message, 0);
        cut.truncate(cut.len() - 2);
        let too_long = [&[0][..], &u32::MAX.to_be_bytes()].concat();
        for says in [cut, unary::frame_of(0, 0, 1, &too_long), data(b"\xff", 0), Vec::new()] {
            let (ended, all) = followed(says);
            assert!(ended.is_err() && all.is_empty(), "{ended:?} {all:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(task_exit(&bytes));
        }
    }
}
