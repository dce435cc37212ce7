// SPDX-License-Identifier: Apache-2.0
//! The kernel's messages about the addresses of a network namespace: encodes the request for all
//! addresses, and decodes one response. Numbers are in the machine's byte order. Reference:
//! netlink(7), rtnetlink(7), `linux/if_addr.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const REQUEST_AND_DUMP: u16 = 0x1 | 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;

const HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
/// Headers begin at a multiple of this many bytes; the header of an attribute has this length.
const ALIGNED: usize = 4;

const ATTRIBUTE_ADDRESS: u16 = 1;
const ATTRIBUTE_LOCAL: u16 = 2;

/// The flag of an address that another host also has, so that the kernel does not use it.
const DUPLICATE: u8 = 0x08;
/// Addresses of this scope and above (link, host) are not routed, so they are left out.
const LINK_SCOPE: u8 = 253;

/// Encodes the request for all addresses of the socket's namespace.
pub(crate) fn address_request() -> Vec<u8> {
    let length = u32::try_from(HEADER + ADDRESS_HEADER).unwrap_or_default();
    let sequence: u32 = 1;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(GET_ADDRESS.to_ne_bytes());
    bytes.extend(REQUEST_AND_DUMP.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.resize(HEADER + ADDRESS_HEADER, 0);
    bytes
}

/// An address at which other hosts can reach the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundAddress {
    /// The number of the address's interface.
    pub(crate) interface: u32,
    /// The address.
    pub(crate) address: IpAddr,
}

/// Adds the addresses of one response; returns false if it is the last, an error, or malformed.
pub(crate) fn read_addresses(mut answer: &[u8], found: &mut Vec<FoundAddress>) -> bool {
    while !answer.is_empty() {
        let Some((kind, message, rest)) = next_message(answer) else { return false };
        match kind {
            DONE | ERROR => return false,
            NEW_ADDRESS => found.extend(address(message)),
            _ => {}
        }
        answer = rest;
    }
    true
}

/// Returns the type and the content of a message, and the bytes after it.
fn next_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(array(bytes, 0)?)).ok()?;
    let kind = u16::from_ne_bytes(array(bytes, 4)?);
    let message = bytes.get(HEADER..length)?;
    let rest = bytes.get(length.next_multiple_of(ALIGNED)..).unwrap_or_default();
    Some((kind, message, rest))
}

fn address(message: &[u8]) -> Option<FoundAddress> {
    let [_family, _prefix, flags, scope] = array::<4>(message, 0)?;
    if scope >= LINK_SCOPE || flags & DUPLICATE != 0 {
        return None;
    }
    let interface = u32::from_ne_bytes(array(message, 4)?);
    let mut rest = message.get(ADDRESS_HEADER..)?;
    let (mut local, mut other) = (None, None);
    while !rest.is_empty() {
        let length = usize::from(u16::from_ne_bytes(array(rest, 0)?));
        let value = rest.get(ALIGNED..length)?;
        match u16::from_ne_bytes(array(rest, 2)?) {
            // On a point-to-point link, this is the local address, and the other attribute is the
            // peer's.
            ATTRIBUTE_LOCAL => local = ip(value),
            ATTRIBUTE_ADDRESS => other = ip(value),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(ALIGNED)..).unwrap_or_default();
    }
    let address = local.or(other).filter(|address| !address.is_loopback())?;
    Some(FoundAddress { interface, address })
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from(array::<4>(value, 0)?).into()),
        16 => Some(Ipv6Addr::from(array::<16>(value, 0)?).into()),
        _ => None,
    }
}

fn array<const LENGTH: usize>(bytes: &[u8], at: usize) -> Option<[u8; LENGTH]> {
    bytes.get(at..at + LENGTH)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(ALIGNED + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(ALIGNED), 0);
        bytes
    }

    fn message(kind: u16, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + content.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend_from_slice(content);
        bytes
    }

    fn told(interface: u32, flags: u8, scope: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut content = vec![2, 24, flags, scope];
        content.extend(interface.to_ne_bytes());
        content.extend(attributes.concat());
        message(NEW_ADDRESS, &content)
    }

    fn read(answer: &[u8]) -> (Vec<String>, bool) {
        let mut found = Vec::new();
        let has_more = read_addresses(answer, &mut found);
        let shown = found.iter().map(|one| format!("{} {}", one.interface, one.address));
        (shown.collect(), has_more)
    }

    #[test]
    fn only_addresses_that_other_hosts_can_reach_are_read() {
        let name = attribute(3, b"eth0\0");
        let v6: [u8; 16] = "2001:db8::7".parse::<Ipv6Addr>().unwrap().octets();
        let answer = [
            told(1, 0, 254, &[attribute(ATTRIBUTE_LOCAL, &[127, 0, 0, 1])]),
            told(
                4,
                0x80,
                0,
                &[
                    attribute(ATTRIBUTE_ADDRESS, &[192, 0, 2, 1]),
                    attribute(ATTRIBUTE_LOCAL, &[192, 0, 2, 7]),
                    name,
                ],
            ),
            told(4, 0, 253, &[attribute(ATTRIBUTE_ADDRESS, &[169, 254, 0, 1])]),
            told(4, 0, 0, &[attribute(ATTRIBUTE_ADDRESS, &v6)]),
            told(4, DUPLICATE, 0, &[attribute(ATTRIBUTE_ADDRESS, &[192, 0, 2, 9])]),
            told(1, 0, 0, &[attribute(ATTRIBUTE_LOCAL, &[127, 0, 0, 9])]),
        ];
        let wanted = vec!["4 192.0.2.7".to_owned(), "4 2001:db8::7".to_owned()];
        assert_eq!(read(&answer.concat()), (wanted.clone(), true));
        let last = [answer.concat(), message(DONE, &[0; 4])].concat();
        assert_eq!(read(&last), (wanted, false));
    }

    #[test]
    fn an_error_or_a_partial_message_ends_reading() {
        let whole = told(4, 0, 0, &[attribute(ATTRIBUTE_LOCAL, &[192, 0, 2, 7])]);
        let refused = message(ERROR, &[0; 20]);
        assert_eq!(read(&refused), (Vec::new(), false));
        for length in 1..whole.len() {
            let (found, has_more) = read(&whole[..length]);
            assert!(found.is_empty() && !has_more, "{length}");
        }
        // Lengths that are too small or too large.
        for length in [0_u32, 4, 15, u32::MAX] {
            let mut odd = whole.clone();
            odd[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(read(&odd), (Vec::new(), false), "{length}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_always_ends(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let whole = told(4, 0, 0, std::slice::from_ref(&bytes));
            read_addresses(&bytes, &mut Vec::new());
            read_addresses(&whole, &mut Vec::new());
        }
    }
}
