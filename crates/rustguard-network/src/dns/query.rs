//! DNS messages: parsing queries and building answers (RFC 1035; EDNS: RFC 6891).
//!
//! Queries come from any program on this machine. Each costs at most one pass over [`MAX_QUERY`] bytes, and no answer
//! is larger than the query allows.

use crate::dns::{
    WireName,
    zone::{Found, Records, Zone},
};
use domain::{
    base::{
        Message, MessageBuilder, Name, Question, Rtype, Serial, ToName, Ttl,
        iana::{Class, Opcode, OptRcode},
        message_builder::{AnswerBuilder, OptBuilder, PushError, StaticCompressor},
    },
    rdata::{A, Aaaa, Ns, Ptr, Soa},
};
use std::net::IpAddr;

/// The longest query that is read, in bytes. A question needs 271, EDNS 11, and its padding (RFC 8467) fills up to
/// multiples of 128.
pub const MAX_QUERY: usize = 1232;

/// The longest answer over UDP, in bytes: it fits into one packet of IPv6 on every link (DNS flag day 2020).
pub const MAX_UDP: usize = 1232;

/// The longest answer over UDP to a query without EDNS, in bytes (RFC 1035, section 4.2.1).
const MAX_PLAIN_UDP: usize = 512;

/// The bytes of an OPT record without options.
const OPT: usize = 11;

/// How long an answer may be cached, in seconds: not at all. Names change, the answer comes from this machine, and a
/// removed member has to disappear immediately.
const TTL: Ttl = Ttl::ZERO;

/// The transport of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A datagram.
    Udp,
    /// A stream.
    Tcp,
}

/// A query with one question.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    message: Message<&'a [u8]>,
    question: Question<WireName>,
    edns: bool,
    dnssec_ok: bool,
    /// The longest answer, in bytes.
    limit: usize,
}

/// Why there is no query to answer normally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoQuery {
    /// It gets no answer: it is an answer itself, or its header is incomplete.
    Silence,
    /// The answer is an error.
    Error(Vec<u8>),
}

type Compressor = StaticCompressor<Vec<u8>>;
/// The record of the authority section.
type Authority<'a> = (&'a WireName, Ttl, Soa<&'a WireName>);

impl<'a> Query<'a> {
    /// Reads a query.
    ///
    /// # Errors
    /// It is not a query, or it is malformed.
    pub fn read(bytes: &'a [u8], transport: Transport) -> Result<Self, NoQuery> {
        let message = Message::from_octets(bytes).map_err(|_| NoQuery::Silence)?;
        if message.header().qr() {
            return Err(NoQuery::Silence);
        }
        let mut query = Self {
            message,
            question: Question::new_in(Name::root_vec(), Rtype::ANY),
            edns: false,
            dnssec_ok: false,
            limit: if transport == Transport::Udp { MAX_PLAIN_UDP } else { usize::from(u16::MAX) },
        };
        match query.understand(transport) {
            Ok(()) => Ok(query),
            // A malformed question is not repeated, because a message may contain many of them.
            Err(code) => Err(NoQuery::Error(query.write(code, None, |_| Ok(None)))),
        }
    }

    fn understand(&mut self, transport: Transport) -> Result<(), OptRcode> {
        let (message, counts) = (self.message, self.message.header_counts());
        if message.header().opcode() != Opcode::QUERY {
            return Err(OptRcode::NOTIMP);
        }
        // A query has one question (RFC 9619), no answer or authority records, and at most EDNS and a signature.
        if counts.qdcount() != 1 || counts.ancount() != 0 || counts.nscount() != 0 || counts.arcount() > 2 {
            return Err(OptRcode::FORMERR);
        }
        let question = message.sole_question().map_err(|_| OptRcode::FORMERR)?;
        self.question = Question::new(question.qname().to_name(), question.qtype(), question.qclass());
        for record in message.additional().map_err(|_| OptRcode::FORMERR)? {
            let record = record.map_err(|_| OptRcode::FORMERR)?;
            if record.rtype() != Rtype::OPT {
                continue;
            }
            if self.edns || !record.owner().is_root() {
                return Err(OptRcode::FORMERR);
            }
            self.edns = true;
            self.dnssec_ok = record.ttl().as_secs() & 0x8000 != 0;
            if transport == Transport::Udp {
                self.limit = usize::from(record.class().to_int()).clamp(MAX_PLAIN_UDP, MAX_UDP);
            }
            // The version of EDNS is the second byte of the field that is the TTL in other records.
            if record.ttl().as_secs() >> 16 & 0xff != 0 {
                return Err(OptRcode::BADVERS);
            }
        }
        Ok(())
    }

    /// The answer of the zone. `None` if the name is outside the zone.
    pub fn answer(&self, zone: &Zone) -> Option<Vec<u8>> {
        let Found::Here { domain, records } = zone.find(self.question.qname()) else {
            return None;
        };
        let known_class = matches!(self.question.qclass(), Class::IN | Class::ANY);
        if !known_class || matches!(self.question.qtype(), Rtype::AXFR | Rtype::IXFR) {
            return Some(self.refuse());
        }
        let code = if matches!(records, Records::NoName) { OptRcode::NXDOMAIN } else { OptRcode::NOERROR };
        Some(self.write(code, Some(&self.question), |answer| {
            answer.header_mut().set_aa(true);
            self.put(answer, zone, &domain, &records)?;
            // The SOA record says how long the absence may be cached (RFC 2308).
            Ok((answer.counts().ancount() == 0).then(|| (&domain, TTL, start_of_authority(zone))))
        }))
    }

    /// An answer that refuses the question, because this server does not know the name.
    pub fn refuse(&self) -> Vec<u8> {
        self.write(OptRcode::REFUSED, Some(&self.question), |_| Ok(None))
    }

