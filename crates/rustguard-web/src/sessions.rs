//! Links for logging in once, and sessions. Only hashes of their secrets are kept, so reading this memory does not
//! permit logging in.

use base64ct::{Base64UrlUnpadded, Encoding as _};
use rustguard_crypto::{
    hash::{ct_eq, hash},
    random::{self, Unavailable},
};
use std::{collections::VecDeque, time::Duration};
use zeroize::Zeroizing;

/// How long a link can be used.
pub(crate) const LINK: Duration = Duration::from_secs(5 * 60);
/// A session ends after this time without a request. The live page does not count.
pub(crate) const IDLE: Duration = Duration::from_secs(30 * 60);
/// A session ends after this time in any case.
pub(crate) const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);
/// The most unused links, and the most sessions. A further link replaces the oldest one, a further session the one that
/// was idle longest.
const LINKS: usize = 16;
const SESSIONS: usize = 16;

/// How many used links are remembered, to recognize another use.
const USED: usize = 64;

/// 256 random bits, as text.
type Secret = Zeroizing<String>;

/// The time since the machine started, including sleep. The sessions have no clock of their own.
pub(crate) type Uptime = Duration;

/// All links and sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    links: VecDeque<Link>,
    /// Links that were used once and have not been tried again, with the label of the session that each began.
    used: VecDeque<([u8; 32], String)>,
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

/// The owner of a session.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    /// For the audit log: the name of the link, and the number of the session, `alice#3`.
    pub(crate) label: String,
    /// The token that every act has to contain. Other web sites do not know it.
    pub(crate) token: Secret,
}

/// The outcome of an act, for the next page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) is_error: bool,
    pub(crate) text: String,
}

/// The result of using a link.
#[derive(Debug)]
pub(crate) enum LogIn {
    /// A session begins: its secret and its owner.
    Began(Secret, Who),
    /// The link had begun the session with this label before. This is reported only once.
    Again(String),
    /// There is no such link.
    Unknown,
}

impl Sessions {
    /// Creates a link for somebody. Returns its secret part.
    pub(crate) fn link(&mut self, name: &str, now: Uptime) -> Result<Secret, Unavailable> {
        let secret = secret()?;
        self.expire(now);
        if self.links.len() == LINKS {
            self.links.pop_front();
        }
        self.links.push_back(Link { hash: hash_of(&secret), name: name.to_owned(), until: now + LINK });
        Ok(secret)
    }

    /// Uses a link, which makes it invalid.
    pub(crate) fn log_in(&mut self, link: &str, now: Uptime) -> Result<LogIn, Unavailable> {
        self.expire(now);
        let (hash, secret, token) = (hash_of(link), secret()?, secret()?);
        let Some(link) = place(self.links.iter().map(|link| &link.hash), &hash).and_then(|at| self.links.remove(at))
        else {
            let used = place(self.used.iter().map(|(of, _)| of), &hash).and_then(|at| self.used.remove(at));
            return Ok(used.map_or(LogIn::Unknown, |(_, label)| LogIn::Again(label)));
        };
        if self.sessions.len() == SESSIONS
            && let Some(idlest) = (0..SESSIONS).min_by_key(|&at| self.sessions[at].used)
        {
            self.sessions.remove(idlest);
        }
        self.last += 1;
        let who = Who { label: format!("{}#{}", link.name, self.last), token };
        self.sessions.push(Session { hash: hash_of(&secret), who: who.clone(), began: now, used: now, notice: None });
        if self.used.len() == USED {
            self.used.pop_front();
        }
        self.used.push_back((hash, who.label.clone()));
        Ok(LogIn::Began(secret, who))
    }

    /// The owner of this session, if it is still valid. `uses` restarts its idle time.
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

/// The position of a hash among others. All of them are compared, each in constant time.
fn place<'h>(hashes: impl Iterator<Item = &'h [u8; 32]>, wanted: &[u8; 32]) -> Option<usize> {
    hashes.enumerate().fold(None, |found, (at, hash)| if ct_eq(hash, wanted) { Some(at) } else { found })
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
        log_in(sessions, &link, now).unwrap()
    }

    fn log_in(sessions: &mut Sessions, link: &str, now: Uptime) -> Option<(Secret, Who)> {
        match sessions.log_in(link, now).unwrap() {
            LogIn::Began(secret, who) => Some((secret, who)),
            LogIn::Again(_) | LogIn::Unknown => None,
        }
    }

    #[test]
    fn a_link_that_is_used_again_is_told_of_once() {
        let mut sessions = Sessions::default();
        let link = sessions.link("alice", NOW).unwrap();
        let again = |sessions: &mut Sessions, link: &str, now| match sessions.log_in(link, now).unwrap() {
            LogIn::Began(..) => panic!("a session"),
            LogIn::Again(label) => Some(label),
            LogIn::Unknown => None,
        };
        assert_eq!(again(&mut sessions, "x", NOW), None);
        log_in(&mut sessions, &link, NOW).unwrap();
        // At any time, but only once: otherwise the holder of the link could fill the log.
        assert_eq!(again(&mut sessions, &link, NOW + LONGEST).as_deref(), Some("alice#1"));
        assert_eq!(again(&mut sessions, &link, NOW + LONGEST), None);
        for n in 0..2 * USED as u32 {
            session(&mut sessions, "more", NOW + LONGEST + SECOND * n);
        }
        assert_eq!(sessions.used.len(), USED);
    }

    #[test]
    fn a_link_begins_one_session_and_only_in_its_time() {
        let mut sessions = Sessions::default();
        let link = sessions.link("alice", NOW).unwrap();
        assert_eq!(Base64UrlUnpadded::decode_vec(&link).unwrap().len(), 32);
        for wrong in ["", "x", &link[1..], &"A".repeat(43)] {
            assert!(log_in(&mut sessions, wrong, NOW).is_none(), "{wrong}");
        }
        let (secret, who) = log_in(&mut sessions, &link, NOW + LINK - SECOND).unwrap();
        assert_eq!(who.label, "alice#1");
        assert!(log_in(&mut sessions, &link, NOW).is_none(), "a second time");
        assert!(sessions.who(&link, true, NOW).is_none(), "a link is no session");
        assert!(log_in(&mut sessions, &secret, NOW).is_none(), "a session is no link");
        let late = sessions.link("bob", NOW).unwrap();
        assert!(log_in(&mut sessions, &late, NOW + LINK).is_none());
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
        assert!(sessions.who(&other, true, now).is_none() && log_in(&mut sessions, &link, now).is_none());
    }

    #[test]
    fn links_and_sessions_have_bounds() {
        let mut sessions = Sessions::default();
        let links: Vec<_> = (0..=LINKS).map(|_| sessions.link("x", NOW).unwrap()).collect();
        assert!(log_in(&mut sessions, &links[0], NOW).is_none() && log_in(&mut sessions, &links[1], NOW).is_some());
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
        let (secret, _) = log_in(&mut sessions, &link, NOW).unwrap();
        assert!(!kept.contains(link.as_str()) && !format!("{sessions:?}").contains(secret.as_str()));
    }
}
