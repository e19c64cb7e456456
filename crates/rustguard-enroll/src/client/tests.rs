//! Servers that do not follow the protocol.
use super::*;
use crate::{payload, token::Passphrase};
use rand::{SeedableRng as _, rngs::StdRng};

fn now() -> Now {
    Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1_700_000_000) }
}

#[test]
fn settings_that_name_another_server_than_the_invite_are_not_taken() {
    for honest in [true, false] {
        let mut rng = StdRng::seed_from_u64(1);
        let identity = StaticSecret::from_bytes([1; 32]);
        let invite = Invite::generate(identity.public_key(), None, &mut rng).expect("no endpoint");
        let joiner = StaticSecret::from_bytes([2; 32]);
        let mut client = Client::new(Token::Invite(invite), joiner, now()).expect("good keys");
        let datagram = client.poll(now(), &mut rng).expect("alive").expect("an initiation");
        let Some(Message::Initiation(initiation)) = Message::parse(&datagram) else { panic!("an initiation") };
        let claimed = invite::read(&identity, &initiation).expect("authentic");
        let (received, _) = invite::verify(claimed, &identity, &initiation).expect("authentic");
        let named = if honest { identity.public_key() } else { StaticSecret::from_bytes([3; 32]).public_key() };
        let greeting = payload::settings(&named, &ServerConfig::default()).expect("fits");
        let (_, answer) =
            invite::respond(received, &datagram, &initiation.sender, &[1; 8], &greeting, &mut rng).expect("honest");
        match client.handle(&answer, now(), &mut rng) {
            Heard::Progress => assert!(honest),
            Heard::Failed(error) => assert_eq!((honest, error), (false, JoinError::BadKey)),
            other => panic!("{other:?}"),
        }
        assert_eq!(client.deadline().is_some(), honest);
    }
}

#[test]
fn low_order_servers_and_oneself_are_refused_before_anything_is_sent() {
    let mut rng = StdRng::seed_from_u64(1);
    let joiner = StaticSecret::from_bytes([2; 32]);
    for server in [PublicKey([0; 32]), joiner.public_key()] {
        let invite = Invite::generate(server, None, &mut rng).expect("no endpoint");
        let made = Client::new(Token::Invite(invite), joiner.clone(), now());
        assert_eq!(made.err(), Some(JoinError::BadKey));
    }
}

#[test]
fn initiations_of_one_client_are_in_order_whatever_the_clock_says() {
    let mut rng = StdRng::seed_from_u64(1);
    let identity = StaticSecret::from_bytes([1; 32]);
    let invite = Invite::generate(identity.public_key(), None, &mut rng).expect("no endpoint");
    let joiner = StaticSecret::from_bytes([2; 32]);
    let mut client = Client::new(Token::Invite(invite), joiner, now()).expect("good keys");
    let mut last = None;
    for unix in [1_700_000_000, 1_700_000_000, 5, 1_700_000_001] {
        client.enter(Stage::Begin, now().instant);
        let now = Now { unix: Duration::from_secs(unix), ..now() };
        let datagram = client.poll(now, &mut rng).expect("alive").expect("an initiation");
        let Some(Message::Initiation(initiation)) = Message::parse(&datagram) else { panic!("an initiation") };
        let claimed = invite::read(&identity, &initiation).expect("authentic");
        let (_, text) = invite::verify(claimed, &identity, &initiation).expect("authentic");
        let (timestamp, ..) = Joiner::from_initiation(&text).expect("a joiner");
        assert!(Some(timestamp) > last, "at {unix}");
        last = Some(timestamp);
    }
}

#[test]
fn a_share_that_is_no_point_costs_the_exchange_and_no_more() {
    let mut rng = StdRng::seed_from_u64(1);
    let passphrase = Token::Passphrase(Passphrase::new("mysecret").expect("a passphrase"));
    let mut client = Client::new(passphrase, StaticSecret::from_bytes([2; 32]), now()).expect("a key");
    let first = client.poll(now(), &mut rng).expect("alive").expect("a share");
    let reply = wire::build(wire::SHARE_REPLY, &[&first[4..12], &[7; 8], &[0; 32]]);
    assert!(matches!(client.handle(&reply, now(), &mut rng), Heard::Nothing));
    let later = Now { instant: client.deadline().expect("alive"), ..now() };
    let second = client.poll(later, &mut rng).expect("alive").expect("another share");
    assert_eq!(second.len(), first.len());
    assert_ne!(second[4..52], first[4..52]);
}
