//! The nine messages. Their form is checked once, at the entry. `docs/enrolment.md` specifies them byte by byte.
//!
//! ```text
//!             joiner                          server
//! A (invite)  Initiation, 1232  ───────────►          Noise_IK; an invite's key
//!                               ◄───────────  Response
//! B (code)    Share, 116        ───────────►          behind a cookie, always
//!                               ◄───────────  ShareReply, 52
//!             Proof, 1232       ───────────►          the joiner proves itself first
//!                               ◄───────────  Welcome
//! both        Claim, 1212       ───────────►          ML-KEM key, proof of the WireGuard key
//!                               ◄───────────  Grant, 1212: the lease
//! ```
//!
//! No answer is longer than the message that it answers, and no datagram is longer than [`MAX_DATAGRAM`].
use crate::{cpace::SHARE_LEN, kem};
use core::ops::RangeInclusive;
use rustguard_core::wire::{COOKIE_REPLY_LEN, MACS_LEN, Message as CoreMessage};

/// The longest datagram in bytes: a packet of 1,280 bytes (the minimum MTU of IPv6), without the headers of IPv6 and
/// UDP.
pub const MAX_DATAGRAM: usize = 1232;
/// The message types. They are outside WireGuard's types 1 to 4, the only ones that other implementations know.
pub const MESSAGE_TYPES: RangeInclusive<u32> = INITIATION..=GRANT;

pub(crate) const INITIATION: u32 = 0x4567_7201;
pub(crate) const RESPONSE: u32 = 0x4567_7202;
pub(crate) const COOKIE: u32 = 0x4567_7203;
pub(crate) const SHARE: u32 = 0x4567_7204;
pub(crate) const SHARE_REPLY: u32 = 0x4567_7205;
pub(crate) const PROOF: u32 = 0x4567_7206;
pub(crate) const WELCOME: u32 = 0x4567_7207;
pub(crate) const CLAIM: u32 = 0x4567_7208;
pub(crate) const GRANT: u32 = 0x4567_7209;

pub(crate) const TAG_LEN: usize = 16;
pub(crate) const INITIATION_LEN: usize = MAX_DATAGRAM;
pub(crate) const INITIATION_TEXT: usize = INITIATION_LEN - (4 + 8 + 32 + 48 + TAG_LEN + MACS_LEN);
pub(crate) const SHARE_MESSAGE_LEN: usize = 4 + 16 + SHARE_LEN + 32 + MACS_LEN;
pub(crate) const SHARE_REPLY_LEN: usize = 4 + 8 + 8 + SHARE_LEN;
pub(crate) const PROOF_LEN: usize = MAX_DATAGRAM;
pub(crate) const PROOF_TEXT: usize = PROOF_LEN - (4 + 8 + TAG_LEN);
pub(crate) const CLAIM_LEN: usize = 4 + 8 + kem::KEY_LEN + TAG_LEN;
pub(crate) const GRANT_LEN: usize = 4 + 8 + kem::CIPHERTEXT_LEN + GRANT_TEXT + TAG_LEN;
pub(crate) const GRANT_TEXT: usize = 96;
/// Bytes of a response besides its text.
pub(crate) const RESPONSE_OVERHEAD: usize = 4 + 8 + 8 + 32 + TAG_LEN;
/// Bytes of a welcome besides its text.
pub(crate) const WELCOME_OVERHEAD: usize = 4 + 8 + 8 + TAG_LEN;

// These relations keep every answer no longer than the message that causes it.
const _: () = assert!(COOKIE_REPLY_LEN <= SHARE_MESSAGE_LEN && SHARE_REPLY_LEN <= SHARE_MESSAGE_LEN);
const _: () = assert!(GRANT_LEN <= CLAIM_LEN && CLAIM_LEN <= MAX_DATAGRAM);

/// The address of one side of an exchange: random, and chosen by that side.
pub(crate) type Index = [u8; 8];

