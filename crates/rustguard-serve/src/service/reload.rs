//! Applies the stored settings, or adopts the list that members have, while the server runs: completely or not at all.

use super::Service;
use crate::{
    clock::now,
    prepare::fits,
    request::{Adopted, Answer, MachineChange, Reloaded, Request},
    settings::{Settings, SettingsChange},
    socket::{Call, Caller},
};
use rustguard_device::Update;
use rustguard_enroll::{
    action::Action,
    audit::{AuditEvent, AuditRecord},
    store::LeaseStore,
};
use rustguard_network::roster::shown_number;
use tokio::sync::{mpsc, oneshot};

impl<S: LeaseStore> Service<S> {
    /// Reads the settings again, and applies them. Sessions and leases continue. `restored`: see [`Request::Reload`].
    pub(super) async fn reload(&mut self, dry_run: bool, restored: bool) -> Result<Answer, String> {
        let settings = Settings::load(&self.folder).map_err(|error| error.to_string())?;
        let file = self.folder.path("settings.json");
        let settings = settings.ok_or_else(|| format!("{} does not exist", file.display()))?;
        settings.check().map_err(|error| format!("{}: {error}", file.display()))?;
        // Settings that the next start would refuse are refused now, while the server still runs.
        fits(&settings, self.server.ledger()).map_err(|error| format!("{error}; nothing was changed"))?;
        let mut changes = self.settings.changes(&settings);
        let policy = match (&mut self.network, &self.policy) {
            (Some(network), Some(path)) => {
                let next = network.next_policy(path, &settings, self.server.ledger());
                next.map_err(|error| format!("{error}; nothing was changed"))?
            }
            _ => None,
        };
        changes.extend(policy.as_ref().map(|policy| SettingsChange::of_policy(policy.describe())));
        let needed: Vec<_> = changes.iter().filter(|change| change.needs_restart).map(ToString::to_string).collect();
        if !needed.is_empty() {
            let (needed, interface) = (needed.join(", "), &self.interface);
            return Err(format!(
                "these changes need a restart, and nothing was changed: {needed}; run: rustguard down {interface}; \
                 rustguard serve --interface {interface}"
            ));
        }
        if !dry_run {
            // The settings are checked before anything changes.
            if restored {
                let network = self
                    .network
                    .as_mut()
                    .ok_or("this server is one of a star: there is nothing that members know better")?;
                network.go_on()?;
            }
            // The system may refuse the port, so it comes first.
            if settings.port != self.settings.port {
                let update = Update::new().listen_port(settings.port);
                self.device.update(update).await.map_err(|error| format!("{error}; nothing was changed"))?;
            }
            if let Err(error) = self.server.set_config(&settings.to_config()) {
                let back = self.device.update(Update::new().listen_port(self.settings.port)).await;
                let back = back.map_or_else(
                    |error| format!("the port cannot be set back: {error}"),
                    |()| "everything is as before".into(),
                );
                return Err(format!("{error}; {back}"));
            }
            for change in &changes {
                tracing::info!("{}: {change}", self.interface);
            }
            self.settings = settings;
            if let Some((network, policy)) = self.network.as_mut().zip(policy) {
                network.set_policy(policy);
                self.actions.push(Action::Audit(AuditRecord::new(AuditEvent::PolicyChanged, now())));
            }
            self.tell_untold();
            self.changed();
        }
        Ok(Answer::Reloaded(Reloaded { file, changes }))
    }

    /// See [`Request::CheckSettings`].
    pub(super) fn check_settings(&self, settings: &Settings) -> Result<Answer, String> {
        settings.check().map_err(|error| error.to_string())?;
        fits(settings, self.server.ledger()).map_err(|error| error.to_string())?;
        let changes = self.settings.changes(settings);
        Ok(Answer::Reloaded(Reloaded { file: self.folder.path("settings.json"), changes }))
    }

    /// Changes the leases to agree with the newest list that members have. See [`Request::Adopt`].
    pub(super) fn adopt(&mut self, dry_run: bool) -> Result<Answer, String> {
        let network =
            self.network.as_mut().ok_or("this server is one of a star: its machines have no list of each other")?;
        let newest = network.newest(&self.settings, self.server.ledger())?;
        let refused = |error: &dyn ToString| {
            format!(
                "list {} cannot be adopted, and nothing was changed: {}",
                shown_number(newest.number),
                error.to_string()
            )
        };
        let adoption = if dry_run {
            self.server.adoption(&newest.list, now()).map_err(|error| refused(&error))?
        } else {
            network.before_adoption().map_err(|error| refused(&error))?;
            self.server.adopt(&newest.list, now(), &mut self.actions).map_err(|error| refused(&error))?
        };
        let mut changes = MachineChange::all(&adoption);
        changes.extend(newest.own_name.map(MachineChange::of_own_name));
        if !dry_run {
            network.adopted();
            tracing::info!("{}: list {} of the members was adopted", self.interface, shown_number(newest.number));
            newest.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            changes.iter().for_each(|change| tracing::info!("{}: {change}", self.interface));
        }
        Ok(Answer::Adopted(Adopted { list: newest.number, adopted: !dry_run, changes, warnings: newest.warnings }))
    }
}

/// Sends requests to a [`Service`] while it runs.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) calls: mpsc::Sender<Call>,
    pub(super) caller: Caller,
}

impl Handle {
    /// A handle for a session of the status page. The audit log records this name with all its requests. Only requests
    /// that the page offers are permitted.
    #[must_use]
    pub fn for_session(&self, name: impl Into<String>) -> Self {
        Self { caller: Caller { session: Some(name.into()), ..self.caller.clone() }, ..self.clone() }
    }

    /// Sends a request, as [`Service::request`] does. `None` when the service has ended.
    pub async fn request(&self, request: Request) -> Option<Answer> {
        let (answer, answered) = oneshot::channel();
        self.calls.send(Call { request, caller: self.caller.clone(), answer }).await.ok()?;
        answered.await.ok()
    }
}
