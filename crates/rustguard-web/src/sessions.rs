//! Links with which somebody logs in once, and sessions. Only hashes of their secrets are kept: who reads this memory cannot log in.

use base64ct::{Base64UrlUnpadded, Encoding as _};
use rustguard_crypto::{
    hash::{ct_eq, hash},
    random::{self, Unavailable},
};
use std::{collections::VecDeque, time::Duration};
use zeroize::Zeroizing;

/// How long a link can be used.
pub(crate) const LINK: Duration = Duration::from_secs(5 * 60);
/// A session ends when nothing was asked for so long. The live page does not count.
pub(crate) const IDLE: Duration = Duration::from_secs(30 * 60);
/// A session ends after this time in any case.
pub(crate) const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);
/// The number of links that have not been used, and of sessions. A further one takes the place of the oldest.
const LINKS: usize = 16;
const SESSIONS: usize = 16;

/// 256 random bits, as text.
type Secret = Zeroizing<String>;

/// The time since the machine started, asleep or not. The sessions have no clock of their own.
pub(crate) type Uptime = Duration;

/// All links and sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    links: VecDeque<Link>,
    sessions: Vec<Session>,
    /// The number of the last session.
    last: u64,
}

#[derive(Debug)]
struct Link {
    hash: [u8; 32],
    name: String,
    until: Uptime,
}

#[derive(Debug)]
struct Session {
    hash: [u8; 32],
    who: Who,
    began: Uptime,
    used: Uptime,
    notice: Option<Notice>,
}

/// Whose session it is.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    /// For the audit log: the name of the link, and the number of the session, `alice#3`.
    pub(crate) label: String,
    /// What every act has to bring along. Another web site does not know it.
    pub(crate) token: Secret,
}

/// The outcome of an act, for the next page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) is_error: bool,
    pub(crate) text: String,
}

impl Sessions {
    /// Makes a link for somebody. Returns its secret part.
    pub(crate) fn link(&mut self, name: &str, now: Uptime) -> Result<Secret, Unavailable> {
        let secret = secret()?;
        self.expire(now);
        if self.links.len() == LINKS {
            self.links.pop_front();
        }
        self.links.push_back(Link { hash: hash_of(&secret), name: name.to_owned(), until: now + LINK });
        Ok(secret)
    }

    /// Uses a link up. Returns the secret of the session that begins, and whose it is.
    pub(crate) fn log_in(&mut self, link: &str, now: Uptime) -> Result<Option<(Secret, Who)>, Unavailable> {
        self.expire(now);
        let (hash, secret, token) = (hash_of(link), secret()?, secret()?);
        // All of them are compared, each in constant time.
        let found = self
            .links
            .iter()
            .enumerate()
            .fold(None, |found, (at, link)| if ct_eq(&link.hash, &hash) { Some(at) } else { found });
        let Some(link) = found.and_then(|at| self.links.remove(at)) else { return Ok(None) };
        if self.sessions.len() == SESSIONS
            && let Some(idlest) = (0..SESSIONS).min_by_key(|&at| self.sessions[at].used)
        {
            self.sessions.remove(idlest);
        }
        self.last += 1;
        let who = Who { label: format!("{}#{}", link.name, self.last), token };
        self.sessions.push(Session { hash: hash_of(&secret), who: who.clone(), began: now, used: now, notice: None });
        Ok(Some((secret, who)))
    }

    /// Whose session this is, if it goes on. With `uses`, its idle time begins anew.
    pub(crate) fn who(&mut self, secret: &str, uses: bool, now: Uptime) -> Option<Who> {
        let session = self.find(secret, now)?;
        if uses {
            session.used = now;
        }
        Some(session.who.clone())
    }

    /// Leaves a notice for the next page of the session.
    pub(crate) fn leave_notice(&mut self, secret: &str, notice: Notice, now: Uptime) {
        if let Some(session) = self.find(secret, now) {
            session.notice = Some(notice);
        }
    }

    /// Takes the notice.
    pub(crate) fn take_notice(&mut self, secret: &str, now: Uptime) -> Option<Notice> {
        self.find(secret, now)?.notice.take()
    }

    /// Ends a session.
    pub(crate) fn log_out(&mut self, secret: &str) {
        let hash = hash_of(secret);
        self.sessions.retain(|session| !ct_eq(&session.hash, &hash));
    }

    /// Ends all sessions and links. Returns the number of sessions.
    pub(crate) fn end(&mut self, now: Uptime) -> usize {
        self.expire(now);
        self.links.clear();
        std::mem::take(&mut self.sessions).len()
    }

    fn find(&mut self, secret: &str, now: Uptime) -> Option<&mut Session> {
        self.expire(now);
        let hash = hash_of(secret);
        self.sessions
            .iter_mut()
            .fold(None, |found, session| if ct_eq(&session.hash, &hash) { Some(session) } else { found })
    }

