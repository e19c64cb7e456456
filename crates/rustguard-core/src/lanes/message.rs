//! The messages by which the two ends agree: see [`Negotiation`](super::Negotiation).

use crate::{
    bytes::{field, put},
    control_message::{Header, Kind},
};

const LEN: usize = 16;

/// A message about lanes, inside the session.
///
/// These are [control messages](crate::control_message). An answer is as long as its question.
///
/// ```text
/// byte
///  0     10: a question; 11: its answer; 12: a request; 13: its reply
///  1     "RG", then the version, 1
///  4     u32: the index by which the receiver of the lanes knows the session
///  8     answer: the number of threads that lanes are spread over; request and reply: the lane; else 0
///  9     0
/// 12     u32: request and reply: the round; else 0
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks whether the receiver knows lanes.
    Question {
        /// The session.
        session: u32,
    },
    /// The sender knows lanes: from now on, it understands them in this session.
    Answer {
        /// The session.
        session: u32,
        /// The number of threads that lanes are spread over.
        threads: u8,
    },
    /// Sent in a lane, by the lane's own port, to test whether the lane works.
    Request {
        /// The session.
        session: u32,
        /// The lane.
        lane: u8,
        /// A reply belongs to a request of the same round.
        round: u32,
    },
    /// The request has arrived.
    Reply {
        /// The session.
        session: u32,
        /// The lane.
        lane: u8,
        /// The round of the request.
        round: u32,
    },
}

impl Message {
    /// Reads a text; `None` for others.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text: &[u8; LEN] = text.try_into().ok()?;
        let session = u32::from_le_bytes(*field(text, 4));
        let (byte, round) = (text[8], u32::from_le_bytes(*field(text, 12)));
        Some(match Kind::of(text)? {
            Kind::LanesQuestion => Self::Question { session },
            Kind::LanesAnswer => Self::Answer { session, threads: byte },
            Kind::LaneRequest => Self::Request { session, lane: byte, round },
            Kind::LaneReply => Self::Reply { session, lane: byte, round },
            _ => return None,
        })
    }

    /// The text.
    pub fn to_bytes(self) -> [u8; LEN] {
        let (kind, session, byte, round) = match self {
            Self::Question { session } => (Kind::LanesQuestion, session, 0, 0),
            Self::Answer { session, threads } => (Kind::LanesAnswer, session, threads, 0),
            Self::Request { session, lane, round } => (Kind::LaneRequest, session, lane, round),
            Self::Reply { session, lane, round } => (Kind::LaneReply, session, lane, round),
        };
        let mut text = [0; LEN];
        Header::new(kind).put(&mut text);
        put(&mut text, 4, &session.to_le_bytes());
        text[8] = byte;
        put(&mut text, 12, &round.to_le_bytes());
        text
    }
}