/// Whether a datagram belongs to enrolment, by its type. The data path calls this, so it is a single comparison.
pub fn is_enrolment(datagram: &[u8]) -> bool {
    datagram.first_chunk().is_some_and(|kind| MESSAGE_TYPES.contains(&u32::from_le_bytes(*kind)))
}

/// A datagram of the right form. Nothing in it is authenticated yet.
pub(crate) enum Message<'d> {
    Initiation(Initiation<'d>),
    Response(Response<'d>),
    Cookie(Cookie<'d>),
    Share(Share<'d>),
    ShareReply(ShareReply<'d>),
    Proof(Proof<'d>),
    Welcome(Welcome<'d>),
    Claim(Claim<'d>),
    Grant(Grant<'d>),
}

pub(crate) struct Initiation<'d> {
    pub(crate) sender: Index,
    pub(crate) ephemeral: &'d [u8; 32],
    pub(crate) static_key: &'d [u8; 48],
    pub(crate) text: &'d [u8; INITIATION_TEXT],
    pub(crate) tag: &'d [u8; TAG_LEN],
}

pub(crate) struct Response<'d> {
    pub(crate) receiver: Index,
    pub(crate) session: Index,
    pub(crate) ephemeral: &'d [u8; 32],
    pub(crate) text: &'d [u8],
    pub(crate) tag: &'d [u8; TAG_LEN],
}

/// A cookie reply, in WireGuard's layout except for the type.
pub(crate) struct Cookie<'d>(pub(crate) &'d [u8; COOKIE_REPLY_LEN]);

pub(crate) struct Share<'d> {
    /// CPace's session id; its first half is the joiner's index.
    pub(crate) id: &'d [u8; 16],
    pub(crate) share: &'d [u8; SHARE_LEN],
    /// The commitment to the text of the proof that will follow.
    pub(crate) commitment: &'d [u8; 32],
}

pub(crate) struct ShareReply<'d> {
    pub(crate) receiver: Index,
    pub(crate) session: Index,
    pub(crate) share: &'d [u8; SHARE_LEN],
}

pub(crate) struct Proof<'d> {
    pub(crate) session: Index,
    pub(crate) text: &'d [u8; PROOF_TEXT],
    pub(crate) tag: &'d [u8; TAG_LEN],
}

pub(crate) struct Welcome<'d> {
    pub(crate) receiver: Index,
    pub(crate) counter: u64,
    pub(crate) text: &'d [u8],
    pub(crate) tag: &'d [u8; TAG_LEN],
}

pub(crate) struct Claim<'d> {
    pub(crate) session: Index,
    pub(crate) text: &'d [u8; kem::KEY_LEN],
    pub(crate) tag: &'d [u8; TAG_LEN],
}

pub(crate) struct Grant<'d> {
    pub(crate) receiver: Index,
    pub(crate) ciphertext: &'d [u8; kem::CIPHERTEXT_LEN],
    pub(crate) text: &'d [u8; GRANT_TEXT],
    pub(crate) tag: &'d [u8; TAG_LEN],
}

