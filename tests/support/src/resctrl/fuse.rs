// SPDX-License-Identifier: Apache-2.0
//! The part of FUSE's protocol that a small tree of directories and files needs, directly over
//! `/dev/fuse`. The kernel caches nothing: every lookup is a request, and every write reaches the
//! tree with its own error. The content of the tree is defined elsewhere. Reference: kernel
//! `include/uapi/linux/fuse.h`, version 7.31.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};

use nix::errno::Errno;

/// Lengths of the headers of a request and of a reply.
const REQUEST: usize = 40;
const REPLY: usize = 16;

/// Longest write that the kernel is told to send; the buffer also needs space for the header.
const WRITE: u32 = 4096;
const BUFFER: usize = 64 << 10;

/// The kind of a path in the tree.
pub(super) enum Node {
    /// The names in a directory; a name that ends with `/` is a directory itself.
    Dir(Vec<String>),
    /// The text of a file.
    File(String),
}

/// A tree, by paths without a slash at either end; the root is the empty path.
pub(super) trait Tree {
    /// The kind of the path, if it exists.
    fn look(&self, path: &str) -> Option<Node>;
    /// One `write` to a file.
    fn write(&mut self, path: &str, bytes: &[u8]) -> Result<(), Errno>;
    /// Makes a directory.
    fn mkdir(&mut self, path: &str) -> Result<(), Errno>;
    /// Removes a directory.
    fn rmdir(&mut self, path: &str) -> Result<(), Errno>;
}

/// Paths by the numbers that the kernel uses for them.
pub(super) struct Server {
    paths: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Server {
    /// A server that knows the root, whose number is 1.
    pub(super) fn new() -> Self {
        Self { paths: vec![String::new()], numbers: HashMap::from([(String::new(), 1)]) }
    }

    /// Reads one request and replies to it.
    pub(super) fn serve(&mut self, mut device: &File, tree: &mut dyn Tree) -> std::io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        let length = device.read(&mut buffer)?;
        let (code, unique, node) = (u32_at(&buffer, 4), &buffer[8..16], u64_at(&buffer, 16));
        // FORGET and BATCH_FORGET have no reply, and INTERRUPT needs none.
        if matches!(code, 2 | 36 | 42) {
            return Ok(());
        }
        let path = usize::try_from(node).ok().and_then(|node| self.paths.get(node.wrapping_sub(1)));
        let path = path.cloned().unwrap_or_default();
        let result = self.answer(code, &path, &buffer[REQUEST..length], tree);
        let (error, body) = match result {
            Ok(body) => (0, body),
            Err(errno) => (-(errno as i32), Vec::new()),
        };
        let mut reply = Vec::with_capacity(REPLY + body.len());
        put(&mut reply, u32::try_from(REPLY + body.len()).unwrap());
        reply.extend(error.to_ne_bytes());
        reply.extend(unique);
        reply.extend(body);
        // The kernel has already dropped an interrupted request.
        match device.write(&reply) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => Ok(()),
            written => written.map(|_length| ()),
        }
    }

    fn answer(
        &mut self,
        code: u32,
        path: &str,
        body: &[u8],
        tree: &mut dyn Tree,
    ) -> Result<Vec<u8>, Errno> {
        match code {
            1 => self.entry(&joined(path, name(body)), tree), // LOOKUP
            3 | 4 => Ok(self.attributes(path, tree)?),        // GETATTR, SETATTR (O_TRUNC)
            9 => {
                let made = joined(path, name(&body[8..])); // MKDIR
                tree.mkdir(&made)?;
                self.entry(&made, tree)
            }
            11 => tree.rmdir(&joined(path, name(body))).map(|()| Vec::new()), // RMDIR
            14 | 27 => tree.look(path).ok_or(Errno::ENOENT).map(|_node| opened()), // OPEN, OPENDIR
            15 => Ok(slice(text(tree.look(path))?.as_bytes(), body)),         // READ
            16 => {
                let size = u32_at(body, 16); // WRITE
                tree.write(path, &body[40..])?;
                Ok([size.to_ne_bytes(), [0; 4]].concat())
            }
            17 => Ok(vec![0; 80]),               // STATFS
            18 | 25 | 29 | 34 => Ok(Vec::new()), // RELEASE, FLUSH, RELEASEDIR, ACCESS
            26 => Ok(greeting()),
            28 => self.listing(path, body, tree), // READDIR
            35 => Err(Errno::EACCES),             // CREATE: no file can be created
            _ => Err(Errno::ENOSYS),
        }
    }

    fn number(&mut self, path: &str) -> u64 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        self.paths.push(path.to_owned());
        let number = u64::try_from(self.paths.len()).unwrap();
        self.numbers.insert(path.to_owned(), number);
        number
    }

    fn entry(&mut self, path: &str, tree: &dyn Tree) -> Result<Vec<u8>, Errno> {
        let node = tree.look(path).ok_or(Errno::ENOENT)?;
        let number = self.number(path);
        // Number, generation, and how long both parts are valid: not at all.
        let mut entry = number.to_ne_bytes().to_vec();
        entry.extend([0; 32]);
        entry.extend(attribute(number, &node));
        Ok(entry)
    }

    fn attributes(&mut self, path: &str, tree: &dyn Tree) -> Result<Vec<u8>, Errno> {
        let node = tree.look(path).ok_or(Errno::ENOENT)?;
        Ok([vec![0; 16], attribute(self.number(path), &node)].concat())
    }

    fn listing(&mut self, path: &str, body: &[u8], tree: &dyn Tree) -> Result<Vec<u8>, Errno> {
        let Some(Node::Dir(names)) = tree.look(path) else { return Err(Errno::ENOTDIR) };
        let (from, room) = (u64_at(body, 8), u32_at(body, 16));
        let mut listing = Vec::new();
        for (at, name) in (1_u64..).zip(&names).skip(usize::try_from(from).unwrap()) {
            let (bare, kind) = match name.strip_suffix('/') {
                Some(bare) => (bare, 4_u32),
                None => (name.as_str(), 8),
            };
            let length = (24 + bare.len()).next_multiple_of(8);
            if listing.len() + length > room as usize {
                break;
            }
            let end = listing.len() + length;
            listing.extend(self.number(&joined(path, bare)).to_ne_bytes());
            listing.extend(at.to_ne_bytes());
            put(&mut listing, u32::try_from(bare.len()).unwrap());
            put(&mut listing, kind);
            listing.extend(bare.as_bytes());
            listing.resize(end, 0);
        }
        Ok(listing)
    }
}

