//! Joining: the pairing window, and the machines that wait for approval.

use super::{Shown, token};
use crate::{qr, text::shown as harmless};
use maud::{Markup, html};
use rustguard_serve::request::{WaitingView, WindowView};

pub(super) fn parts(shown: &Shown<'_>) -> Markup {
    let waiting = &shown.snapshot.status.waiting;
    html! {
        h1 { "Joining" }
        @match &shown.snapshot.status.window {
            Some(window) => (open(shown, window)),
            None => (closed(shown)),
        }
        section #waiting aria-labelledby="waiting-heading" {
            h2 #waiting-heading { "Waiting for approval" }
            @if waiting.is_empty() {
                p { "No machine waits." }
            } @else {
                p { "A machine shows eight digits. Approve it only if it shows the same ones as here." }
                table.cards role="table" aria-labelledby="waiting-heading" {
                    thead role="rowgroup" {
                        tr role="row" { @for heading in ["Digits", "Calls itself", "From", "Decision"] { th scope="col" role="columnheader" { (heading) } } }
                    }
                    tbody role="rowgroup" { @for machine in waiting { (waits(shown, machine)) } }
                }
            }
        }
    }
}

fn closed(shown: &Shown<'_>) -> Markup {
    html! {
        section #window aria-labelledby="window-heading" {
            h2 #window-heading { "Pairing window" }
            p { "The window is closed. While it is open, a machine can join with a code, and five wrong guesses close it." }
            form method="post" action="/window/open" {
                (token(shown.who))
                p { label { input #approve type="checkbox" name="approve" value="yes"; " Let each machine wait until I approve it" } }
                button.primary #open type="submit" { "Open for 60 seconds" }
            }
        }
    }
}

fn open(shown: &Shown<'_>, window: &WindowView) -> Markup {
    let host = shown.snapshot.status.endpoint.as_deref().map_or_else(|| "HOST".to_owned(), harmless);
    html! {
        section #window aria-labelledby="window-heading" {
            h2 #window-heading { "Pairing window" }
            p #countdown { "Open for another " strong { (window.seconds_left) " s" } ". " (window.attempts_left) " wrong guesses close it." }
            @if window.approve { p { "Each machine waits until you approve it." } }
            @match shown.code {
                Some(code) => {
                    @let command = format!("rustguard join {host} --token {}", code.reveal());
                    div.pairing {
                        div {
                            p { "The code:" }
                            p.code { code { (code.reveal()) } }
                            p { "Run this on the machine that is to join:" }
                            pre tabindex="0" aria-label="The command" { code { (command) } }
                        }
                        @if let Some(picture) = qr::draw(&command, "The same command as a QR code") {
                            figure { (picture) figcaption { "The same command, to scan" } }
                        }
                    }
                }
                None => { p { "It was opened elsewhere: the code is shown there, or machines use the passphrase of this server." } }
            }
        }
        section #close aria-label="Close the window" {
            form method="post" action="/window/close" {
                (token(shown.who))
                button #close-button type="submit" { "Close the window" }
            }
        }
    }
}

fn waits(shown: &Shown<'_>, machine: &WaitingView) -> Markup {
    let name = machine.name.as_deref().map_or_else(|| "no name".to_owned(), harmless);
    let (first, second) = machine.code.split_at_checked(4).unwrap_or((&machine.code, ""));
    let decide = |action: &str, word: &str, class: &str| {
        html! {
            form method="post" action=(action) {
                (token(shown.who))
                input type="hidden" name="code" value=(machine.code);
                button class=(class) type="submit" id={ (word) "-" (machine.code) } aria-label={ (word) " " (name) ", " (first) " " (second) } { (word) }
            }
        }
    };
    html! {
        // The id ties the row to this machine when others come and go.
        tr id={ "waits-" (machine.code) } role="row" {
            th scope="row" role="rowheader" { code { (first) " " (second) } }
            td role="cell" data-label="Calls itself" { (name) }
            td role="cell" data-label="From" { (machine.source.to_string()) }
            td role="cell" data-label="Decision" { div.decide { (decide("/approve", "Approve", "primary")) (decide("/refuse", "Refuse", "danger")) } }
        }
    }
}
