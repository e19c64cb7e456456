//! Two machines join by hand, one by an invite and one by a window's code. Everything is in memory.
//!
//! ```sh
//! cargo run -p rustguard-enroll --example enrol
//! ```
use rand::{Rng as _, rngs::StdRng};
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_enroll::{
    action::Action,
    client::{Client, Heard},
    ledger::{Ledger, Policy},
    pool::Pools,
    server::{InviteOptions, OpenOptions, Server, ServerConfig},
    store::MemoryStore,
    token::Token,
};
use std::{error::Error, time::SystemTime};

fn main() -> Result<(), Box<dyn Error>> {
    // The example provides the time and the randomness for both sides.
    let mut rng: StdRng = rand::make_rng();
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let mut now = Now { instant: Instant::from_nanos(0), unix };

    // The server has a WireGuard key, a ledger with a store, and settings for joiners.
    let pool = "10.150.0.0/24".parse()?;
    let ledger = Ledger::open(MemoryStore::default(), Pools::new(&[pool])?, Policy::default(), now)?;
    let config = ServerConfig::default().with_addresses(vec!["10.150.0.1".parse()?]).with_routes(vec![pool]);
    let mut server = Server::new(secret(&mut rng), ledger, &config, now, &mut rng)?;

    // The tokens that the administrator hands out.
    let mut actions = Vec::new();
    let invite = server.new_invite(InviteOptions::default(), now, &mut rng, &mut actions)?;
    let opened = server.open(OpenOptions::default(), now, &mut rng, &mut actions)?;
    let code = opened.code.ok_or("a window without a passphrase has a code")?;

    for (name, token) in [("laptop", invite.to_text()), ("phone", code.to_text())] {
        println!("{name} joins with {}", &**token);
        // A machine stores its key before it sends anything. With the same key it gets the same lease again.
        let identity = secret(&mut rng);
        let public_key = identity.public_key();
        let mut client = Client::new(Token::parse(&token)?, identity, now)?.with_name(name.to_owned());
        let joined = 'joined: loop {
            // No message gets lost here, so the next message is always due.
            if let Some(at) = client.deadline() {
                now.instant = now.instant.max(at);
            }
            let Some(message) = client.poll(now, &mut rng)? else { return Err("the client is over".into()) };
            println!("  → {} bytes", message.len());
            server.handle("192.0.2.7:40000".parse()?, &message, now, &mut rng, &mut actions);
            for action in actions.drain(..) {
                match action {
                    Action::Send { bytes, .. } => {
                        println!("  ← {} bytes", bytes.len());
                        match client.handle(&bytes, now, &mut rng) {
                            Heard::Joined(joined) => break 'joined joined,
                            Heard::Failed(error) => return Err(error.into()),
                            Heard::Waiting(code) => println!("  waits for approval: {code}"),
                            Heard::Progress | Heard::Nothing => {}
                        }
                    }
                    Action::SetPeer(peer) => println!("  the device gets {peer:?}"),
                    Action::RekeyPeer { before, after } => {
                        println!("  the device has {after:?} in place of {before:?}");
                    }
                    Action::RemovePeer(peer) => println!("  the device loses {peer:?}"),
                    Action::MembersChanged => println!("  the roster changes"),
                    Action::Audit(record) => println!("  audit: {:?} {:?}", record.event, record.addresses),
                }
            }
        };
        println!("  {joined:?}");
        // The tunnel comes up. Its first handshake confirms the lease.
        server.handshake_completed(&public_key, now, &mut actions);
    }
    Ok(())
}

fn secret(rng: &mut StdRng) -> StaticSecret {
    let mut bytes = [0; 32];
    rng.fill_bytes(&mut bytes);
    StaticSecret::from_bytes(bytes)
}