/// `fuse_init_out`: the version, and the maximum size of a write.
fn greeting() -> Vec<u8> {
    let mut greeting = Vec::new();
    for number in [7, 31, 0, 0, 0, WRITE] {
        put(&mut greeting, number);
    }
    greeting.resize(64, 0);
    greeting
}

/// `fuse_open_out` with direct I/O, because the size of a file is not known.
fn opened() -> Vec<u8> {
    let mut opened = vec![0; 8];
    put(&mut opened, 1);
    put(&mut opened, 0);
    opened
}

/// `fuse_attr`.
fn attribute(number: u64, node: &Node) -> Vec<u8> {
    let mode: u32 = match node {
        Node::Dir(_) => 0o040_755,
        Node::File(_) => 0o100_644,
    };
    let mut attribute = number.to_ne_bytes().to_vec();
    attribute.resize(60, 0);
    put(&mut attribute, mode);
    put(&mut attribute, 1);
    attribute.resize(88, 0);
    attribute
}

fn text(node: Option<Node>) -> Result<String, Errno> {
    match node {
        Some(Node::File(text)) => Ok(text),
        Some(Node::Dir(_)) => Err(Errno::EISDIR),
        None => Err(Errno::ENOENT),
    }
}

/// The part of `text` that a READ requests.
fn slice(text: &[u8], body: &[u8]) -> Vec<u8> {
    let from = usize::try_from(u64_at(body, 8)).unwrap().min(text.len());
    let end = (from + u32_at(body, 16) as usize).min(text.len());
    text[from..end].to_vec()
}

fn name(bytes: &[u8]) -> &str {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    std::str::from_utf8(bytes).unwrap_or("\u{fffd}")
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

fn put(to: &mut Vec<u8>, number: u32) {
    to.extend(number.to_ne_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}