impl<'d> Message<'d> {
    /// Checks the form. Returns `None` for other types and wrong lengths.
    pub(crate) fn parse(datagram: &'d [u8]) -> Option<Self> {
        let mut fields = Reader(datagram);
        let message = match u32::from_le_bytes(*fields.take()?) {
            INITIATION => Self::Initiation(Initiation {
                sender: *fields.take()?,
                ephemeral: fields.take()?,
                static_key: fields.take()?,
                text: fields.take()?,
                tag: fields.macs_follow().take()?,
            }),
            RESPONSE => Self::Response(Response {
                receiver: *fields.take()?,
                session: *fields.take()?,
                ephemeral: fields.take()?,
                tag: fields.take_last()?,
                text: fields.rest(),
            }),
            COOKIE => {
                fields = Reader(&[]);
                Self::Cookie(Cookie(datagram.try_into().ok()?))
            }
            SHARE => Self::Share(Share {
                id: fields.take()?,
                share: fields.take()?,
                commitment: fields.macs_follow().take()?,
            }),
            SHARE_REPLY => Self::ShareReply(ShareReply {
                receiver: *fields.take()?,
                session: *fields.take()?,
                share: fields.take()?,
            }),
            PROOF => Self::Proof(Proof { session: *fields.take()?, text: fields.take()?, tag: fields.take()? }),
            WELCOME => Self::Welcome(Welcome {
                receiver: *fields.take()?,
                counter: u64::from_le_bytes(*fields.take()?),
                tag: fields.take_last()?,
                text: fields.rest(),
            }),
            CLAIM => Self::Claim(Claim { session: *fields.take()?, text: fields.take()?, tag: fields.take()? }),
            GRANT => Self::Grant(Grant {
                receiver: *fields.take()?,
                ciphertext: fields.take()?,
                text: fields.take()?,
                tag: fields.take()?,
            }),
            _ => return None,
        };
        (fields.0.is_empty() && datagram.len() <= MAX_DATAGRAM).then_some(message)
    }
}

impl Cookie<'_> {
    /// The first four bytes of the joiner's index.
    pub(crate) fn receiver(&self) -> u32 {
        u32::from_le_bytes([self.0[4], self.0[5], self.0[6], self.0[7]])
    }

    /// Passes the message to `read` in core's form. The type is not part of the data that a cookie reply authenticates.
    pub(crate) fn with_core<R>(&self, read: impl FnOnce(&rustguard_core::wire::CookieReply<'_>) -> R) -> Option<R> {
        const CORE_TYPE: u32 = 3;
        let mut bytes = *self.0;
        bytes[..4].copy_from_slice(&CORE_TYPE.to_le_bytes());
        match CoreMessage::parse(&bytes) {
            Some(CoreMessage::CookieReply(reply)) => Some(read(&reply)),
            _ => None,
        }
    }

    /// Converts core's cookie reply to ours.
    pub(crate) fn from_core(mut bytes: [u8; COOKIE_REPLY_LEN]) -> Vec<u8> {
        bytes[..4].copy_from_slice(&COOKIE.to_le_bytes());
        bytes.to_vec()
    }
}

/// The index for core's cookies: the first four bytes of ours.
pub(crate) fn cookie_index(index: &[u8]) -> u32 {
    index.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The bytes that MAC1 covers. They stay the same when a message is repeated with a cookie.
pub(crate) fn without_macs(message: &[u8]) -> &[u8] {
    &message[..message.len().saturating_sub(MACS_LEN)]
}

/// Builds a message, field by field.
pub(crate) fn build(kind: u32, fields: &[&[u8]]) -> Vec<u8> {
    let mut message = Vec::with_capacity(4 + fields.iter().map(|field| field.len()).sum::<usize>());
    message.extend_from_slice(&kind.to_le_bytes());
    fields.iter().for_each(|field| message.extend_from_slice(field));
    message
}

/// Reads fields from the front of a slice. Returns `None` when too few bytes are left.
pub(crate) struct Reader<'d>(pub(crate) &'d [u8]);

