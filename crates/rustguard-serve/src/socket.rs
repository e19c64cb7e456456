//! The control socket, `/run/rustguard/NAME.ctl`.
//!
//! Root, the user of the server, and the owner and group of the socket may send requests ([`Access::OwnerAndGroup`]).
//! The group is root's; `chgrp` admits others. The kernel enforces this by the mode 0660. The server checks the
//! credentials again, because the mode may have been changed. [`Permission`] says which requests the group may not
//! send.

use crate::request::{Answer, Permission, Request};
use rustguard_device::{
    interface::{RUN_DIR, run_file},
    unix_socket::{Access, UnixSocket},
};
use rustguard_quick::rpc;
use rustix::process::geteuid;
use std::{
    fs, io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

/// The extension of the socket's file.
const EXTENSION: &str = "ctl";
/// The longest wait for an answer: a server carries out a request in milliseconds, and the user has to be told if it
/// hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The caller of a command.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The user of the caller, or of this process.
    pub(crate) uid: u32,
    /// The session of the status page, if the command comes from there.
    pub(crate) session: Option<String>,
}

impl Caller {
    /// This process itself.
    pub(crate) fn own() -> Self {
        Self { uid: geteuid().as_raw(), session: None }
    }

    /// Refuses requests that this caller may not send. The error is a text for people.
    pub(crate) fn check(&self, needed: Permission) -> Result<(), &'static str> {
        if self.session.is_some() {
            let refusal = "the status page does not do this: use the command line";
            return if needed == Permission::Page { Ok(()) } else { Err(refusal) };
        }
        if needed != Permission::Owner || self.uid == 0 || self.uid == geteuid().as_raw() {
            return Ok(());
        }
        Err("a backup has the keys of the network, and only root and the user of the server may have or replace them")
    }
}

/// A request, its caller, and the channel for the answer.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) caller: Caller,
    pub(crate) answer: oneshot::Sender<Answer>,
}

impl rpc::Answer for Answer {
    fn refused(error: String) -> Self {
        Self::Refused { error }
    }
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No server runs for this interface.
    #[error("nobody serves {interface}: start it with `rustguard serve{}`", if interface == crate::DEFAULT_INTERFACE { String::new() } else { format!(" --interface {interface}") })]
    NotServed {
        /// The interface.
        interface: String,
    },
    /// The server refused the request.
    #[error("{0}")]
    Refused(String),
    /// Another cause.
    #[error(transparent)]
    Other(rpc::AskError),
}

/// The path of the socket of `interface`.
fn socket_path(interface: &str) -> PathBuf {
    run_file(interface, EXTENSION)
}

/// The interfaces of this machine that are served. Interfaces whose servers were killed are included.
pub fn served() -> Vec<String> {
    let files = fs::read_dir(RUN_DIR).into_iter().flatten().flatten().map(|entry| PathBuf::from(entry.file_name()));
    let sockets = files.filter(|file| file.extension().is_some_and(|extension| extension == EXTENSION));
    sockets.filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned())).collect()
}

/// Whether a server runs for `interface`.
pub fn is_served(interface: &str) -> bool {
    // A killed server leaves its socket behind, where nobody accepts connections. `ask` tells users without permission.
    match UnixStream::connect(socket_path(interface)) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

/// Sends a request to the server of `interface`, and waits for its answer.
///
/// # Errors
/// See [`AskError`].
pub fn ask(interface: &str, request: &Request) -> Result<Answer, AskError> {
    match rpc::ask(&socket_path(interface), request, PATIENCE) {
        Ok(Answer::Refused { error }) => Err(AskError::Refused(error)),
        Ok(answer) => Ok(answer),
        Err(rpc::AskError::NotServed(_)) => Err(AskError::NotServed { interface: interface.to_owned() }),
        Err(error) => Err(AskError::Other(error)),
    }
}

/// Opens the socket of `interface` and passes requests to `calls`, in tasks of the current tokio runtime.
///
/// # Errors
/// The errors of [`rpc::serve`], with the path.
pub(crate) fn listen(interface: &str, calls: mpsc::Sender<Call>) -> Result<UnixSocket, (PathBuf, io::Error)> {
    let path = socket_path(interface);
    listen_at(&path, calls).map_err(|error| (path, error))
}

fn listen_at(path: &Path, calls: mpsc::Sender<Call>) -> io::Result<UnixSocket> {
    let denied = "this user may not control the server: run as root, or with sudo";
    rpc::serve(path, Access::OwnerAndGroup, denied, move |request, uid| {
        let calls = calls.clone();
        async move {
            let (answer, answered) = oneshot::channel();
            let call = Call { request, caller: Caller { uid, session: None }, answer };
            let ending = Answer::refused("the server is shutting down");
            if calls.send(call).await.is_ok() { answered.await.unwrap_or(ending) } else { ending }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_the_requests_that_are_permitted() {
        use Permission::{Group, Owner, Page};
        let own = Caller::own();
        let of_group = Caller { uid: own.uid + 1_000, session: None };
        let of_page = Caller { uid: own.uid, session: Some("anna#1".to_owned()) };
        for (caller, expected) in
            [(own, [true, true, true]), (of_group, [true, true, false]), (of_page, [true, false, false])]
        {
            assert_eq!([Page, Group, Owner].map(|needed| caller.check(needed).is_ok()), expected, "{caller:?}");
        }
    }

    /// A request that another version knows, from a client of this socket.
    #[test]
    fn an_unknown_request_is_refused_and_a_known_one_comes_with_its_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rg0.ctl");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (calls, mut called) = mpsc::channel(1);
        let socket = {
            let _entered = runtime.enter();
            listen_at(&path, calls).unwrap()
        };
        let client = std::thread::spawn(move || {
            let unknown = rpc::ask::<Answer>(&path, &serde_json::json!({ "command": "shutdown" }), PATIENCE).unwrap();
            let known = rpc::ask::<Answer>(&path, &Request::Close, PATIENCE).unwrap();
            (unknown, known)
        });
        let uid = runtime.block_on(async {
            let call = called.recv().await.unwrap();
            assert!(matches!(call.request, Request::Close));
            call.answer.send(Answer::Done).unwrap();
            call.caller.uid
        });
        // A separate task writes the answer.
        let (unknown, known) =
            runtime.block_on(async { tokio::task::spawn_blocking(|| client.join().unwrap()).await.unwrap() });
        assert_eq!((uid, known), (geteuid().as_raw(), Answer::Done));
        assert!(matches!(unknown, Answer::Refused { error } if error.contains("unknown variant `shutdown`")));
        drop(socket);
    }
}
