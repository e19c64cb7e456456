//! Who may send which request.
use super::Request;

/// The callers that may send a request, besides root and the user of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Permission {
    /// The group of the control socket, and sessions of the status page: daily administration, without access to keys.
    Page,
    /// The group of the control socket.
    Group,
    /// Nobody else: the request returns or replaces the keys of the network.
    Owner,
}

impl Request {
    /// The callers that may send it.
    pub fn permission(&self) -> Permission {
        match self {
            Self::Open { .. }
            | Self::Close
            | Self::Status
            | Self::Approve { .. }
            | Self::Refuse { .. }
            | Self::RemovePeer { .. }
            | Self::WebSession { .. } => Permission::Page,
            Self::WebLink { .. }
            | Self::WebEnd
            | Self::NewInvite(_)
            | Self::Invites
            | Self::RevokeInvite { .. }
            | Self::Peers
            | Self::AddPeer(_)
            | Self::Reload { .. }
            | Self::CheckSettings { .. }
            | Self::Adopt { .. }
            | Self::RotateKey { .. }
            | Self::RenamePeer { .. }
            | Self::AllowPrefixes { .. }
            | Self::DenyPrefixes { .. }
            | Self::TagPeer { .. }
            | Self::UntagPeer { .. } => Permission::Group,
            Self::Backup | Self::Restore { .. } => Permission::Owner,
        }
    }
}
