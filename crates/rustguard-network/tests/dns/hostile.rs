//! Queries that no resolver sends.

use super::network::{query, with_edns, zone};
use domain::base::{Message, Rtype, iana::Rcode};
use proptest::prelude::*;
use rustguard_network::dns::query::{MAX_QUERY, MAX_UDP, NoQuery, Query, Transport};

const HEADER: [u8; 12] = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];

fn error(query: &[u8]) -> Option<Rcode> {
    match Query::read(query, Transport::Udp) {
        Err(NoQuery::Error(answer)) => {
            assert!(answer.len() <= query.len().max(12), "an error is no longer than what it answers");
            Some(Message::from_octets(answer).unwrap().header().rcode())
        }
        Err(NoQuery::Silence) => None,
        Ok(query) => panic!("{query:?}"),
    }
}

fn header(flags: [u8; 2], counts: [u16; 4]) -> Vec<u8> {
    let counts = counts.iter().flat_map(|count| count.to_be_bytes());
    HEADER[..2].iter().copied().chain(flags).chain(counts).collect()
}

#[test]
fn answers_and_fragments_are_not_answered() {
    for silent in [&[][..], &HEADER[..11], &[0x12, 0x34, 0x81, 0, 0, 1, 0, 0, 0, 0, 0, 0]] {
        assert_eq!(error(silent), None, "{silent:?}");
    }
}

#[test]
fn names_that_cannot_be_read_are_errors() {
    let long = [[vec![63], vec![b'a'; 63]].concat().repeat(4), vec![0]].concat();
    for (why, name) in [
        ("a pointer to itself", &[0xc0, 12][..]),
        ("two pointers in a circle", &[0xc0, 14, 0xc0, 12]),
        ("a pointer ahead", &[0xc0, 20]),
        ("a pointer beyond the end", &[0xff, 0xff]),
        ("a pointer to a label that ends with it", &[1, b'a', 0xc0, 12]),
        ("half a pointer", &[0xc0]),
        ("a label that is longer than the message", &[63, b'a']),
        ("an extended label", &[0x41, 1]),
        ("a reserved label", &[0x80, 1]),
        ("a name of more than 255 bytes", &long),
        ("no name", &[]),
    ] {
        let query = [&HEADER[..], name, &[0, 1, 0, 1]].concat();
        assert_eq!(error(&query), Some(Rcode::FORMERR), "{why}");
    }
}

#[test]
fn counts_that_no_query_has_are_errors() {
    let question = &query("a.rg0.internal", Rtype::A)[12..];
    for counts in [[0, 0, 0, 0], [2, 0, 0, 0], [65535, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 3], [1, 0, 0, 1]]
    {
        let query = [header([1, 0], counts), question.repeat(2)].concat();
        assert_eq!(error(&query), Some(Rcode::FORMERR), "{counts:?}");
    }
    let many =
        [header([1, 0], [200, 0, 0, 0]), question.to_vec(), [&[0xc0, 12, 0, 1, 0, 1][..]; 190].concat()].concat();
    assert_eq!(error(&many), Some(Rcode::FORMERR));
}

#[test]
fn other_operations_are_not_implemented() {
    let question = &query("rg0.internal", Rtype::SOA)[12..];
    // Notify and update might change something.
    for opcode in [1, 2, 4, 5, 15] {
        let query = [&header([opcode << 3, 0], [1, 0, 0, 0]), question].concat();
        assert_eq!(error(&query), Some(Rcode::NOTIMP), "{opcode}");
    }
}

#[test]
fn the_longest_question_is_answered_in_the_shortest_answer() {
    let longest = format!("{0}.{0}.{0}.{1}.rg0.internal", "a".repeat(63), "b".repeat(48));
    let query = query(&longest, Rtype::A);
    assert_eq!(query.len(), 12 + 255 + 4);
    for query in [query.clone(), with_edns(query, 0, 0)] {
        let answer = Query::read(&query, Transport::Udp).unwrap().answer(&zone()).unwrap();
        let message = Message::from_octets(&answer[..]).unwrap();
        assert_eq!((message.header().rcode(), message.header().tc()), (Rcode::NXDOMAIN, false));
        assert_eq!(message.header_counts().nscount(), 1);
        assert!(answer.len() <= 512);
    }
}

/// The longest answer that the query accepts, in bytes, read without this crate.
fn accepted(query: &[u8]) -> usize {
    let message = Message::from_octets(query).unwrap();
    message.opt().map_or(512, |opt| usize::from(opt.udp_payload_size()).clamp(512, MAX_UDP))
}

fn check_any(query: &[u8]) -> Result<(), TestCaseError> {
    let answer = match Query::read(query, Transport::Udp) {
        Ok(query) => query.answer(&zone()).unwrap_or_else(|| query.refuse()),
        Err(NoQuery::Error(answer)) => answer,
        Err(NoQuery::Silence) => return Ok(()),
    };
    prop_assert!(answer.len() <= accepted(query));
    prop_assert_eq!(&answer[..2], &query[..2]);
    prop_assert!(answer[2] & 0x80 != 0);
    let message = Message::from_octets(answer).unwrap();
    for record in message.iter() {
        prop_assert!(record.is_ok());
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..MAX_QUERY)) {
        check_any(&bytes)?;
        let mut bytes = bytes;
        // The same bytes with a valid header, so that the question is read.
        for (byte, header) in bytes.iter_mut().zip(HEADER).skip(2) {
            *byte = header;
        }
        check_any(&bytes)?;
    }

    #[test]
    fn any_change_to_a_query_is_read_without_harm(
        at in any::<proptest::sample::Index>(), to in any::<u8>(), cut in any::<proptest::sample::Index>(), edns in any::<bool>(),
    ) {
        let mut query = query("laptop.rg0.internal", Rtype::ANY);
        if edns {
            query = with_edns(query, 1232, 0);
        }
        let at = at.index(query.len());
        query[at] = to;
        check_any(&query)?;
        query.truncate(cut.index(query.len()));
        check_any(&query)?;
    }
}
