//! The service's part of the status page: login links, and lines of the audit log.

use super::Service;
use crate::{
    clock::now,
    request::{Answer, Secret, WebEvent},
};
use rustguard_enroll::{
    action::Action,
    audit::{AuditEvent, AuditRecord},
    store::LeaseStore,
};

/// The longest name of a user who logs in, in bytes.
const MAX_NAME: usize = 32;

/// A status page that is served beside the service. Its methods return at once.
pub trait StatusPage: Send {
    /// Makes a link with which a user of this name can log in once.
    fn link(&self, name: &str) -> WebLink;

    /// Ends all sessions and links. Returns how many sessions there were.
    fn end(&self) -> usize;
}

/// A link with which a user can log in to the status page once.
#[derive(Debug)]
pub struct WebLink {
    /// The link.
    pub url: Secret,
    /// How to reach the page, if the link alone does not lead there.
    pub hint: Option<String>,
    /// Its validity in seconds.
    pub seconds: u64,
}

impl<S: LeaseStore> Service<S> {
    /// Attaches the status page that is served beside this service.
    pub fn set_page(&mut self, page: impl StatusPage + 'static) {
        self.page = Some(Box::new(page));
    }

    pub(super) fn web_link(&mut self, name: &str) -> Result<Answer, String> {
        let is_proper = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_proper) {
            return Err(format!(
                "`{name}` is no name for the audit log: 1 to {MAX_NAME} letters, digits, `-`, `_`, `.` and `@`"
            ));
        }
        let page = self.page.as_ref().ok_or_else(no_page)?;
        let WebLink { url, hint, seconds } = page.link(name);
        let mut record = AuditRecord::new(AuditEvent::WebLinkMade, now());
        record.by = Some(format!("web: {name}"));
        self.actions.push(Action::Audit(record));
        Ok(Answer::WebLink { url, hint, seconds })
    }

    pub(super) fn web_end(&mut self) -> Result<Answer, String> {
        let sessions = self.page.as_ref().ok_or_else(no_page)?.end();
        self.actions.push(Action::Audit(AuditRecord::new(AuditEvent::WebSessionsEnded, now())));
        Ok(Answer::WebEnded { sessions })
    }

    pub(super) fn web_session(&mut self, event: WebEvent) -> Answer {
        let event = match event {
            WebEvent::Login => AuditEvent::WebLogin,
            WebEvent::Logout => AuditEvent::WebLogout,
            WebEvent::LinkReused => AuditEvent::WebLinkReused,
        };
        self.actions.push(Action::Audit(AuditRecord::new(event, now())));
        Answer::Done
    }
}

fn no_page() -> String {
    "this server has no status page; start it with one: rustguard serve --web 127.0.0.1:9580".to_owned()
}
