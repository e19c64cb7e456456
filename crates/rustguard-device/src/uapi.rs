//! The cross-platform userspace API of WireGuard: the socket through which `wg` reads and changes a device.
//!
//! Each interface has one socket, `/var/run/wireguard/NAME.sock`, which only its owner can use. A client sends `get=1`
//! or `set=1`, lines of `key=value`, and a blank line. The answer ends with `errno=N` and a blank line. See
//! <https://www.wireguard.com/xplatform/>.
//!
//! RustGuard answers more than `wg` asks, each time with one line of JSON: `get=rustguard-status` ([`DeviceView`]),
//! `get=rustguard-routing` ([`RoutingView`]) and `get=rustguard-ping` ([`PingView`]).

mod connection;
mod device;
mod form;
mod path;
mod ping;
mod policy;
mod request;
mod response;
mod routing;
mod server;

pub use connection::{ConnectionView, ProblemView, UnresolvedView};
pub use device::{DeviceView, PeerView, STATUS_VERSION};
pub use path::{NotDirectView, ParityView, PathMtuView, PathView, PathWord};
pub use ping::{PingView, WayView};
pub use policy::{PolicyView, RefusalView};
pub use request::{Errno, Request, parse, ping_request, set_request};
pub use routing::{LearnedView, NeighbourView, RouteView, RoutingView};
pub use server::{SOCKET_DIR, Server, ServerError, clean_up};
