//! The transfer of one roster from another member: first the head, then the parts that differ from those here.

use crate::{
    digest::{self, Digest},
    head::{Head, MAX_HEAD, Version},
    key::NetworkKey,
    message::{CHUNK, Part},
    requests::{Inconsistent, Requests, WINDOW},
    roster::{MAX_ROSTER, MAX_SHARD, MAX_SHEET, Roster},
    settings::MAX_SETTINGS,
    trust::Patience,
};
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

/// How long one member may take if another one has the roster as well. Without this limit, a member that answers now
/// and then could withhold it.
const TIME: Duration = Duration::from_secs(30);

/// How long one member may take for a head: seconds on any link that carries a tunnel.
const HEAD_TIME: Duration = Duration::from_secs(15);

/// The parts of rosters that are here, by digest. They outlive an attempt, because most of them are also in the next
/// roster.
#[derive(Default)]
pub(crate) struct Parts {
    verified: HashMap<Digest, Vec<u8>>,
    /// The parts of the roster here are included, split with this number of bits. Splitting takes milliseconds for
    /// 10,000 members.
    of_base: Option<u8>,
}

/// A roster that is being fetched.
pub(crate) struct Fetch {
    network: NetworkKey,
    /// The key of this machine: the sheets that it enforces are part of its roster.
    own: Option<PublicKey>,
    /// The member that is asked.
    pub(crate) from: PublicKey,
    /// The version of this roster.
    pub(crate) version: Version,
    head: Option<Head>,
    /// The roster, while sheets of it are missing.
    assembled: Option<Box<Roster>>,
    parts: Parts,
    requests: Requests<Part>,
    /// Whether the member sends the roster unasked. Missing parts are then requested like parts whose answer was lost.
    follows: bool,
    /// Parts that arrived before the part that says that they are wanted.
    early: BTreeMap<(Part, u32), (u32, Vec<u8>)>,
    begun: Patience,
}

/// The parts that this head names and that are not known, in the order in which they are requested. Of identical parts,
/// only the first.
pub(crate) fn lacking(head: &Head, is_known: impl Fn(&Digest) -> bool) -> impl Iterator<Item = Part> {
    let parts = [(Part::Settings, &head.settings)].into_iter();
    let parts = parts.chain((0..=u8::MAX).map(Part::Shard).zip(&head.shards));
    let mut wanted = BTreeSet::new();
    parts.filter(move |(_, digest)| !is_known(digest) && wanted.insert(**digest)).map(|(part, _)| part)
}

/// The state of a fetch.
pub(crate) enum Progress {
    /// There is more to ask for.
    Goes,
    /// The roster is complete.
    Done(Box<Roster>),
    /// The member that is asked does not answer, or its answers do not match its roster.
    Failed,
}

impl Fetch {
    /// Begins. `parts` come from an earlier attempt.
    #[expect(clippy::too_many_arguments, reason = "each is something else")]
    pub(crate) fn new(
        network: NetworkKey,
        own: Option<PublicKey>,
        from: PublicKey,
        version: Version,
        parts: Parts,
        follows: bool,
        begun: Patience,
        now: Instant,
    ) -> Self {
        Self {
            network,
            own,
            from,
            version,
            head: None,
            assembled: None,
            parts,
            requests: Requests::new(Part::Head, CHUNK, now),
            follows,
            early: BTreeMap::new(),
            begun,
        }
    }

    /// The parts that another attempt can reuse.
    pub(crate) fn into_parts(self) -> Parts {
        self.parts
    }

    /// From now on, the member that is asked sends it unasked.
    pub(crate) fn follows(&mut self) {
        self.follows = true;
    }

    /// Whether the head is here, which proves that the roster exists.
    pub(crate) fn is_proven(&self) -> bool {
        self.head.is_some()
    }

    /// The next bytes to ask for: bytes that were not requested yet, or whose answer is overdue. `None` for now.
    pub(crate) fn next_request(&mut self, now: Instant) -> Option<(Part, u32)> {
        loop {
            let (place, tries) = self.requests.next(now)?;
            self.follows &= tries == 0;
            if !self.follows {
                return Some(place);
            }
        }
    }

