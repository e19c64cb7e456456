//! The form of a status's values in JSON.

use crate::key::{from_base64, to_base64};
use rustguard_crypto::x25519::PublicKey;
use serde::{Deserialize, Deserializer, Serializer, de::Error as _};
use zeroize::Zeroizing;

fn read_key<'de, D: Deserializer<'de>>(text: &str) -> Result<PublicKey, D::Error> {
    from_base64(text).map(|key| PublicKey(*key)).map_err(D::Error::custom)
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(super) fn is_zero(number: &u8) -> bool {
    *number == 0
}

/// A public key in base64.
pub(super) mod key {
    use super::{Deserialize as _, Deserializer, PublicKey, Serializer, read_key, to_base64};

    pub(in crate::uapi) fn serialize<S: Serializer>(key: &PublicKey, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&to_base64(&key.0))
    }

    pub(in crate::uapi) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PublicKey, D::Error> {
        read_key::<D>(&String::deserialize(from)?)
    }
}

/// A public key in base64, or `null`.
pub(super) mod optional_key {
    use super::{Deserialize as _, Deserializer, PublicKey, Serializer, read_key, to_base64};

    pub(in crate::uapi) fn serialize<S: Serializer>(key: &Option<PublicKey>, to: S) -> Result<S::Ok, S::Error> {
        match key {
            Some(key) => to.serialize_some(&*to_base64(&key.0)),
            None => to.serialize_none(),
        }
    }

    pub(in crate::uapi) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PublicKey>, D::Error> {
        Option::<String>::deserialize(from)?.map(|text| read_key::<D>(&text)).transpose()
    }
}

/// A secret key in base64, or `null`.
#[allow(clippy::ref_option, reason = "serde passes references")]
pub(super) fn secret<S: Serializer>(key: &Option<Zeroizing<[u8; 32]>>, to: S) -> Result<S::Ok, S::Error> {
    match key {
        Some(key) => to.serialize_some(&*to_base64(key)),
        None => to.serialize_none(),
    }
}

/// A number; zero is `null`.
pub(super) mod or_null {
    use super::{Deserialize, Deserializer, Serializer};
    use serde::Serialize;

    pub(in crate::uapi) fn serialize<S: Serializer, N>(number: &N, to: S) -> Result<S::Ok, S::Error>
    where
        N: Serialize + Default + PartialEq,
    {
        if *number == N::default() { to.serialize_none() } else { number.serialize(to) }
    }

    pub(in crate::uapi) fn deserialize<'de, D: Deserializer<'de>, N>(from: D) -> Result<N, D::Error>
    where
        N: Deserialize<'de> + Default,
    {
        Ok(Option::<N>::deserialize(from)?.unwrap_or_default())
    }
}

/// A time in whole seconds; zero is `null`.
pub(super) mod seconds_or_null {
    use super::{Deserializer, Serializer, or_null};
    use std::time::Duration;

    pub(in crate::uapi) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        or_null::serialize(&time.as_secs(), to)
    }

    pub(in crate::uapi) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        or_null::deserialize(from).map(Duration::from_secs)
    }
}

/// Numbers by name, as an object.
pub(super) mod counts {
    use super::{Deserialize as _, Deserializer, Serializer};
    use std::collections::BTreeMap;

    pub(in crate::uapi) fn serialize<S: Serializer>(counts: &[(String, u64)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(counts.iter().map(|(name, count)| (name, count)))
    }

    pub(in crate::uapi) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, u64)>, D::Error> {
        Ok(BTreeMap::deserialize(from)?.into_iter().collect())
    }
}
