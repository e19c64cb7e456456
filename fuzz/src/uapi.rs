//! Requests to the control socket.
use rustguard_device::uapi::{Errno, parse};

/// Any bytes are a request, or are refused with one of the two error numbers of the protocol. The parser never reads
/// beyond its text, whatever the blanks, upper and lower case and line ends.
pub fn uapi(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    // The server passes the lines without the blank line that ends a request.
    for request in text.split("\n\n") {
        if let Err(errno) = parse(request) {
            assert!([Errno::EINVAL, Errno::EPROTO].contains(&errno), "{errno:?} is not for bad requests: {request:?}");
        }
    }
}