    fn expire(&mut self, now: Uptime) {
        self.links.retain(|link| now < link.until);
        self.sessions.retain(|session| now < session.used + IDLE && now < session.began + LONGEST);
    }
}

fn secret() -> Result<Secret, Unavailable> {
    Ok(Zeroizing::new(Base64UrlUnpadded::encode_string(&*random::bytes::<32>()?)))
}

fn hash_of(secret: &str) -> [u8; 32] {
    hash(&[b"rustguard web v1", secret.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Uptime = Duration::from_secs(1_000_000);

    fn session(sessions: &mut Sessions, name: &str, now: Uptime) -> (Secret, Who) {
        let link = sessions.link(name, now).unwrap();
        sessions.log_in(&link, now).unwrap().unwrap()
    }

    #[test]
    fn a_link_begins_one_session_and_only_in_its_time() {
        let mut sessions = Sessions::default();
        let link = sessions.link("alice", NOW).unwrap();
        assert_eq!(Base64UrlUnpadded::decode_vec(&link).unwrap().len(), 32);
        for wrong in ["", "x", &link[1..], &"A".repeat(43)] {
            assert!(sessions.log_in(wrong, NOW).unwrap().is_none(), "{wrong}");
        }
        let (secret, who) = sessions.log_in(&link, NOW + LINK - SECOND).unwrap().unwrap();
        assert_eq!(who.label, "alice#1");
        assert!(sessions.log_in(&link, NOW).unwrap().is_none(), "a second time");
        assert!(sessions.who(&link, true, NOW).is_none(), "a link is no session");
        assert!(sessions.log_in(&secret, NOW).unwrap().is_none(), "a session is no link");
        let late = sessions.link("bob", NOW).unwrap();
        assert!(sessions.log_in(&late, NOW + LINK).unwrap().is_none());
        assert_eq!(session(&mut sessions, "bob", NOW).1.label, "bob#2");
    }

    #[test]
    fn a_session_ends_when_it_is_idle_old_or_ended() {
        let mut sessions = Sessions::default();
        let (idle, _) = session(&mut sessions, "idle", NOW);
        assert!(sessions.who(&idle, false, NOW + IDLE - SECOND).is_some(), "the live page does not keep it");
        assert!(sessions.who(&idle, true, NOW + IDLE).is_none());
        let (busy, _) = session(&mut sessions, "busy", NOW);
        let mut now = NOW;
        while now < NOW + LONGEST {
            assert!(sessions.who(&busy, true, now).is_some());
            now += IDLE / 2;
        }
        assert!(sessions.who(&busy, true, now).is_none());
        let ((out, _), (other, _)) = (session(&mut sessions, "out", now), session(&mut sessions, "other", now));
        sessions.log_out(&out);
        assert!(sessions.who(&out, true, now).is_none() && sessions.who(&other, true, now).is_some());
        let link = sessions.link("late", now).unwrap();
        assert_eq!(sessions.end(now), 1);
        assert!(sessions.who(&other, true, now).is_none() && sessions.log_in(&link, now).unwrap().is_none());
    }

    #[test]
    fn links_and_sessions_have_bounds() {
        let mut sessions = Sessions::default();
        let links: Vec<_> = (0..=LINKS).map(|_| sessions.link("x", NOW).unwrap()).collect();
        assert!(
            sessions.log_in(&links[0], NOW).unwrap().is_none() && sessions.log_in(&links[1], NOW).unwrap().is_some()
        );
        sessions.end(NOW);
        let (idlest, _) = session(&mut sessions, "idlest", NOW);
        let first = session(&mut sessions, "first", NOW + SECOND).0;
        for _ in 2..=SESSIONS {
            session(&mut sessions, "more", NOW + SECOND * 2);
        }
        assert!(sessions.who(&idlest, true, NOW).is_none() && sessions.who(&first, true, NOW).is_some());
    }

    #[test]
    fn a_notice_is_taken_once_by_its_own_session() {
        let mut sessions = Sessions::default();
        let ((a, _), (b, _)) = (session(&mut sessions, "a", NOW), session(&mut sessions, "b", NOW));
        let notice = Notice { is_error: false, text: "done".to_owned() };
        sessions.leave_notice(&a, notice.clone(), NOW);
        assert_eq!(
            [sessions.take_notice(&b, NOW), sessions.take_notice(&a, NOW), sessions.take_notice(&a, NOW)],
            [None, Some(notice), None]
        );
    }

    #[test]
    fn secrets_are_not_kept() {
        let mut sessions = Sessions::default();
        let link = sessions.link("a", NOW).unwrap();
        let kept = format!("{sessions:?}");
        let (secret, _) = sessions.log_in(&link, NOW).unwrap().unwrap();
        assert!(!kept.contains(link.as_str()) && !format!("{sessions:?}").contains(secret.as_str()));
    }
}