impl<'d> Reader<'d> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<&'d [u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(field)
    }

    pub(crate) fn take_slice(&mut self, len: usize) -> Option<&'d [u8]> {
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(field)
    }

    fn take_last<const N: usize>(&mut self) -> Option<&'d [u8; N]> {
        let (rest, field) = self.0.split_last_chunk()?;
        self.0 = rest;
        Some(field)
    }

    fn rest(&mut self) -> &'d [u8] {
        core::mem::take(&mut self.0)
    }

    /// Removes the MACs at the end, which this reader does not read. If there are too few bytes, reading the next field
    /// fails.
    fn macs_follow(&mut self) -> &mut Self {
        self.0 = self.0.split_last_chunk::<MACS_LEN>().map_or(&[], |(rest, _)| rest);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_our_types_are_enrolment() {
        for kind in [0, 1, 2, 3, 4, 5, INITIATION - 1, GRANT + 1, u32::MAX] {
            assert!(!is_enrolment(&kind.to_le_bytes()), "{kind:#x}");
        }
        for kind in MESSAGE_TYPES {
            assert!(is_enrolment(&kind.to_le_bytes()) && !is_enrolment(&kind.to_le_bytes()[..3]));
            // WireGuard's reserved bytes are not zero, so no implementation takes the message for its own.
            assert_ne!(kind.to_le_bytes()[1..], [0; 3]);
            assert!(CoreMessage::parse(&build(kind, &[&[0; 200]])).is_none());
        }
    }

    #[test]
    fn each_message_has_its_length_and_no_other() {
        let fixed = [
            (INITIATION, 1232),
            (COOKIE, 64),
            (SHARE, 116),
            (SHARE_REPLY, 52),
            (PROOF, 1232),
            (CLAIM, 1212),
            (GRANT, 1212),
        ];
        for (kind, len) in fixed {
            let message = build(kind, &[&vec![1; 1300]]);
            for cut in 0..message.len() {
                assert_eq!(Message::parse(&message[..cut]).is_some(), cut == len, "type {kind:#x}, {cut} bytes");
            }
        }
        for (kind, min) in [(RESPONSE, RESPONSE_OVERHEAD), (WELCOME, WELCOME_OVERHEAD)] {
            let message = build(kind, &[&vec![1; 1300]]);
            for cut in 0..message.len() {
                let expected = (min..=MAX_DATAGRAM).contains(&cut);
                assert_eq!(Message::parse(&message[..cut]).is_some(), expected, "type {kind:#x}, {cut} bytes");
            }
        }
    }

    #[test]
    fn fields_lie_where_the_specification_says() {
        let bytes: Vec<u8> = (0..MAX_DATAGRAM).map(|i| i as u8).collect();
        let with_type = |kind: u32, len: usize| build(kind, &[&bytes[4..len]]);
        let message = with_type(INITIATION, 1232);
        let Some(Message::Initiation(initiation)) = Message::parse(&message) else { panic!("an initiation") };
        assert_eq!((&initiation.sender[..], &initiation.ephemeral[..]), (&bytes[4..12], &bytes[12..44]));
        assert_eq!((&initiation.static_key[..], &initiation.text[..]), (&bytes[44..92], &bytes[92..1184]));
        assert_eq!(initiation.tag[..], bytes[1184..1200]);
        let message = with_type(SHARE, 116);
        let Some(Message::Share(share)) = Message::parse(&message) else { panic!("a share") };
        assert_eq!((&share.id[..], &share.share[..]), (&bytes[4..20], &bytes[20..52]));
        assert_eq!(share.commitment, &bytes[52..84]);
        let message = with_type(RESPONSE, 100);
        let Some(Message::Response(response)) = Message::parse(&message) else { panic!("a response") };
        assert_eq!((&response.receiver[..], &response.session[..]), (&bytes[4..12], &bytes[12..20]));
        assert_eq!((&response.ephemeral[..], response.text), (&bytes[20..52], &bytes[52..84]));
        let message = with_type(WELCOME, 100);
        let Some(Message::Welcome(welcome)) = Message::parse(&message) else { panic!("a welcome") };
        assert_eq!((&welcome.counter.to_le_bytes()[..], welcome.text), (&bytes[12..20], &bytes[20..84]));
        let message = with_type(GRANT, 1212);
        let Some(Message::Grant(grant)) = Message::parse(&message) else { panic!("a grant") };
        assert_eq!((&grant.ciphertext[..], &grant.text[..]), (&bytes[12..1100], &bytes[1100..1196]));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(kind in INITIATION - 1..=GRANT + 1, rest in proptest::collection::vec(any::<u8>(), 0..1400)) {
            let datagram = build(kind, &[&rest]);
            prop_assert!(Message::parse(&datagram).is_none() || is_enrolment(&datagram));
        }
    }
}
