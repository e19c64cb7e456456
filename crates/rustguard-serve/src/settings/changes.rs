//! The differences between the settings of a running server and the settings in its file.

use super::Settings;
use crate::words::list;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A setting with another value, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SettingsChange {
    /// The name of the setting in the file.
    pub setting: String,
    /// The old value.
    pub from: String,
    /// The new value.
    pub to: String,
    /// A note for the user about this change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether the setting only changes with the next start.
    #[serde(default)]
    pub needs_restart: bool,
}

impl fmt::Display for SettingsChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "~ {} {} → {}", self.setting, self.from, self.to)?;
        self.note.as_ref().map_or(Ok(()), |note| write!(f, " ({note})"))
    }
}

impl SettingsChange {
    /// Another policy.
    pub(crate) fn of_policy((from, to): (String, String)) -> Self {
        let note = (to == "none").then(|| "everybody may talk to everybody".to_owned());
        Self { setting: "policy".to_owned(), from, to, note, needs_restart: false }
    }
}

/// Machines that are not members of a network get these settings once.
const JOINED: &str = "machines that have joined already keep what they were told";
const MEMBERS: &str = "members take it over; other machines that have joined already keep what they were told";

impl Settings {
    /// The changes from these settings to others.
    pub fn changes(&self, to: &Self) -> Vec<SettingsChange> {
        // Without `..`, so that a new setting cannot be forgotten here.
        let Self {
            pools,
            port,
            endpoint,
            isolate,
            routes,
            dns,
            search,
            lease_seconds,
            ephemeral_seconds,
            nat,
            network,
        } = self;
        let automatic = |endpoint: &Option<String>| endpoint.clone().unwrap_or_else(|| "automatic".to_owned());
        let lease =
            |seconds: &Option<u64>| seconds.map_or_else(|| "without limit".to_owned(), |time| format!("{time} s"));
        let ephemeral =
            |seconds: &Option<u64>| seconds.map_or_else(|| "30 minutes".to_owned(), |time| format!("{time} s"));
        let mtu = |settings: &Self| settings.network.mtu.map_or_else(|| "automatic".to_owned(), |mtu| mtu.to_string());
        let name = |settings: &Self| settings.network.name.clone().unwrap_or_else(|| "automatic".to_owned());
        let told = Some(if self.has_network() { MEMBERS } else { JOINED });
        let running = [
            change("port", port, &to.port, None),
            change("endpoint", &automatic(endpoint), &automatic(&to.endpoint), None),
            change("routes", &list(routes), &list(&to.routes), told),
            change("dns", &list(dns), &list(&to.dns), told),
            change("search", &list(search), &list(&to.search), told),
            change("mtu", &mtu(self), &mtu(to), told),
            change("name", &name(self), &name(to), None),
        ];
        let restart = [
            change("pools", &list(pools), &list(&to.pools), None),
            change("isolate", isolate, &to.isolate, None),
            change("nat", nat, &to.nat, None),
            change("star", &network.star, &to.network.star, None),
            change("lease_seconds", &lease(lease_seconds), &lease(&to.lease_seconds), None),
            change("ephemeral_seconds", &ephemeral(ephemeral_seconds), &ephemeral(&to.ephemeral_seconds), None),
        ];
        let restart = restart.into_iter().flatten().map(|change| SettingsChange { needs_restart: true, ..change });
        // The rules for address translation contain the routes.
        let translated = |change: &SettingsChange| *nat && change.setting == "routes";
        let running = running.into_iter().flatten();
        running.map(|change| SettingsChange { needs_restart: translated(&change), ..change }).chain(restart).collect()
    }
}

fn change<T: PartialEq + fmt::Display>(setting: &str, from: &T, to: &T, note: Option<&str>) -> Option<SettingsChange> {
    let (text, note) = (|value: &T| value.to_string(), note.map(str::to_owned));
    let changed =
        SettingsChange { setting: setting.to_owned(), from: text(from), to: text(to), note, needs_restart: false };
    (from != to).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_and_those_that_need_a_restart_are_marked() {
        let before = Settings { pools: vec!["10.1.0.0/24".parse().unwrap()], ..Settings::default() };
        assert_eq!(before.changes(&before), []);
        let mut renamed = before.clone();
        (renamed.network.name, renamed.network.mtu) = (Some("home".to_owned()), Some(1280));
        let said: Vec<_> = before.changes(&renamed).iter().map(ToString::to_string).collect();
        assert_eq!(said, [format!("~ mtu automatic → 1280 ({MEMBERS})"), "~ name automatic → home".to_owned()]);
        let mut before = before;
        before.network.star = true;
        let after = Settings {
            port: 7,
            routes: vec!["10.2.0.0/16".parse().unwrap()],
            isolate: true,
            lease_seconds: Some(60),
            ephemeral_seconds: Some(7_200),
            ..before.clone()
        };
        let said: Vec<_> = before.changes(&after).iter().map(|it| (it.to_string(), it.needs_restart)).collect();
        let expected = [
            ("~ port 51820 → 7", false),
            (&*format!("~ routes none → 10.2.0.0/16 ({JOINED})"), false),
            ("~ isolate false → true", true),
            ("~ lease_seconds without limit → 60 s", true),
            ("~ ephemeral_seconds 30 minutes → 7200 s", true),
        ];
        assert_eq!(said, expected.map(|(text, restart)| (text.to_owned(), restart)));
        let translated = Settings { nat: true, ..before };
        let routed = Settings { routes: vec!["10.2.0.0/16".parse().unwrap()], ..translated.clone() };
        assert!(translated.changes(&routed).iter().all(|change| change.needs_restart), "with rules for these routes");
    }
}
