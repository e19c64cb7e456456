//! The policy: its lines, the mistakes in its file, a question to it, and the traffic that it has refused.

use super::Shown;
use crate::{
    policy::{Asked, File, Seen, rules},
    snapshot::Snapshot,
    text::{ago, bounded, shown as harmless, utc},
};
use maud::{Markup, html};
use rustguard_device::uapi::RefusalView;
use rustguard_policy::{
    diagnostic::{Diagnostic, Severity},
    policy::Rule,
    question::Extent,
    rules::Traffic,
};
use rustguard_serve::{InForce, PolicyError};

/// The most lines that are shown. A policy has at most 1,024 rules.
const LINES: usize = 2_000;
/// The most characters that are shown of a line.
const LINE: usize = 1_000;
/// The most characters that are shown on each side of a mistake.
const AROUND: usize = 60;
/// The most mistakes that are shown.
const MISTAKES: usize = 20;
/// The most characters of a sentence that contains foreign texts.
const SENTENCE: usize = 400;

pub(super) fn parts(shown: &Shown<'_>, asked: Option<&Asked>) -> Markup {
    html! {
        h1 { "Policy" }
        @match shown.policy {
            None => {
                section #state aria-label="No policy" {
                    p { "A star has no policy: it has no members that could enforce one. `serve --star=off` begins a network that can have one." }
                }
            }
            Some(seen) => {
                (state(shown.snapshot, seen))
                @if !seen.diagnostics.is_empty() { (mistakes(seen)) }
                @if let Some(in_force) = &seen.in_force {
                    (question(seen, in_force, asked))
                    (refusals(shown.snapshot))
                }
                @if !seen.text().is_empty() || seen.in_force.is_some() { (lines(shown.snapshot, seen)) }
            }
        }
    }
}

fn state(snapshot: &Snapshot, seen: &Seen) -> Markup {
    let path = seen.path.display().to_string();
    let notice = match seen.file {
        File::None | File::InForce => None,
        File::Newer => {
            Some(html! { "The file was changed and is not in force yet: " code { "rustguard reload" } " takes it." })
        }
        File::Wrong => Some(
            html! { "The file was changed and is not in force: it has mistakes, and " code { "rustguard reload" } " refuses it." },
        ),
        File::Gone if seen.in_force.as_ref().is_some_and(|in_force| in_force.policy.allows_everything()) => Some(
            html! { "The file is gone. The policy allows everything, so " code { "rustguard reload" } " ends it." },
        ),
        File::Gone => Some(html! { (PolicyError::Gone(seen.path.clone()).to_string()) }),
        File::Unreadable => Some(html! { (bounded(seen.unreadable(), SENTENCE)) }),
    };
    html! {
        section #state aria-labelledby="state-heading" {
            h2 #state-heading { "In force" }
            @if let Some(notice) = notice { div #file-notice.notice.error[seen.file != File::Newer] { p { (notice) } } }
            @match &seen.in_force {
                None => {
                    p { strong { "There is no policy: everybody may talk to everybody." } }
                    @if seen.file == File::None { p { "To begin one, write " code { (path) } " on the server, and run " code { "rustguard reload" } "." } }
                }
                Some(in_force) => {
                    dl {
                        div { dt { "File" } dd { code { (path) } } }
                        div { dt { "Rules" } dd.number { (in_force.policy.rules().len()) } }
                        div { dt { "Tests" } dd.number { (in_force.policy.tests()) } }
                        @if let Some(enforced) = &snapshot.policy {
                            div { dt { "Packets refused here since the start" } dd.number { (enforced.refused) } }
                            div { dt { "Connections known here" } dd.number { (enforced.connections) " of at most " (enforced.capacity) } }
                        }
                    }
                    p { "This server refuses for itself, for stock clients, and what these send. Members refuse for themselves, and what they refuse is counted there." }
                }
            }
        }
    }
}

fn mistakes(seen: &Seen) -> Markup {
    let is_wrong = seen.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
    let more = seen.diagnostics.len().saturating_sub(MISTAKES);
    html! {
        section #mistakes aria-labelledby="mistakes-heading" {
            h2 #mistakes-heading { @if is_wrong { "Mistakes in the file" } @else { "Warnings about the file" } }
            @for diagnostic in seen.diagnostics.iter().take(MISTAKES) { (mistake(seen.text(), diagnostic)) }
            @if more > 0 { p { "And " (more) " more: " code { "rustguard policy check" } " has all of them." } }
        }
    }
}

