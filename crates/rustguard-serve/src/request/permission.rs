//! Who may send which request.
use super::Request;

/// Who may have a request carried out, besides root and the user of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Permission {
    /// The group of the control socket, and a session of the status page: what an administrator does every day, and no
    /// way to keys.
    Page,
    /// The group of the control socket.
    Group,
    /// Nobody: it gives or replaces the keys of the network.
    Owner,
}

impl Request {
    /// Who may send it.
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
