//! A simple model: it builds and splits packets one segment at a time by the RFCs, and shares no code with the
//! implementation.

/// The fields of a TCP or UDP packet.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) v4: bool,
    pub(super) tcp: bool,
    pub(super) id: u16,
    pub(super) seq: u32,
    pub(super) flags: u8,
    /// The length of the TCP options in bytes, a multiple of 4 up to 40.
    pub(super) options: usize,
    pub(super) payload: Vec<u8>,
}

impl Packet {
    pub(super) fn l4(&self) -> usize {
        if self.v4 { 20 } else { 40 }
    }

    pub(super) fn headers(&self) -> usize {
        self.l4() + if self.tcp { 20 + self.options } else { 8 }
    }

    /// The packet with correct checksums.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (mut packet, pseudo) = self.without_checksum();
        let field = self.l4() + if self.tcp { 16 } else { 6 };
        let sum = words(&[pseudo, packet[self.l4()..].to_vec()].concat());
        let sum = if sum == 0xffff { 0xffff } else { !sum };
        packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// The packet as the kernel gives it to a network card: the checksum only covers the pseudo-header.
    pub(super) fn with_partial_checksum(&self) -> Vec<u8> {
        let (mut packet, pseudo) = self.without_checksum();
        let field = self.l4() + if self.tcp { 16 } else { 6 };
        packet[field..field + 2].copy_from_slice(&words(&pseudo).to_be_bytes());
        packet
    }

    fn without_checksum(&self) -> (Vec<u8>, Vec<u8>) {
        let l4_len = (self.headers() - self.l4() + self.payload.len()) as u16;
        let protocol = if self.tcp { 6 } else { 17 };
        let mut packet = Vec::new();
        let addresses: Vec<u8> = if self.v4 { (1..9).collect() } else { (1..33).collect() };
        if self.v4 {
            packet.extend([0x45, 0x02]);
            packet.extend((20 + l4_len).to_be_bytes());
            packet.extend(self.id.to_be_bytes());
            packet.extend([0x40, 0, 64, protocol, 0, 0]);
            packet.extend(&addresses);
            let sum = !words(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            packet.extend([0x60, 0x12, 0x34, 0x56]);
            packet.extend(l4_len.to_be_bytes());
            packet.extend([protocol, 64]);
            packet.extend(&addresses);
        }
        packet.extend([0x12, 0x34, 0x56, 0x78]);
        if self.tcp {
            packet.extend(self.seq.to_be_bytes());
            packet.extend([9, 8, 7, 6, ((20 + self.options) / 4 * 16) as u8, self.flags, 0x20, 0x21, 0, 0, 0, 0]);
            packet.extend((0..self.options).map(|i| i as u8 + 1));
        } else {
            packet.extend(l4_len.to_be_bytes());
            packet.extend([0, 0]);
        }
        packet.extend(&self.payload);
        let mut pseudo = addresses;
        pseudo.extend(u32::from(l4_len).to_be_bytes());
        pseudo.extend([0, 0, 0, protocol]);
        (packet, pseudo)
    }

    /// The packets on the wire, by the definition of segmentation offload.
    pub(super) fn segments(&self, size: usize) -> Vec<Vec<u8>> {
        let count = self.payload.chunks(size).len();
        let segment = |(i, payload): (usize, &[u8])| {
            let mut flags = self.flags;
            if i > 0 {
                flags &= !0x80;
            }
            if i + 1 < count {
                flags &= !0x09;
            }
            let (id, seq) = (self.id.wrapping_add(i as u16), self.seq.wrapping_add((i * size) as u32));
            Self { id, seq, flags, payload: payload.to_vec(), ..self.clone() }.to_bytes()
        };
        self.payload.chunks(size).enumerate().map(segment).collect()
    }
}

/// The sum of RFC 1071, word by word.
pub(super) fn words(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