/// A mistake with its line, and carets below it.
fn mistake(text: &str, diagnostic: &Diagnostic) -> Markup {
    let (span, is_error) = (&diagnostic.span, diagnostic.severity == Severity::Error);
    let from = text[..span.bytes.start].rfind('\n').map_or(0, |at| at + 1);
    let to = text[span.bytes.end..].find('\n').map_or(text.len(), |at| span.bytes.end + at);
    let before = &text[from..span.bytes.start];
    // Of a long line, only the part near the mistake is shown.
    let skipped = before.chars().count().saturating_sub(AROUND);
    let near: String = before.chars().skip(skipped).collect();
    let before = if skipped > 0 { format!("…{}", line(&near, AROUND)) } else { line(&near, AROUND) };
    let place = line(&text[span.bytes.clone()], AROUND);
    let after = line(&text[span.bytes.end..to], AROUND);
    let number = format!("{} | ", span.line);
    let blank = " ".repeat(number.chars().count() + before.chars().count());
    let carets = "^".repeat(place.chars().count().max(1));
    html! {
        div.mistake {
            p {
                strong.state.bad[is_error].fair[!is_error] { (if is_error { "Error" } else { "Warning" }) }
                " line " (span.line) ", column " (span.column) ": " (bounded(&diagnostic.message, SENTENCE))
            }
            pre.excerpt tabindex="0" aria-label={ "Line " (span.line) } {
                code { (number) (before) mark { (place) } (after) "\n" span aria-hidden="true" { (blank) (carets) } }
            }
            @if let Some(help) = &diagnostic.help { p { "Help: " (bounded(help, SENTENCE)) } }
        }
    }
}

/// A part of a line, made harmless.
fn line(text: &str, longest: usize) -> String {
    bounded(&text.replace('\t', " "), longest)
}

