//! The files of a network's server in its state folder: the network's key, the pair secret, and the last roster.

use crate::policy::is_in_force;
use rustguard_crypto::random;
use rustguard_device::key;
use rustguard_network::{
    Folder, FolderError,
    policy::directory,
    roster::{
        key::{NetworkKey, NetworkSecret},
        pair::PairSecret,
        roster::Roster,
    },
};
use rustguard_policy::{directory::Directory, policy::Policy};
use zeroize::Zeroizing;

/// The file of a server's folder with the seed of the network's key, in base64. A machine that has it issues the
/// rosters of the network.
pub const KEY: &str = "network-key";
/// The secret from which the preshared keys of pairs are derived, in base64.
pub(crate) const PAIRS: &str = "pair-secret";
/// The roster that was issued last. Its number is never issued again.
pub(crate) const ROSTER: &str = "roster";

/// Exists if the folder was restored from a backup on another machine. It contains the time of the backup in seconds
/// since 1970. Nothing is issued until a member has reported its roster.
pub(crate) const RESTORED: &str = "restored";

/// The server's name in an adopted list, and the name of the host to which it applies.
const OWN_NAME: &str = "own-name";

/// The secrets of a network.
pub(crate) struct Secrets {
    pub(crate) network: NetworkSecret,
    pub(crate) pairs: PairSecret,
}

impl Secrets {
    /// Reads the secrets. The first time, makes them, and stores them before it returns.
    ///
    /// # Errors
    /// See [`FolderError`]. A secret that cannot be read is not replaced. After the first roster, a missing secret is
    /// not replaced either: members accept no roster that another key has signed.
    pub(crate) fn open(folder: &Folder) -> Result<Self, FolderError> {
        let is_first = !folder.path(ROSTER).exists();
        Ok(Self {
            network: NetworkSecret::from_bytes(&*secret(folder, KEY, is_first)?),
            pairs: PairSecret::from_bytes(&*secret(folder, PAIRS, is_first)?),
        })
    }
}

fn secret(folder: &Folder, name: &str, may_be_made: bool) -> Result<Zeroizing<[u8; 32]>, FolderError> {
    let damaged = |why: String| FolderError::Damaged { path: folder.path(name), why };
    if let Some(text) = folder.read_secret(name)? {
        let text = std::str::from_utf8(&text).map_err(|_| damaged("it is no text".to_owned()))?;
        return key::from_base64(text.trim_end()).map_err(|why| damaged(why.to_string()));
    }
    if !may_be_made {
        return Err(damaged("it is gone, but a roster was signed with it".to_owned()));
    }
    make(folder, name)
}

fn make(folder: &Folder, name: &str) -> Result<Zeroizing<[u8; 32]>, FolderError> {
    let secret = random::bytes::<32>().map_err(FolderError::Random)?;
    folder.replace(name, Zeroizing::new(format!("{}\n", *key::to_base64(&secret))).as_bytes())?;
    Ok(secret)
}

/// Makes and stores another pair secret in place of the present one.
///
/// # Errors
/// See [`FolderError`]. The present secret stays then.
pub(crate) fn new_pair_secret(folder: &Folder) -> Result<PairSecret, FolderError> {
    Ok(PairSecret::from_bytes(&*make(folder, PAIRS)?))
}

/// The roster that was issued last; `None` the first time, and if the file is damaged. Nothing is lost then: the
/// roster's contents are in the leases and the settings, and members report its number.
pub(crate) fn last_roster(folder: &Folder, network: &NetworkKey) -> Result<Option<Roster>, FolderError> {
    let Some(text) = folder.read(ROSTER)? else { return Ok(None) };
    let roster = Roster::from_bytes(&text, network);
    if roster.is_none() {
        tracing::warn!(
            "{} is damaged, or not of this network: a new roster is made of the leases",
            folder.path(ROSTER).display()
        );
    }
    Ok(roster)
}

