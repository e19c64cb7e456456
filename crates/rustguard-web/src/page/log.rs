//! The audit log.

use super::Shown;
use crate::text::utc;
use maud::{Markup, html};

pub(super) fn parts(shown: &Shown<'_>) -> Markup {
    html! {
        h1 { "Audit log" }
        section #log aria-labelledby="log-heading" {
            h2 #log-heading { "The last decisions" }
            @if shown.log.is_empty() {
                p { "There are none yet." }
            } @else {
                table.cards role="table" aria-labelledby="log-heading" {
                    thead role="rowgroup" {
                        tr role="row" { @for heading in ["Time (UTC)", "Event", "By", "About", "Details"] { th scope="col" role="columnheader" { (heading) } } }
                    }
                    tbody role="rowgroup" {
                        @for entry in shown.log {
                            tr role="row" {
                                th scope="row" role="rowheader" { time datetime={ (utc(entry.time).replace(' ', "T")) "Z" } { (utc(entry.time)) } }
                                td role="cell" data-label="Event" { (entry.words()) }
                                td role="cell" data-label="By" { (or_none(&entry.who())) }
                                td role="cell" data-label="About" { (or_none(&entry.about())) }
                                td role="cell" data-label="Details" { (or_none(&entry.details())) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "–" } else { text }
}
