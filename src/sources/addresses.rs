// SPDX-License-Identifier: Apache-2.0
//! The addresses of a container, read from its network namespace while its process runs.
//!
//! A thread enters the namespace (or several, one after the other), queries the kernel, and ends;
//! no other thread of this process leaves the host's namespace. No program runs inside and no file
//! of the container is opened; time, bytes and responses are limited, regardless of what the
//! namespace contains. A container in the host's namespace has no addresses of its own. Reference:
//! network_namespaces(7), setns(2).

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;
use tokio::sync::mpsc;

use crate::files;
use crate::formats::netlink::{FoundAddress, address_request, read_addresses};
use crate::host::Host;
use crate::limits;
use crate::presence::IfThere;
use crate::procfs;

/// Time that a container's events wait for its addresses.
const ADDRESSES_WAIT: Duration = Duration::from_millis(250);

/// Time limit for the addresses of all containers when the daemon starts.
const ALL_ADDRESSES_WAIT: Duration = Duration::from_secs(60);

/// Time limit for each response of the kernel.
const ANSWER_WAIT: TimeVal = TimeVal::new(0, 200_000);

/// The number of threads that are in other namespaces.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Returns the addresses in the network namespace of the process `pid` that started at `start`, by
/// interface, version 4 first; none in the host's namespace, or if they are not available in time.
pub(crate) async fn addresses(host: &Host, pid: u32, start: Option<u64>) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(namespace) = foreign_namespace(host, pid, start) {
        let namespaces = std::iter::once(Some(namespace));
        in_each(namespaces, ADDRESSES_WAIT, |_, addresses| found = addresses).await;
    }
    found
}

/// Reads the addresses of many processes, one after the other; `found` receives a process's
/// position in the list and its addresses. Addresses that are not found within a minute stay
/// unknown.
pub(crate) async fn addresses_of_each(
    host: &Host,
    processes: Vec<(u32, Option<u64>)>,
    found: impl FnMut(usize, Vec<String>),
) {
    let host = host.clone();
    let namespace = move |(pid, start)| foreign_namespace(&host, pid, start);
    in_each(processes.into_iter().map(namespace), ALL_ADDRESSES_WAIT, found).await;
}

/// Queries the addresses in one namespace after the other, in one thread.
async fn in_each(
    namespaces: impl Iterator<Item = Option<File>> + Send + 'static,
    wait: Duration,
    mut found: impl FnMut(usize, Vec<String>),
) {
    let Some(place) = Place::take() else { return };
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let work = move || {
        for (number, namespace) in namespaces.enumerate() {
            let addresses = namespace.and_then(|namespace| look(&namespace)).unwrap_or_default();
            if sender.send((number, shown(addresses))).is_err() {
                break; // The caller has stopped waiting.
            }
        }
        drop(place);
    };
    if std::thread::Builder::new().name("addresses".to_owned()).spawn(work).is_err() {
        return;
    }
    let deadline = tokio::time::Instant::now() + wait;
    let mut next = async || tokio::time::timeout_at(deadline, receiver.recv()).await;
    while let Ok(Some((number, addresses))) = next().await {
        found(number, addresses);
    }
}

/// A permit for one thread; released on drop.
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let place = Self;
        (UNDER_WAY.fetch_add(1, Ordering::Relaxed) < limits::NAMESPACE_THREADS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Opens the network namespace of the process `pid`, unless it is the host's or the daemon's.
fn foreign_namespace(host: &Host, pid: u32, start: Option<u64>) -> Option<File> {
    let path = |pid: &str| host.path(format!("/proc/{pid}/ns/net"));
    let identity = |meta: Metadata| (meta.dev(), meta.ino());
    let of = |path: &Path| std::fs::metadata(path).or_absent().map(identity);
    let ours = ["self", "1"].map(|pid| of(&path(pid)));
    let theirs = path(&pid.to_string());
    if ours.contains(&of(&theirs)) {
        return None;
    }
    // Checked again, because the process may have entered the host's namespace.
    let namespace = files::open_regular(&theirs).or_absent()?;
    if ours.contains(&namespace.metadata().or_absent().map(identity)) {
        return None;
    }
    // Checked after the open: if the process had ended before it, another process could have its
    // PID.
    procfs::open_same(host, pid, start).or_absent()??;
    Some(namespace)
}

/// Moves this thread into the namespace, and queries its addresses. The thread never returns to the
/// host's namespace.
fn look(namespace: &File) -> Option<Vec<FoundAddress>> {
    let deadline = Instant::now() + ADDRESSES_WAIT;
    setns(namespace, CloneFlags::CLONE_NEWNET).ok()?;
    let kind = SockType::Raw;
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkRoute).ok()?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &ANSWER_WAIT).ok()?;
    send(socket.as_raw_fd(), &address_request(), MsgFlags::empty()).ok()?;
    let (mut found, mut answer) = (Vec::new(), vec![0; limits::ADDRESS_ANSWER]);
    for _answer in 0..limits::ADDRESS_ANSWERS {
        let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).ok()?;
        let has_more = read_addresses(answer.get(..length)?, &mut found);
        if !has_more || Instant::now() > deadline {
            break;
        }
    }
    Some(found)
}

fn shown(mut found: Vec<FoundAddress>) -> Vec<String> {
    found.sort_by_key(|one| (one.interface, one.address.is_ipv6()));
    found.truncate(limits::ADDRESSES);
    found.into_iter().map(|one| one.address.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(pid: u32, start: Option<u64>) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(addresses(&Host::default(), pid, start))
    }

    #[test]
    fn the_hosts_namespace_or_a_missing_process_has_no_addresses() {
        let own = std::process::id();
        assert_eq!(looked(own, None), [""; 0]);
        assert!(foreign_namespace(&Host::default(), own, None).is_none());
        assert_eq!(looked(u32::MAX, None), [""; 0]);
    }

    #[test]
    fn a_file_that_is_not_a_namespace_is_not_entered() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("net");
        files::replace(&file, b"").unwrap();
        let file = File::open(file).unwrap();
        let looked = std::thread::spawn(move || look(&file).is_none());
        assert!(looked.join().unwrap());
    }

    #[test]
    fn addresses_are_ordered_by_interface_with_ipv4_first() {
        let one = |interface, address: &str| FoundAddress {
            interface,
            address: address.parse().unwrap(),
        };
        let found = vec![one(4, "2001:db8::7"), one(4, "192.0.2.7"), one(2, "2001:db8::8")];
        assert_eq!(shown(found), ["2001:db8::8", "192.0.2.7", "2001:db8::7"]);
        let many = (0..100).map(|n| one(n, "192.0.2.1")).collect();
        assert_eq!(shown(many).len(), limits::ADDRESSES);
    }

    #[test]
    fn the_number_of_namespace_threads_is_limited() {
        let places: Vec<Place> = std::iter::from_fn(Place::take).collect();
        assert!(places.len() <= limits::NAMESPACE_THREADS);
        assert!(Place::take().is_none());
        drop(places);
        assert!(Place::take().is_some());
    }
}
