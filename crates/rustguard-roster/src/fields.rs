//! Records as lists of fields, so that a later version can add fields and an earlier one passes them on.
//!
//! ```text
//! record: u16 length of the fields in bytes, the fields in ascending order of their types
//! field:  u8 type, u16 length of the value in bytes, the value
//! ```
//!
//! Numbers are little-endian. Equal records have equal bytes: a record that would be written differently than it was
//! read is refused, because digests cover the bytes.

use ipnet::IpNet;
use std::net::IpAddr;

/// Fields of types that this version does not know. They belong to the record, and are part of what is signed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unknown(Vec<(u8, Box<[u8]>)>);

impl Unknown {
    pub(crate) fn push(&mut self, kind: u8, value: &[u8]) {
        self.0.push((kind, value.into()));
    }

    /// The value of a rare field, for which the structs have no field of their own.
    pub(crate) fn get(&self, kind: u8) -> Option<&[u8]> {
        self.0.iter().find(|(other, _)| *other == kind).map(|(_, value)| &**value)
    }

    /// Sets the value of such a field, in its place in the order.
    pub(crate) fn set(&mut self, kind: u8, value: &[u8]) {
        let at = self.0.partition_point(|(other, _)| *other < kind);
        if self.0.get(at).is_some_and(|(other, _)| *other == kind) {
            self.0.remove(at);
        }
        self.0.insert(at, (kind, value.into()));
    }
}

/// Writes one record.
pub(crate) struct Writer<'t> {
    text: &'t mut Vec<u8>,
    start: usize,
}

impl<'t> Writer<'t> {
    pub(crate) fn new(text: &'t mut Vec<u8>) -> Self {
        let start = text.len();
        text.extend_from_slice(&[0; 2]);
        Self { text, start }
    }

    /// Writes a field, unless it is empty: an absent field and an empty one are the same.
    pub(crate) fn field(&mut self, kind: u8, value: &[u8]) {
        if !value.is_empty() {
            self.text.push(kind);
            self.text.extend_from_slice(&len(value.len()));
            self.text.extend_from_slice(value);
        }
    }

    /// Writes a field of elements: for each, its length as a byte, then its bytes.
    pub(crate) fn list<T>(&mut self, kind: u8, elements: &[T], mut bytes: impl FnMut(&T, &mut Vec<u8>)) {
        let mut value = Vec::new();
        for element in elements {
            let at = value.len();
            value.push(0);
            bytes(element, &mut value);
            value[at] = u8::try_from(value.len() - at - 1).expect("elements have at most 255 bytes");
        }
        self.field(kind, &value);
    }

    /// Ends the record. The fields of unknown types have to be the last ones.
    pub(crate) fn finish(mut self, unknown: &Unknown) {
        for (kind, value) in &unknown.0 {
            self.field(*kind, value);
        }
        let fields = len(self.text.len() - self.start - 2);
        self.text[self.start..self.start + 2].copy_from_slice(&fields);
    }
}

fn len(len: usize) -> [u8; 2] {
    u16::try_from(len).expect("records have at most 65,535 bytes").to_le_bytes()
}

/// The fields of the record at the beginning of `text`. Moves `text` behind the record.
pub(crate) fn record<'t>(text: &mut &'t [u8]) -> Option<Fields<'t>> {
    let (len, rest) = text.split_first_chunk()?;
    let (fields, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
    *text = rest;
    Some(Fields { left: fields, last: None })
}

/// The fields of a record that are not read yet.
pub(crate) struct Fields<'t> {
    left: &'t [u8],
    last: Option<u8>,
}

impl<'t> Fields<'t> {
    /// The type and the value of the next field, `Some(None)` at the end. `None` for a malformed field, and for a type
    /// out of order.
    pub(crate) fn next(&mut self) -> Option<Option<(u8, &'t [u8])>> {
        if self.left.is_empty() {
            return Some(None);
        }
        let ([kind, low, high], rest) = self.left.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
        let field = Some((*kind, value)).filter(|_| self.last < Some(*kind))?;
        (self.left, self.last) = (rest, Some(*kind));
        Some(Some(field))
    }
}

/// The elements of a field that [`Writer::list`] has written, at most `most`.
pub(crate) fn list<T>(mut value: &[u8], most: usize, mut read: impl FnMut(&[u8]) -> Option<T>) -> Option<Vec<T>> {
    let mut elements = Vec::new();
    while let Some((&len, rest)) = value.split_first() {
        let (element, rest) = rest.split_at_checked(usize::from(len))?;
        elements.push(read(element).filter(|_| elements.len() < most)?);
        value = rest;
    }
    // A network has thousands of such lists, and they stay in memory.
    elements.shrink_to_fit();
    Some(elements)
}

/// Writes an address: 4 or 16 bytes.
pub(crate) fn put_address(address: &IpAddr, to: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => to.extend_from_slice(&address.octets()),
        IpAddr::V6(address) => to.extend_from_slice(&address.octets()),
    }
}

/// Reads an address.
pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || Some(IpAddr::from(*<&[u8; 4]>::try_from(bytes).ok()?));
    let v6 = || Some(IpAddr::from(*<&[u8; 16]>::try_from(bytes).ok()?));
    v4().or_else(v6)
}

/// Writes a prefix: its length in bits as a byte, and its address.
pub(crate) fn put_prefix(prefix: &IpNet, to: &mut Vec<u8>) {
    to.push(prefix.prefix_len());
    put_address(&prefix.addr(), to);
}

/// Reads a prefix. `None` if bits behind its length are set.
pub(crate) fn prefix(bytes: &[u8]) -> Option<IpNet> {
    let (&len, bytes) = bytes.split_first()?;
    IpNet::new(address(bytes)?, len).ok().filter(|prefix| prefix.trunc() == *prefix)
}

/// Reads a value of a type that parses from UTF-8 text.
pub(crate) fn text<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}