/// The name of the server on a host with this name: its name in the list that it adopted there, or else the host's
/// name.
///
/// # Errors
/// See [`FolderError`].
pub(crate) fn own_name(folder: &Folder, host: Option<String>) -> Result<Option<String>, FolderError> {
    let kept = folder.read(OWN_NAME)?;
    let kept = kept.as_deref().and_then(|text| std::str::from_utf8(text).ok()?.trim_end().split_once(' '));
    // A host that was renamed since then has its new name in the network too.
    let adopted = kept.filter(|(_, of)| host.as_deref() == Some(*of)).map(|(name, _)| name.to_owned());
    Ok(adopted.or(host))
}

/// Stores the server's name in an adopted list.
///
/// # Errors
/// See [`FolderError`].
pub(crate) fn keep_own_name(folder: &Folder, name: &str, host: &str) -> Result<(), FolderError> {
    folder.replace(OWN_NAME, format!("{name} {host}\n").as_bytes())
}

/// The network of a server's folder, according to its last roster.
#[derive(Debug)]
pub struct KnownNetwork(Roster);

impl KnownNetwork {
    /// The network of this folder. `None` before the first roster, and in a star.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn read(folder: &Folder) -> Result<Option<Self>, FolderError> {
        // A further server has a roster, but not the key that signs it.
        if !folder.path(KEY).exists() || !folder.path(ROSTER).exists() {
            return Ok(None);
        }
        let network = NetworkSecret::from_bytes(&*secret(folder, KEY, false)?).public_key();
        Ok(last_roster(folder, &network)?.map(Self))
    }

    /// Its machines.
    pub fn machines(&self) -> Directory {
        directory(&self.0)
    }

    /// Whether its members enforce this policy; `None`: no policy, or one that refuses nothing.
    pub fn enforces(&self, policy: Option<&Policy>) -> bool {
        is_in_force(Some(&self.0), policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::MetadataExt as _};

    #[test]
    fn the_secrets_are_made_once_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        let first = Secrets::open(&folder).unwrap();
        let again = Secrets::open(&folder).unwrap();
        assert_eq!(first.network.public_key(), again.network.public_key());
        assert_eq!(first.pairs.as_bytes(), again.pairs.as_bytes());
        assert_ne!(first.network.as_bytes(), first.pairs.as_bytes());
        for name in [KEY, PAIRS] {
            let path = folder.path(name);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "{name}");
            let whole = fs::read(&path).unwrap();
            for damage in ["", "no key\n", "\u{fffd}"] {
                fs::write(&path, damage).unwrap();
                let error = Secrets::open(&folder).map(drop).unwrap_err().to_string();
                assert!(error.contains(name) && error.contains("damaged") && error.contains("backup"), "{error}");
                assert_eq!(fs::read_to_string(&path).unwrap(), damage);
            }
            fs::write(&path, whole).unwrap();
        }
        assert_eq!(Secrets::open(&folder).unwrap().network.public_key(), first.network.public_key());
    }

    /// Without a roster, nobody knows the key. If the first start fails because the disk is full, the second one
    /// continues.
    #[test]
    fn a_secret_that_is_gone_is_made_anew_only_where_nobody_knows_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        let key = Secrets::open(&folder).unwrap().network.public_key();
        fs::remove_file(folder.path(PAIRS)).unwrap();
        assert_eq!(Secrets::open(&folder).unwrap().network.public_key(), key);
        folder.replace(ROSTER, b"anything").unwrap();
        for name in [KEY, PAIRS] {
            let kept = fs::read(folder.path(name)).unwrap();
            fs::remove_file(folder.path(name)).unwrap();
            let error = Secrets::open(&folder).map(drop).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("is gone"), "{error}");
            folder.replace(name, &kept).unwrap();
        }
        assert!(last_roster(&folder, &key).unwrap().is_none(), "a damaged roster is none");
    }
}
