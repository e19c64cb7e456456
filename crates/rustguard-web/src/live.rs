//! Live pages, as server-sent events (the HTML standard, section 9.2): the parts of a page are sent whenever they
//! change.

use crate::{
    body::Body,
    page::Page,
    state::{State, uptime},
};
use hyper::body::Bytes;
use std::{sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// How often a page is rendered. A long page is rendered less often: one second more for each of this many bytes.
const EVERY: Duration = Duration::from_secs(1);
const BYTES: usize = 128 << 10;
/// How long a browser may take to receive a part.
const PATIENCE: Duration = Duration::from_secs(30);
/// After this many checks without a change, a comment is sent, to detect whether the browser is still connected.
const QUIET: u32 = 15;

/// Begins a live page. It ends with the session, and when the browser disconnects.
pub(crate) fn begin(state: Arc<State>, session: String, page: Page, permit: OwnedSemaphorePermit) -> Body {
    let (parts, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        run(&state, &session, page, &parts).await;
        drop(permit);
    });
    Body::Live(receiver)
}

async fn run(state: &Arc<State>, session: &str, page: Page, parts: &mpsc::Sender<Bytes>) {
    let (mut before, mut quiet) = (String::new(), 0);
    loop {
        let Some(who) = state.sessions().who(session, false, uptime()) else {
            send(parts, event("ended", "")).await;
            return;
        };
        let now = state.show(&page, &who, |shown| (shown.snapshot.news(), page.parts(shown).into_string())).await;
        let mut told = true;
        match now {
            Some((news, now))
                if news.len() + now.len() != before.len() || !before.starts_with(&news) || !before.ends_with(&now) =>
            {
                told = send(parts, event("news", &news)).await && send(parts, event("parts", &now)).await;
                before = news + &now;
                quiet = 0;
            }
            _ if quiet == QUIET => {
                told = send(parts, Bytes::from_static(b":\n\n")).await;
                quiet = 0;
            }
            _ => quiet += 1,
        }
        if !told {
            return;
        }
        let longer = u32::try_from(before.len() / BYTES).unwrap_or(u32::MAX);
        tokio::select! {
            () = tokio::time::sleep(EVERY.saturating_mul(longer.saturating_add(1))) => {}
            () = parts.closed() => return,
        }
    }
}

fn event(kind: &str, text: &str) -> Bytes {
    // A CR also ends a line.
    let lines = text.lines().flat_map(|line| line.split('\r'));
    let data: String = lines.map(|line| format!("data: {line}\n")).collect();
    let data = if data.is_empty() { "data:\n".to_owned() } else { data };
    format!("event: {kind}\n{data}\n").into()
}

async fn send(parts: &mpsc::Sender<Bytes>, part: Bytes) -> bool {
    tokio::time::timeout(PATIENCE, parts.send(part)).await.is_ok_and(|sent| sent.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_begin_another_event() {
        assert_eq!(
            event("news", "a\n\nevent: ended\rdata: x\r\ny\n"),
            "event: news\ndata: a\ndata: \ndata: event: ended\ndata: data: x\ndata: y\n\n"
        );
        assert_eq!(event("ended", ""), "event: ended\ndata:\n\n");
    }
}
