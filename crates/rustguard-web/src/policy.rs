//! The policy: the one in force, the present contents of its file, and questions to it.

use rustguard_policy::{
    diagnostic::{Diagnostic, Severity},
    policy::{Policy, Rule},
    question::{Answer, Question},
};
use rustguard_serve::{InForce, PolicyHandle, read_policy_text};
use std::{path::PathBuf, sync::Arc};
use tokio::sync::Mutex;

/// The longest field of a question, in bytes. Names have at most 63, and people do not ask about more traffic than
/// this.
const LONGEST: usize = 1 << 10;

/// The policy at one moment.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) path: PathBuf,
    /// The policy in force. `None` if everybody may talk to everybody.
    pub(crate) in_force: Option<Arc<InForce>>,
    /// The text of the file, `None` if it is gone; or the error when reading it.
    text: Result<Option<String>, String>,
    /// The mistakes in the text.
    pub(crate) diagnostics: Vec<Diagnostic>,
    pub(crate) file: File,
}

/// The state of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    /// There is no file, and no policy.
    None,
    /// It is the policy in force.
    InForce,
    /// It differs, and a reload accepts it.
    Newer,
    /// A reload refuses it.
    Wrong,
    /// It is gone, and the policy is still in force.
    Gone,
    /// It cannot be read.
    Unreadable,
}

impl Seen {
    fn of(path: PathBuf, in_force: Option<Arc<InForce>>, text: Result<Option<String>, String>) -> Self {
        let Ok(Some(read)) = &text else {
            let file = match (&text, &in_force) {
                (Err(_), _) => File::Unreadable,
                (_, Some(_)) => File::Gone,
                (_, None) => File::None,
            };
            return Self { path, in_force, text, diagnostics: Vec::new(), file };
        };
        let (policy, mut diagnostics) = Policy::parse(read);
        if let Some((policy, in_force)) = policy.as_ref().zip(in_force.as_ref()) {
            diagnostics = policy.check(&in_force.machines);
        }
        let is_in_force =
            policy.as_ref().is_some_and(|policy| in_force.as_ref().is_some_and(|in_force| *in_force.policy == *policy));
        let file = if is_in_force {
            File::InForce
        } else if diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error) {
            File::Wrong
        } else {
            File::Newer
        };
        Self { path, in_force, text, diagnostics, file }
    }

    /// The text of the file.
    pub(crate) fn text(&self) -> &str {
        self.text.as_ref().ok().and_then(|text| text.as_deref()).unwrap_or_default()
    }

    /// Why the file cannot be read.
    pub(crate) fn unreadable(&self) -> &str {
        self.text.as_ref().err().map_or("", String::as_str)
    }
}

/// The last policy that was read. If nothing has changed, only the file is read again.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Option<Arc<Seen>>>);

impl Cache {
    /// The present policy. Only one page at a time reads it, on another thread, because tests of a policy may take
    /// long.
    pub(crate) async fn get(&self, handle: PolicyHandle) -> Option<Arc<Seen>> {
        let mut known = self.0.lock().await;
        let before = known.clone();
        let look = move || {
            let (path, in_force) = (handle.file().to_owned(), handle.in_force());
            let text = read_policy_text(&path).map_err(|error| error.to_string());
            let is_same = |before: &Arc<Seen>| {
                before.text == text && before.in_force.as_ref().map(Arc::as_ptr) == in_force.as_ref().map(Arc::as_ptr)
            };
            match before.filter(is_same) {
                Some(before) => before,
                None => Arc::new(Seen::of(path, in_force, text)),
            }
        };
        let seen = tokio::task::spawn_blocking(look).await.ok()?;
        *known = Some(Arc::clone(&seen));
        Some(seen)
    }
}

/// A user's question: may one machine reach the other?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Empty means all traffic.
    pub(crate) traffic: String,
}

impl Asked {
    /// The question in a query string. `None` if it has none.
    pub(crate) fn of_query(query: &str) -> Option<Self> {
        let mut asked = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let field = match &*name {
                "from" => &mut asked.from,
                "to" => &mut asked.to,
                "traffic" => &mut asked.traffic,
                _ => continue,
            };
            *field = value.trim().to_owned();
        }
        (asked != Self::default()).then_some(asked)
    }

    pub(crate) fn query(&self) -> String {
        let fields = [("from", &self.from), ("to", &self.to), ("traffic", &self.traffic)];
        form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
    }

    /// The answer of the policy, as from `rustguard policy test`; or why the question is invalid.
    pub(crate) fn answer(&self, in_force: &InForce) -> Result<Answer, String> {
        let Self { from, to, traffic } = self;
        if from.is_empty() || to.is_empty() {
            return Err("say who begins, and to whom: a machine or an address each".to_owned());
        }
        if [from, to, traffic].iter().any(|field| field.len() > LONGEST) {
            return Err(format!("this is longer than {LONGEST} bytes"));
        }
        let traffic = Some(&**traffic).filter(|traffic| !traffic.is_empty());
        let question = Question::new(from, to, traffic, &in_force.machines).map_err(|error| error.to_string())?;
        Ok(question.answer(&in_force.rules))
    }
}

/// The rules of these lines.
pub(crate) fn rules<'p>(in_force: &'p InForce, lines: &[u32]) -> impl Iterator<Item = &'p Rule> {
    in_force.policy.rules().iter().filter(|rule| lines.contains(&rule.line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_travels_in_the_address() {
        let asked = Asked { from: "a b&c".into(), to: "<é>".into(), traffic: "tcp/22,icmp".into() };
        assert_eq!(Asked::of_query(&asked.query()), Some(asked));
        assert_eq!(Asked::of_query("from=+a%20&other=x").unwrap().from, "a");
        assert_eq!([Asked::of_query(""), Asked::of_query("x=1"), Asked::of_query("from=&to=%20")], [None, None, None]);
    }
}