fn question(seen: &Seen, in_force: &InForce, asked: Option<&Asked>) -> Markup {
    let nothing = Asked::default();
    let Asked { from, to, traffic } = asked.unwrap_or(&nothing);
    html! {
        section #question aria-labelledby="question-heading" {
            h2 #question-heading { "May one reach the other?" }
            form.question method="get" action="/policy" {
                p { label for="from" { "May" } input #from name="from" value=(from) required autocomplete="off" spellcheck="false" placeholder="laptop"; }
                p { label for="to" { "reach" } input #to name="to" value=(to) required autocomplete="off" spellcheck="false" placeholder="db or 192.168.1.7"; }
                p { label for="traffic" { "by (empty: everything)" } input #traffic name="traffic" value=(traffic) autocomplete="off" spellcheck="false" placeholder="tcp/5432"; }
                button.primary #ask type="submit" { "Ask" }
            }
            div #answer role="status" { @if let Some(asked) = asked { (answer(seen, in_force, asked)) } }
        }
    }
}

fn answer(seen: &Seen, in_force: &InForce, asked: &Asked) -> Markup {
    let answer = match asked.answer(in_force) {
        Ok(answer) => answer,
        Err(why) => return html! { div.notice.error { p { "No answer: " (bounded(&why, SENTENCE)) "." } } },
    };
    let what = if asked.traffic.is_empty() { "everything".to_owned() } else { harmless(&asked.traffic) };
    let (word, rest) = match answer.extent {
        Extent::Allowed => ("Yes", "is allowed."),
        Extent::Partly => ("Only in part", "is allowed in part."),
        Extent::Refused => ("No", "is refused: no line allows any of it."),
    };
    let wanted = Traffic::parse(&asked.traffic).unwrap_or_default();
    let allowed = |rule: &Rule| match rule.traffic.common(&wanted).map(|common| common.to_string()) {
        Some(common) if !common.is_empty() => bounded(&common, SENTENCE),
        _ => "everything".to_owned(),
    };
    html! {
        div.notice.error[answer.extent != Extent::Allowed] {
            p { strong { (word) } ": from " (harmless(&asked.from)) " to " (harmless(&asked.to)) ", " (what) " " (rest) }
            @if !answer.lines.is_empty() {
                p { "Allowed:" }
                ul { @for rule in rules(in_force, &answer.lines).take(LINES) {
                    li {
                        strong { (allowed(rule)) } " by "
                        @if seen.file == File::InForce { a href={ "#line-" (rule.line) } { "line " (rule.line) } } @else { "line " (rule.line) }
                        ": " code { (line(&rule.to_string(), LINE)) }
                    }
                } }
            }
            @if answer.extent == Extent::Partly {
                p { "Refused:" }
                ul {
                    @for (from, to) in answer.refused.iter().take(LINES) {
                        li { strong { (what) } " from " (from) " to " (to) }
                    }
                    @if answer.refused.is_empty() {
                        li { strong { "the rest" @if !asked.traffic.is_empty() { " of " (what) } } ", which no line allows" }
                    } @else {
                        li { "and what the lines above do not allow" }
                    }
                }
            }
        }
    }
}

fn refusals(snapshot: &Snapshot) -> Markup {
    let last = snapshot.policy.as_ref().map_or(&[][..], |policy| &policy.refusals);
    html! {
        section #refusals aria-labelledby="refusals-heading" {
            h2 #refusals-heading { "Refused here last" }
            @if last.is_empty() {
                p { "Nothing was refused since the start." }
            } @else {
                table.cards role="table" aria-labelledby="refusals-heading" {
                    thead role="rowgroup" {
                        tr role="row" { @for heading in ["Traffic", "From", "To", "Sent by", "Packets", "Why", "Last"] { th scope="col" role="columnheader" { (heading) } } }
                    }
                    tbody role="rowgroup" { @for refusal in last { (refused(snapshot, refusal)) } }
                }
            }
        }
    }
}

fn refused(snapshot: &Snapshot, refusal: &RefusalView) -> Markup {
    let end = |address| match snapshot.name_of(address) {
        Some(name) => format!("{name} ({address})"),
        None => address.to_string(),
    };
    let sender = snapshot.members.iter().find(|member| member.view.public_key.to_string() == refusal.peer);
    html! {
        tr role="row" {
            th scope="row" role="rowheader" { (refusal.traffic) }
            td role="cell" data-label="From" { (end(refusal.from)) }
            td role="cell" data-label="To" { (end(refusal.to)) }
            td role="cell" data-label="Sent by" {
                @match sender {
                    Some(member) => { a href=(member.path()) { (member.name) } },
                    None => { (harmless(&refusal.peer)) },
                }
            }
            td.number role="cell" data-label="Packets" { (refusal.packets) }
            td role="cell" data-label="Why" { (harmless(&refusal.why)) }
            td role="cell" data-label="Last" { time datetime=(utc(refusal.at)) { (ago(snapshot.now, refusal.at)) } }
        }
    }
}

/// The lines of the file, if they are in force. Otherwise the rules in force, and then the file.
fn lines(snapshot: &Snapshot, seen: &Seen) -> Markup {
    let is_in_force = seen.file == File::InForce;
    html! {
        @if let Some(in_force) = seen.in_force.as_ref().filter(|_| !is_in_force) {
            section #rules aria-labelledby="rules-heading" {
                h2 #rules-heading { "The rules in force" }
                p { "As they were read, without groups:" }
                ol.lines { @for rule in in_force.policy.rules().iter().take(LINES) { (rule_line(rule)) } }
                (end(snapshot))
            }
        }
        @if !seen.text().is_empty() {
            section #lines aria-labelledby="lines-heading" {
                h2 #lines-heading { @if is_in_force { "The lines of the file" } @else { "The file, which is not in force" } }
                ol.lines {
                    @for (n, text) in (1..).zip(seen.text().lines().take(LINES)) {
                        li id={ "line-" (n) } { code { (line(text, LINE)) } }
                    }
                }
                @if seen.text().lines().nth(LINES).is_some() { p { "These are the first " (LINES) " lines." } }
                @if is_in_force { (end(snapshot)) }
            }
        }
    }
}

fn rule_line(rule: &Rule) -> Markup {
    html! { li value=(rule.line) { code { (line(&rule.to_string(), LINE)) } } }
}

/// The note that everything else is refused.
fn end(snapshot: &Snapshot) -> Markup {
    html! {
        p {
            "What no line allows is refused"
            @if let Some(policy) = &snapshot.policy { ": " strong { (policy.refused) } " packets here since the start" }
            "."
        }
    }
}
