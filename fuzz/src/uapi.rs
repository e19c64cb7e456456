//! Requests to the control socket.
use rustguard_device::uapi::{Errno, parse};

/// Any bytes are a request or refused with one of the two error numbers of the protocol, and blanks, cases and line ends
/// do not make the parser read further than its text.
pub fn uapi(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    // The server hands over lines without the blank one that ends a request.
    for request in text.split("\n\n") {
        if let Err(errno) = parse(request) {
            assert!([Errno::EINVAL, Errno::EPROTO].contains(&errno), "{errno:?} is not for bad requests: {request:?}");
        }
    }
}
