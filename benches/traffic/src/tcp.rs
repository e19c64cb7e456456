//! Streams of TCP.

use crate::{CHUNK, Counter, say};
use anyhow::{Context as _, Result};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

/// Accepts any number of streams, and counts the bytes of all of them in this time.
pub(crate) fn receive(at: SocketAddr, time: Duration) -> Result<Vec<u64>> {
    let listener = TcpListener::bind(at)?;
    let counter = Arc::new(Counter::default());
    let all = Arc::clone(&counter);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let all = Arc::clone(&all);
            thread::spawn(move || count(stream, &all));
        }
    });
    say("ready");
    Ok(counter.over(time))
}

fn count(mut stream: TcpStream, counter: &Counter) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
        counter.add(bytes);
    }
}

/// Connects, and writes until the receiver has enough and ends.
pub(crate) fn send(to: SocketAddr, congestion: &str, streams: usize) -> Result<Vec<u64>> {
    let mut connected = Vec::new();
    for _ in 0..streams {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_tcp_congestion(congestion.as_bytes()).with_context(|| format!("no {congestion} in this kernel"))?;
        socket.connect(&to.into())?;
        connected.push(TcpStream::from(socket));
    }
    say("ready");
    let threads: Vec<_> = connected.into_iter().map(|stream| thread::spawn(move || fill(stream))).collect();
    for thread in threads {
        let _ = thread.join();
    }
    Ok(Vec::new())
}

fn fill(mut stream: TcpStream) {
    let chunk = vec![0x5a; CHUNK];
    while stream.write_all(&chunk).is_ok() {}
}