    /// An answer that says that the servers for this name failed to answer.
    pub(crate) fn fail(&self) -> Vec<u8> {
        self.write(OptRcode::SERVFAIL, Some(&self.question), |_| Ok(None))
    }

    pub(crate) fn name(&self) -> &WireName {
        self.question.qname()
    }

    /// The query for another server, with a new ID. EDNS options are only for the next server, so they are not
    /// forwarded.
    pub(crate) fn forward(&self, number: u16) -> Vec<u8> {
        let mut message = MessageBuilder::new_vec();
        let asked = self.message.header();
        let header = message.header_mut();
        header.set_id(number);
        header.set_rd(asked.rd());
        header.set_cd(asked.cd());
        header.set_ad(asked.ad());
        let mut section = message.question();
        section.push(&self.question).expect("a vector has room for a question");
        let mut additional = section.additional();
        if self.edns {
            let (size, dnssec_ok) = (self.limit.min(MAX_UDP) as u16, self.dnssec_ok);
            let of_edns = |opt: &mut OptBuilder<'_, Vec<u8>>| {
                opt.set_udp_payload_size(size);
                opt.set_dnssec_ok(dnssec_ok);
                Ok(())
            };
            additional.opt(of_edns).expect("a vector has room for EDNS");
        }
        additional.finish()
    }

    /// Another server's answer to [`forward`](Self::forward), as the answer to this query. `None` if it does not belong
    /// to this query.
    pub(crate) fn answered(&self, number: u16, answer: &[u8]) -> Option<Vec<u8>> {
        let message = Message::from_octets(answer).ok()?;
        let header = message.header();
        let fits = header.qr() && header.id() == number && header.opcode() == Opcode::QUERY;
        let question = message.sole_question().ok().filter(|_| fits)?;
        let same = *question.qname() == *self.question.qname()
            && (question.qtype(), question.qclass()) == (self.question.qtype(), self.question.qclass());
        if !same {
            return None;
        }
        if answer.len() > self.limit {
            return Some(self.write(OptRcode::NOERROR, Some(&self.question), |answer| {
                answer.header_mut().set_tc(true);
                Ok(None)
            }));
        }
        let mut answer = answer.to_vec();
        answer[..2].copy_from_slice(&self.message.header().id().to_be_bytes());
        Some(answer)
    }

    /// Adds the records of the requested type.
    fn put(
        &self,
        answer: &mut AnswerBuilder<Compressor>,
        zone: &Zone,
        domain: &WireName,
        records: &Records<'_>,
    ) -> Result<(), PushError> {
        let asked = |rtype| [rtype, Rtype::ANY].contains(&self.question.qtype());
        let name = self.question.qname();
        let addresses = match records {
            Records::NoName | Records::Nothing => return Ok(()),
            Records::Pointer(member) if asked(Rtype::PTR) => {
                return answer.push((name, TTL, Ptr::new(zone.full_name(member))));
            }
            Records::Pointer(_) => return Ok(()),
            Records::Addresses(addresses) => *addresses,
            Records::Domain(addresses) => {
                if asked(Rtype::SOA) {
                    answer.push((domain, TTL, start_of_authority(zone)))?;
                }
                if asked(Rtype::NS) {
                    answer.push((domain, TTL, Ns::new(zone.name_server())))?;
                }
                *addresses
            }
        };
        for address in addresses {
            match address {
                IpAddr::V4(address) if asked(Rtype::A) => answer.push((name, TTL, A::new(*address)))?,
                IpAddr::V6(address) if asked(Rtype::AAAA) => answer.push((name, TTL, Aaaa::new(*address)))?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Builds an answer. `fill` adds its records, and returns one for the authority section.
    fn write<'z>(
        &self,
        code: OptRcode,
        question: Option<&Question<WireName>>,
        fill: impl FnOnce(&mut AnswerBuilder<Compressor>) -> Result<Option<Authority<'z>>, PushError>,
    ) -> Vec<u8> {
        let target = StaticCompressor::new(Vec::with_capacity(MAX_PLAIN_UDP));
        let mut message = MessageBuilder::from_target(target).expect("a vector has room for a header");
        // The builder's limit is exclusive.
        message.set_push_limit(self.limit - OPT + 1);
        let asked = self.message.header();
        let header = message.header_mut();
        header.set_id(asked.id());
        header.set_qr(true);
        header.set_opcode(asked.opcode());
        header.set_rd(asked.rd());
        header.set_rcode(code.rcode());
        let mut section = message.question();
        if let Some(question) = question {
            section.push(question).expect("the shortest limit has room for the longest question");
        }
        let mut answer = section.answer();
        let filled = fill(&mut answer);
        if filled.is_err() {
            answer = answer.tc_rewind_into();
        }
        let mut authority = answer.authority();
        if let Ok(Some(record)) = filled
            && authority.push(record).is_err()
        {
            authority = authority.tc_rewind_into();
        }
        let mut additional = authority.additional();
        additional.clear_push_limit();
        if self.edns {
            let of_edns = |opt: &mut OptBuilder<'_, Compressor>| {
                opt.set_udp_payload_size(MAX_UDP as u16);
                opt.set_rcode(code);
                Ok(())
            };
            additional.opt(of_edns).expect("room for EDNS was kept");
        }
        additional.finish().into_target()
    }
}

/// The same in all domains of the zone, except for its serial number: nobody transfers them, so only the time for which
/// an absence is cached matters.
fn start_of_authority(zone: &Zone) -> Soa<&WireName> {
    let name_server = zone.name_server();
    Soa::new(name_server, name_server, Serial(zone.serial()), TTL, TTL, TTL, TTL)
}
