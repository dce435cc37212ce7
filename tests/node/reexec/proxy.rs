// SPDX-License-Identifier: Apache-2.0
//! A proxy between a plugin and the daemon, which holds back data of the plugin.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Forwards the data of one connection.
pub(crate) struct Proxy {
    pub(crate) socket: PathBuf,
    holds: Arc<AtomicBool>,
    /// While it holds: the number of further bytes that are forwarded.
    allowed: Arc<AtomicUsize>,
    held: Arc<Mutex<Vec<u8>>>,
    daemon: Arc<Mutex<Option<UnixStream>>>,
}

impl Proxy {
    pub(crate) fn new(socket: PathBuf, daemon: &Path) -> Self {
        let proxy = Self {
            socket,
            holds: Arc::default(),
            allowed: Arc::default(),
            held: Arc::default(),
            daemon: Arc::default(),
        };
        let listener = UnixListener::bind(&proxy.socket).unwrap();
        let (holds, allowed) = (Arc::clone(&proxy.holds), Arc::clone(&proxy.allowed));
        let (held, slot) = (Arc::clone(&proxy.held), Arc::clone(&proxy.daemon));
        let daemon = daemon.to_owned();
        std::thread::spawn(move || {
            let (mut plugin, _) = listener.accept().unwrap();
            let mut daemon = UnixStream::connect(daemon).unwrap();
            *slot.lock().unwrap() = Some(daemon.try_clone().unwrap());
            let (mut from, mut to) = (daemon.try_clone().unwrap(), plugin.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = plugin.read(&mut buffer) {
                let mut bytes = &buffer[..length];
                if holds.load(Ordering::SeqCst) {
                    let now = allowed.load(Ordering::SeqCst).min(length);
                    allowed.fetch_sub(now, Ordering::SeqCst);
                    held.lock().unwrap().extend_from_slice(&bytes[now..]);
                    bytes = &bytes[..now];
                }
                if daemon.write_all(bytes).is_err() {
                    return;
                }
            }
        });
        proxy
    }

    /// Forwards `bytes` further bytes, and holds back the rest.
    pub(crate) fn hold_after(&self, bytes: usize) {
        self.allowed.store(bytes, Ordering::SeqCst);
        self.holds.store(true, Ordering::SeqCst);
    }

    /// The number of bytes that are held back.
    pub(crate) fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Forwards the bytes that were held back, and everything from now on.
    pub(crate) fn release(&self) {
        let mut held = self.held.lock().unwrap();
        self.holds.store(false, Ordering::SeqCst);
        let bytes = std::mem::take(&mut *held);
        self.daemon.lock().unwrap().as_mut().unwrap().write_all(&bytes).unwrap();
    }
}
