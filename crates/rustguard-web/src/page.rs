//! The pages. Each consists of parts: sections with an id. The live page replaces the parts that have changed.

mod joining;
mod log;
mod member;
mod network;
mod policy;

use crate::{
    log::Entry,
    policy::{Asked, Seen},
    sessions::{Notice, Who},
    snapshot::Snapshot,
    window::OpenCode,
};
use base64ct::{Base64UrlUnpadded, Encoding as _};
use maud::{DOCTYPE, Markup, html};
use rustguard_serve::request::PublicKey;

/// A page for users who are logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// The map and the members.
    Network,
    /// The policy, and a question to it.
    Policy(Option<Asked>),
    /// The pairing window and approvals.
    Joining,
    /// The audit log.
    Log,
    /// A machine.
    Member(PublicKey),
    /// The confirmation that a machine is to be removed.
    Remove(PublicKey),
}

/// The data that the pages show.
pub(crate) struct Shown<'a> {
    pub(crate) interface: &'a str,
    pub(crate) who: &'a Who,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) code: Option<&'a OpenCode>,
    pub(crate) log: &'a [Entry],
    /// `None` for a star, and on other pages.
    pub(crate) policy: Option<&'a Seen>,
}

impl Page {
    /// The page for this path and query.
    pub(crate) fn at(path: &str, query: Option<&str>) -> Option<Self> {
        match path {
            "/" => Some(Self::Network),
            "/policy" => Some(Self::Policy(query.and_then(Asked::of_query))),
            "/joining" => Some(Self::Joining),
            "/log" => Some(Self::Log),
            _ => {
                let member = path.strip_prefix("/member/")?;
                match member.strip_suffix("/remove") {
                    Some(member) => key(member).map(Self::Remove),
                    None => key(member).map(Self::Member),
                }
            }
        }
    }

    pub(crate) fn path(&self) -> String {
        let of = |key: &PublicKey| Base64UrlUnpadded::encode_string(&key.0);
        match self {
            Self::Network => "/".to_owned(),
            Self::Policy(None) => "/policy".to_owned(),
            Self::Policy(Some(asked)) => format!("/policy?{}", asked.query()),
            Self::Joining => "/joining".to_owned(),
            Self::Log => "/log".to_owned(),
            Self::Member(key) => format!("/member/{}", of(key)),
            Self::Remove(key) => format!("/member/{}/remove", of(key)),
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Self::Network => "Network",
            Self::Policy(_) => "Policy",
            Self::Joining => "Joining",
            Self::Log => "Audit log",
            Self::Member(_) => "Machine",
            Self::Remove(_) => "Remove a machine",
        }
    }

    /// The parts of the page.
    pub(crate) fn parts(&self, shown: &Shown<'_>) -> Markup {
        match self {
            Self::Network => network::parts(shown),
            Self::Policy(asked) => policy::parts(shown, asked.as_ref()),
            Self::Joining => joining::parts(shown),
            Self::Log => log::parts(shown),
            Self::Member(key) => member::parts(shown, key),
            Self::Remove(key) => member::removal(shown, key),
        }
    }

    /// The whole page. Each page begins with its heading, so that readers know where they are.
    pub(crate) fn whole(&self, shown: &Shown<'_>, notice: Option<&Notice>) -> Markup {
        let pages = [Self::Network, Self::Policy(None), Self::Joining, Self::Log];
        let within = match self {
            Self::Member(_) | Self::Remove(_) => &Self::Network,
            Self::Policy(_) => &Self::Policy(None),
            page => page,
        };
        let header = html! {
            nav aria-label="Pages" {
                ul {
                    @for page in &pages {
                        li {
                            a href=(page.path()) aria-current=[(page == within).then_some(if page == self { "page" } else { "true" })] {
                                (page.title())
                                @if *page == Self::Joining && !shown.snapshot.status.waiting.is_empty() {
                                    " (" (shown.snapshot.status.waiting.len()) ")"
                                }
                            }
                        }
                    }
                }
            }
            form.logout method="post" action="/logout" {
                (token(shown.who))
                span { (shown.who.label) }
                button type="submit" { "Log out" }
            }
        };
        let main = html! {
            @if let Some(notice) = notice {
                div.notice.error[notice.is_error] role=(if notice.is_error { "alert" } else { "status" }) { p { (notice.text) } }
            }
            p #news role="status" { (shown.snapshot.news()) }
            div #live data-page=(self.path()) { (self.parts(shown)) }
            noscript { p.reload { a href=(self.path()) { "Reload" } " for the present state: without scripts this page does not change by itself." } }
        };
        frame(shown.interface, self.title(), &header, &main)
    }
}

fn key(text: &str) -> Option<PublicKey> {
    let mut bytes = [0; 32];
    let decoded = Base64UrlUnpadded::decode(text, &mut bytes).ok()?;
    (decoded.len() == 32).then_some(PublicKey(bytes))
}

/// The button that uses a link. Viewing the page does not use it, because programs that show previews of links do that.
pub(crate) fn login(interface: &str, link: &str) -> Markup {
    let main = html! {
        h1 { "Log in" }
        p { "This link begins one session on the status page of " strong { (interface) } "." }
        form method="post" action="/login" {
            input type="hidden" name="link" value=(link);
            button.primary type="submit" { "Log in" }
        }
    };
    frame(interface, "Log in", &html! {}, &main)
}

/// For users who are not logged in, or whose session has ended.
pub(crate) fn logged_out(interface: &str, why: &str) -> Markup {
    let main = html! {
        h1 { "Not logged in" }
        p { (why) }
        p { "To log in, run this on the server, and open the link that it prints:" }
        pre { code { "sudo rustguard web" } }
        p { "A link works once, within five minutes. A session ends after 30 minutes without use, and after 12 hours in any case." }
    };
    frame(interface, "Not logged in", &html! {}, &main)
}

/// A page that reports an error.
pub(crate) fn failure(interface: &str, title: &str, why: &str) -> Markup {
    let main = html! {
        h1 { (title) }
        p { (why) }
        p { a href="/" { "To the network" } }
    };
    frame(interface, title, &html! {}, &main)
}

fn frame(interface: &str, title: &str, header: &Markup, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – " (interface) " – RustGuard" }
                link rel="stylesheet" href="/style.css";
                link rel="icon" href="/icon.svg" type="image/svg+xml";
                script src="/live.js" defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    p.brand { "RustGuard " strong { (interface) } }
                    (header)
                }
                main #main tabindex="-1" { (main) }
                footer { p #connection {} }
            }
        }
    }
}

/// The token that every act has to contain.
fn token(who: &Who) -> Markup {
    html! { input type="hidden" name="token" value=(who.token.as_str()); }
}
