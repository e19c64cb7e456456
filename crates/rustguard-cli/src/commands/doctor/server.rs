//! The needs of a `serve` beyond its tunnel: free addresses, an endpoint for joining machines, and the way to the
//! networks behind this machine.

use super::finding::{Finding, Verdict};
use crate::commands::status::obstacles;
use rustguard_serve::{
    Reach, ask,
    request::{Answer, Request},
};

/// The findings about the `serve` of this interface, if there is one.
pub(super) async fn check(interface: &str) -> Vec<Finding> {
    let Ok(Answer::Status(status)) = ask(interface, &Request::Status) else { return Vec::new() };
    let mut findings: Vec<_> = status
        .pools
        .iter()
        .filter(|pool| pool.leased as u64 >= pool.capacity)
        .map(|pool| {
            Finding::warning(
                "pool",
                format!("the pool {} is full, so no machine can join", pool.prefix),
                "remove machines that are gone: rustguard peer ls, rustguard peer rm NAME; or serve with a larger --pool",
            )
        })
        .collect();
    findings.extend(status.store.iter().map(|store| match &store.problem {
        Some(problem) => Finding::warning(
            "store",
            format!("nothing can be decided, and everything else goes on: {problem}"),
            "look at the store, and at the way from this machine to it",
        ),
        None => Finding::fine("store", format!("{} answers", store.store)),
    }));
    let endpoint = status.endpoint.as_deref();
    findings.extend(endpoint.and_then(|endpoint| Some((endpoint, Reach::of(endpoint)?))).map(|(endpoint, reach)| {
        // The server may be meant for a private network only.
        Finding::unknown("endpoint", reach.advice(endpoint))
    }));
    let found = obstacles(&status).await;
    if found.is_empty() && !status.routes.is_empty() {
        findings.push(Finding::fine("gateway", "joined machines get to the networks behind this machine"));
    }
    findings.extend(found.into_iter().map(|obstacle| Finding {
        verdict: if obstacle.is_certain() { Verdict::Wrong } else { Verdict::Unknown },
        check: "gateway",
        // The text has the remedy.
        text: obstacle.to_string(),
        remedy: None,
    }));
    findings
}
