//! The map of the network: this server at the top, below it the machines that it reaches, and below each relay the
//! machines that it reaches through this relay. It is drawn twice, for narrow and for wide windows. The style sheet
//! shows one of the two.

use crate::snapshot::{Member, Snapshot, State};
use maud::{Markup, html};

// Lengths in pixels.
const WIDTH: usize = 230;
const HEIGHT: usize = 46;
const GAP: usize = 12;
const SPINE: usize = 24;
const TOP: usize = 30;
/// The number of columns in a wide window.
const COLUMNS: usize = 3;
/// The most machines that are drawn. The table has all of them.
const MOST: usize = 120;
/// The number of characters that fit into a box.
const FITS: usize = 26;

/// Draws both maps. `here` is the name of this server.
pub(crate) fn draw(snapshot: &Snapshot, here: &str) -> Markup {
    let rows = rows(snapshot);
    let label = format!("Map: {here} reaches {}", spoken(&rows));
    html! {
        (picture(&rows, here, 1, "narrow", &label))
        (picture(&rows, here, COLUMNS, "wide", &label))
        @if snapshot.members.len() > MOST {
            p { "The map has the first " (MOST) " machines of " (snapshot.members.len()) "." }
        }
        ul.legend aria-hidden="true" {
            li { svg viewBox="0 0 28 8" { path.good d="M0 4H28" {} } "direct" }
            li { svg viewBox="0 0 28 8" { path.relayed d="M0 4H28" {} } "sealed, through another machine" }
            li { svg viewBox="0 0 28 8" { path.bad d="M0 4H28" {} } "not reached" }
        }
    }
}

/// A machine on the map, and how far it is indented.
struct Row<'s> {
    member: &'s Member,
    depth: usize,
}

/// The machines in the order of the map: each relay is followed by the machines that are reached through it.
fn rows(snapshot: &Snapshot) -> Vec<Row<'_>> {
    let mut members: Vec<_> = snapshot.members.iter().take(MOST).collect();
    members.sort_by(|a, b| (a.state, &a.name).cmp(&(b.state, &b.name)));
    let is_drawn = |key| members.iter().any(|member| member.view.public_key == key && member.through.is_none());
    let mut rows = Vec::with_capacity(members.len());
    for &member in members.iter().filter(|member| member.through.is_none_or(|relay| !is_drawn(relay))) {
        rows.push(Row { member, depth: 0 });
        let behind = members.iter().filter(|other| other.through == Some(member.view.public_key));
        rows.extend(behind.filter(|_| member.through.is_none()).map(|&member| Row { member, depth: 1 }));
    }
    rows
}

fn spoken(rows: &[Row<'_>]) -> String {
    let count = |is: &dyn Fn(&Member) -> bool| rows.iter().filter(|row| is(row.member)).count();
    let direct = count(&|member| member.state.is_connected() && member.through.is_none());
    let relayed = count(&|member| member.state.is_connected() && member.through.is_some());
    format!(
        "{direct} machines directly, {relayed} through others, {} not at all. The table has the same.",
        rows.len() - direct - relayed
    )
}

fn picture(rows: &[Row<'_>], here: &str, columns: usize, class: &str, label: &str) -> Markup {
    let columns = columns.min(rows.len()).max(1);
    let (step, tall) = (HEIGHT + GAP, rows.len().div_ceil(columns).max(1));
    let pitch = SPINE + WIDTH + GAP;
    let width = columns * pitch;
    let first = HEIGHT + TOP;
    let root = if columns == 1 { 0 } else { (width - WIDTH) / 2 };
    let (bus, stem) = (HEIGHT + TOP / 2, if columns == 1 { SPINE / 2 } else { width / 2 });
    let height = if rows.is_empty() { HEIGHT } else { first + tall * step };
    html! {
        // The margin keeps the strokes at the edges complete.
        svg class={ "map " (class) } width=(width + 2) height=(height + 2) viewBox={ "-1 -1 " (width + 2) " " (height + 2) } role="img" aria-label=(label) {
            @for (column, chunk) in rows.chunks(tall).enumerate() {
                @let x = column * pitch + SPINE / 2;
                path.line d={ "M" (stem) " " (HEIGHT) "V" (bus) "H" (x) "V" (first + (chunk.len() - 1) * step + HEIGHT / 2) } {}
                @for (at, row) in chunk.iter().enumerate() {
                    @let y = first + at * step + HEIGHT / 2;
                    path class=(line(row.member)) d={ "M" (x) " " (y) "H" (x + SPINE / 2 + row.depth * SPINE) } {}
                }
            }
            (node(root, 1, 0, here, "this server", "here"))
            @for (column, chunk) in rows.chunks(tall).enumerate() {
                @for (at, row) in chunk.iter().enumerate() {
                    (node(column * pitch + SPINE + row.depth * SPINE, first + at * step, row.depth * SPINE, &row.member.name, &detail(row.member), row.member.state.class()))
                }
            }
        }
    }
}

fn line(member: &Member) -> &'static str {
    match (member.state, member.through) {
        (State::Never, _) => "line",
        (state, _) if !state.is_connected() => "bad",
        (_, Some(_)) => "relayed",
        _ => "good",
    }
}

fn detail(member: &Member) -> String {
    let mut text = match &member.way {
        Some(way) => format!("{}, {way}", member.state.word()),
        None => member.state.word().to_owned(),
    };
    if let Some(time) = &member.round_trip {
        // The time is more useful than the address.
        text = format!(
            "{}, {time}",
            if member.through.is_some() { text } else { format!("{}, direct", member.state.word()) }
        );
    }
    text
}

fn node(x: usize, y: usize, narrower: usize, name: &str, detail: &str, class: &str) -> Markup {
    html! {
        g class={ "node " (class) } {
            title { (name) ": " (detail) }
            rect x=(x) y=(y) width=(WIDTH - narrower) height=(HEIGHT) rx="8" {}
            text.name x=(x + 12) y=(y + 20) { (shortened(name, FITS - narrower / 8)) }
            text x=(x + 12) y=(y + 37) { (shortened(detail, FITS + 8 - narrower / 6)) }
        }
    }
}

fn shortened(text: &str, fits: usize) -> String {
    if text.chars().count() <= fits {
        return text.to_owned();
    }
    text.chars().take(fits.saturating_sub(1)).chain(['…']).collect()
}
