//! The users of the proxies.

use anyhow::{Context as _, Result, bail};
use std::{collections::HashMap, io, net::SocketAddr, path::Path};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// The most bytes of the file with users.
const FILE: u64 = 1 << 16;

/// The users and their passwords.
pub(super) struct Users(HashMap<String, Zeroizing<String>>);

impl Users {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let file = std::fs::File::open(path).with_context(|| format!("cannot read {shown}"))?;
        let mut text = Zeroizing::new(String::new());
        io::Read::read_to_string(&mut io::Read::take(file, FILE), &mut text)
            .with_context(|| format!("cannot read {shown}"))?;
        let mut users = HashMap::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let Some((name, password)) = line
                .split_once(':')
                .filter(|(name, password)| [name, password].iter().all(|part| (1..=255).contains(&part.len())))
            else {
                bail!("{shown}:{}: a line is NAME:PASSWORD, each of 1 to 255 bytes", number + 1);
            };
            users.insert(name.to_owned(), Zeroizing::new(password.to_owned()));
        }
        if users.is_empty() {
            bail!("{shown} has no users");
        }
        Ok(Self(users))
    }

    pub(super) fn have(&self, name: &str, password: &str) -> bool {
        self.0.get(name).is_some_and(|known| known.as_bytes().ct_eq(password.as_bytes()).into())
    }

    /// Without users, everybody may use a proxy who reaches it: then it has to be at a loopback address.
    pub(super) fn suffice(users: Option<&Self>, at: SocketAddr) -> Result<()> {
        if !at.ip().is_loopback() && users.is_none() {
            bail!(
                "everybody who reaches {at} could use the tunnel: give --proxy-users FILE, or an address such as 127.0.0.1"
            );
        }
        Ok(())
    }
}
