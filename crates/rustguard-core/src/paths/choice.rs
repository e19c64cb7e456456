//! The choice among paths: by our own probes, or by the peer's requests if only the peer probes.
use super::{Address, Choice, Locator, MAX_SHARES, PathReport, Paths, Share, State, path::OwnPath, timing::STEADY};
use crate::time::Instant;
use alloc::vec::Vec;
use core::net::IpAddr;

impl Paths {
    /// All paths, for reports.
    pub fn report(&self) -> Vec<PathReport> {
        let choice = self.choice();
        let weight = |path: usize| {
            choice.spread.iter().find(|(share, _)| usize::from(share.path) == path).map(|(share, _)| share.weight)
        };
        let own = self.own.iter().enumerate().filter(|(path, own)| *path < self.configured || own.locator.is_some());
        let own = own.map(|(path, own)| PathReport {
            configured: (path < self.configured).then_some(path),
            found: self.is_found(path),
            locator: own.locator,
            state: own.state,
            round_trip: own.round_trip.map(|trip| trip.smoothed),
            active: !self.following && self.active == Some(path),
            weight: if self.following { None } else { weight(path) },
        });
        let theirs = self.theirs.iter().enumerate().filter_map(|(path, theirs)| {
            let theirs = theirs.filter(|_| self.following)?;
            Some(PathReport {
                configured: None,
                found: false,
                locator: Some(theirs.locator),
                state: if theirs.usable { State::Up } else { State::Down },
                round_trip: None,
                active: self.active == Some(path),
                weight: weight(path),
            })
        });
        own.chain(theirs).collect()
    }

    /// Chooses the active path.
    pub(super) fn choose(&mut self, now: Instant) {
        let before = (self.active, self.following);
        if let Some(path) = self.pinned() {
            (self.active, self.following) = (Some(path), false);
        } else if self.several() {
            self.following = false;
            self.choose_own(now);
        } else {
            self.follow();
        }
        self.changed |= before != (self.active, self.following);
    }

    fn choose_own(&mut self, now: Instant) {
        let roamed = |path: usize| {
            (path == self.configured || self.moving() == Some(path))
                && self.own.get(path).is_some_and(|own| own.state == State::Unknown)
        };
        if self.active.is_some_and(roamed) {
            // The peer was heard there last. Probes soon show whether it can be reached there too.
            return;
        }
        let up = |own: &OwnPath| own.state == State::Up;
        let weighted = self.own.iter().any(|own| up(own) && own.weight().is_some());
        let spared = self.own.iter().any(|own| up(own) && !own.is_fallback());
        let fits = |own: &OwnPath| up(own) && (own.weight().is_some() || !weighted) && !(spared && own.is_fallback());
        let Some(best) =
            (0..self.own.len()).filter(|&path| fits(&self.own[path])).min_by_key(|&path| self.own[path].length())
        else {
            // Nothing works, or the peer answers no probes. A path that has just answered is better than nothing,
            // though it is not trusted yet. Otherwise the active path stays, or is the first with a locator.
            let answers = |own: &OwnPath| own.answered > 0;
            let kept = self.active.filter(|&path| path < self.own.len());
            let answering = kept.filter(|&path| answers(&self.own[path])).or_else(|| self.own.iter().position(answers));
            self.active = answering.or(kept).or_else(|| self.own.iter().position(|own| own.locator.is_some()));
            return;
        };
        let Some(active) = self.active.filter(|&path| self.own.get(path).is_some_and(fits)) else {
            (self.active, self.better) = (Some(best), None);
            return;
        };
        if self.own[active].is_indirect() && !self.own[best].is_indirect() {
            // A direct path is taken at once. In the other direction, the margin below keeps flows on their path.
            (self.active, self.better) = (Some(best), None);
            return;
        }
        let clearly = self.own[active].is_clearly_longer_than(&self.own[best]);
        self.better = match self.better {
            _ if best == active || !clearly => None,
            Some((path, since)) if path == best && now.since(since) >= STEADY => {
                self.active = Some(best);
                None
            }
            Some((path, since)) if path == best => Some((path, since)),
            _ => Some((best, now)),
        };
    }

    /// Follows the peer's choice.
    fn follow(&mut self) {
        let usable =
            |path: &usize| self.theirs.get(*path).is_some_and(|theirs| theirs.is_some_and(|theirs| theirs.usable));
        let told = self.their_active.map(usize::from).filter(usable);
        let kept = self.active.filter(|path| self.following && usable(path));
        let next = told.or(kept).or_else(|| (0..self.theirs.len()).find(usable));
        // A path that no longer works is better than none, as long as it is remembered.
        let next = next.or(self.active.filter(|&path| self.following && self.theirs[path].is_some()));
        self.following = next.is_some();
        self.active = if self.following { next } else { self.active.filter(|&path| path < self.own.len()) };
    }

    pub(super) fn active_locator(&self) -> Option<Locator> {
        let path = self.active?;
        if self.following { Some(self.sticky(path)?) } else { self.own[path].locator }
    }

    /// Where a path of the peer leads. Datagrams leave from our address that the peer has sent to. If the peer's
    /// address is link-local or does not identify one of its paths, they leave by the interface by which the peer's
    /// datagrams arrived.
    pub(super) fn sticky(&self, path: usize) -> Option<Locator> {
        let at = match self.theirs.get(path)?.as_ref()?.locator {
            Locator::Address(at) => at,
            relayed @ Locator::Peer(_) => return Some(relayed),
        };
        let others = self.theirs.iter().flatten().filter_map(|other| other.locator.address());
        let same = others.filter(|other| other.remote == at.remote).count();
        let link_local = matches!(at.remote.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
        Some(Locator::Address(Address { interface: if same > 1 || link_local { at.interface } else { 0 }, ..at }))
    }

    pub(super) fn choice(&self) -> Choice {
        if self.pinned().is_some() {
            return Choice { active: self.active_locator(), pinned: true, ..Choice::default() };
        }
        let known = match self.answers {
            // Not for a stock peer: if heard from elsewhere, it has moved.
            Some(true) if self.own.iter().any(|own| own.state == State::Up) => {
                self.own.iter().filter_map(|own| own.locator).collect()
            }
            // Nothing works: we answer by the path that data comes by.
            Some(true) => self.active_locator().into_iter().collect(),
            _ => Vec::new(),
        };
        let theirs = self.theirs.iter().flatten().map(|theirs| theirs.locator);
        let known: Vec<Locator> = known.into_iter().chain(theirs).collect();
        let mut spread: Vec<(Share, Locator)> = if self.following {
            (0..self.theirs.len().min(MAX_SHARES))
                .filter_map(|path| {
                    let theirs = self.theirs[path].filter(|theirs| theirs.usable && theirs.weight > 0)?;
                    theirs.locator.address()?;
                    Some((Share { path: path as u8, weight: theirs.weight }, self.sticky(path)?))
                })
                .collect()
        } else {
            self.own
                .iter()
                .enumerate()
                .filter_map(|(path, own)| {
                    let weight = own.weight().filter(|_| own.state == State::Up)?;
                    Some((Share { path: path as u8, weight }, own.locator?))
                })
                .collect()
        };
        if spread.len() < 2 {
            spread.clear();
        }
        // If direct ways are looked for, another locator is tried before anything is sent to it, as long as the active
        // path works.
        let pinned = self.discovery.is_some() && self.answers == Some(true) && self.certain();
        Choice { active: self.active_locator(), known, pinned, spread }
    }
}
