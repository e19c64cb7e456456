//! The byte that encodes a server's decision.
use crate::join_error::JoinError;
use core::time::Duration;

/// A server's answer to a joiner that it has authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Accepted,
    /// An administrator has to approve.
    Wait,
    Refused(JoinError),
}

impl Decision {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Accepted => 0,
            Self::Wait => 1,
            Self::Refused(error) => match error {
                JoinError::PoolExhausted(_) => 2,
                JoinError::AddressTaken => 3,
                JoinError::Removed => 4,
                JoinError::TokenSpent => 5,
                JoinError::QueueFull => 7,
                JoinError::NotApproved => 8,
                // The server never sends the other errors.
                JoinError::ServerFailed | JoinError::NotAccepted | JoinError::Unreadable | JoinError::BadKey => 6,
            },
        }
    }

    pub(super) fn from_code(code: u8, wait: Option<Duration>) -> Option<Self> {
        Some(match code {
            0 => Self::Accepted,
            1 => Self::Wait,
            2 => Self::Refused(JoinError::PoolExhausted(wait)),
            3 => Self::Refused(JoinError::AddressTaken),
            4 => Self::Refused(JoinError::Removed),
            5 => Self::Refused(JoinError::TokenSpent),
            6 => Self::Refused(JoinError::ServerFailed),
            7 => Self::Refused(JoinError::QueueFull),
            8 => Self::Refused(JoinError::NotApproved),
            _ => return None,
        })
    }
}