    /// When something is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.requests.deadline().into_iter().chain(self.head_is_due()).min()
    }

    /// When the head has to have arrived.
    fn head_is_due(&self) -> Option<Instant> {
        self.begun.unproven.filter(|_| !self.is_proven()).map(|since| since + HEAD_TIME)
    }

    /// Whether the member that is asked is silent, does not deliver what it claims to have, or, if `another` has the
    /// roster as well, is slow.
    pub(crate) fn is_lost(&self, another: bool, now: Instant) -> bool {
        self.requests.is_silent(now)
            || another && now.since(self.begun.since) >= TIME
            || self.head_is_due().is_some_and(|at| at <= now)
    }

    /// Takes an answer or an unasked part. `base` is the roster that is here.
    pub(crate) fn take(
        &mut self,
        place: (Part, u32),
        total: u32,
        bytes: &[u8],
        base: Option<&Roster>,
        now: Instant,
    ) -> Progress {
        if !self.requests.is_answer(&place, now) {
            if self.early.len() < WINDOW {
                self.early.insert(place, (total, bytes.to_vec()));
            }
            return Progress::Goes;
        }
        let mut progress = self.take_wanted(place, total, bytes, base);
        while matches!(progress, Progress::Goes)
            && let Some(place) = self.early.keys().find(|place| self.requests.will_ask(place)).copied()
            && let Some((total, bytes)) = self.early.remove(&place)
        {
            self.requests.need_not_ask(&place);
            progress = self.take_wanted(place, total, &bytes, base);
        }
        progress
    }

    fn take_wanted(
        &mut self,
        (part, offset): (Part, u32),
        total: u32,
        bytes: &[u8],
        base: Option<&Roster>,
    ) -> Progress {
        let most = match part {
            Part::Head => MAX_HEAD,
            Part::Settings => MAX_SETTINGS,
            Part::Shard(_) => MAX_SHARD,
            Part::Sheet(_) => MAX_SHEET,
        };
        let most = most.min(MAX_ROSTER.saturating_sub(self.requests.held()));
        match self.requests.take((part, offset), total, bytes, most) {
            Ok(Some(mut bytes)) => self.complete(part, std::mem::take(&mut *bytes), base),
            Ok(None) => Progress::Goes,
            Err(Inconsistent) => Progress::Failed,
        }
    }

    /// Takes a complete part.
    fn complete(&mut self, part: Part, bytes: Vec<u8>, base: Option<&Roster>) -> Progress {
        let Some(head) = &self.head else {
            return self.begin_parts(&bytes, base);
        };
        let (wanted, digest) = match part {
            Part::Head => return Progress::Failed,
            Part::Settings => (Some(&head.settings), digest::of_settings(&bytes)),
            Part::Shard(index) => (head.shards.get(usize::from(index)), digest::of_shard(&bytes)),
            Part::Sheet(number) => {
                let roster = self.assembled.as_ref();
                (roster.and_then(|roster| roster.sheet_digest(number)), digest::of_sheet(&bytes))
            }
        };
        if wanted != Some(&digest) {
            return Progress::Failed;
        }
        self.parts.verified.insert(digest, bytes);
        self.finish()
    }

    /// Takes the head, and requests the missing parts.
    fn begin_parts(&mut self, head: &[u8], base: Option<&Roster>) -> Progress {
        let Some(head) = Head::read(head, &self.network).filter(|head| head.version() == self.version) else {
            return Progress::Failed;
        };
        if let Some(base) = base.filter(|_| self.parts.of_base != Some(head.bits)) {
            self.parts.verified.extend(base.parts(head.bits));
            self.parts.of_base = Some(head.bits);
        }
        self.requests.want(lacking(&head, |digest| self.parts.verified.contains_key(digest)));
        self.head = Some(head);
        self.finish()
    }

    fn finish(&mut self) -> Progress {
        if !self.requests.is_empty() {
            return Progress::Goes;
        }
        let assembled = self.assembled.take().or_else(|| {
            let head = self.head.clone()?;
            Roster::assemble(head, &self.parts.verified).map(Box::new)
        });
        let Some(roster) = assembled else {
            // The signed contents are not what this version writes: none of them is usable.
            (self.head, self.parts) = (None, Parts::default());
            return Progress::Failed;
        };
        // A machine accepts no roster without the sheets that it has to enforce. It continues with the previous roster
        // and its sheets.
        let sheets = self.own.iter().flat_map(|own| roster.sheets_for(own));
        let is_missing =
            |number: &u16| roster.sheet_digest(*number).is_some_and(|it| !self.parts.verified.contains_key(it));
        self.requests.want(sheets.filter(is_missing).map(Part::Sheet));
        if self.requests.is_empty() {
            self.head = None;
            return Progress::Done(Box::new(roster.with_sheets(&self.parts.verified)));
        }
        self.assembled = Some(roster);
        Progress::Goes
    }
}
