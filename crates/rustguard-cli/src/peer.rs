//! `rustguard peer`: who is in.

use crate::{
    cli::enrol::Peer,
    stock::{self, Form},
    window::{done, peer_table},
};
use anyhow::{Result, bail};
use rustguard_serve::{
    ask,
    request::{AddPeer, Answer, Request},
};
use std::{
    collections::HashMap,
    io::{self, Write as _},
};

/// Runs `peer`.
pub(crate) fn run(command: &Peer) -> Result<()> {
    match command {
        Peer::Ls { interface, json } => {
            let Answer::Peers { peers } = ask(&interface.interface, &Request::Peers)? else {
                bail!("the server gave an answer to something else")
            };
            let mut out = io::stdout().lock();
            if *json {
                writeln!(out, "{}", serde_json::to_string_pretty(&peers)?)?;
            } else {
                write!(out, "{}", peer_table(&peers, &HashMap::new()))?;
            }
            Ok(())
        }
        Peer::Add { name, qr: _, conf, public_key, addresses, endpoint, interface } => {
            let form = match (conf, public_key) {
                (Some(path), _) => Form::File(path.clone()),
                (None, Some(_)) => Form::File("-".into()),
                (None, None) => Form::Qr,
            };
            let peer = AddPeer {
                public_key: public_key.clone().unwrap_or_default(),
                name: name.clone(),
                addresses: addresses.clone(),
                pending_seconds: None,
            };
            stock::add(&interface.interface, peer, endpoint.as_deref(), &form)
        }
        Peer::Rm { peer, interface } => done(interface, &Request::RemovePeer { peer: peer.clone() }),
        Peer::Rename { peer, name, interface } => {
            done(interface, &Request::RenamePeer { peer: peer.clone(), name: name.clone() })
        }
    }
}
