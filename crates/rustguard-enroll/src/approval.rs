//! The digits by which an administrator recognises a joiner.
use core::fmt;

/// Eight digits that both sides show while a joiner waits for approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApprovalCode(pub(crate) u32);

impl ApprovalCode {
    /// The number of possible codes. A man in the middle who knows the secret has a chance of 1 in `COUNT` for each
    /// exchange that both sides show the same digits.
    pub(crate) const COUNT: u64 = 100_000_000;

    /// Reads eight digits. Spaces and dashes between them are ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|c| !matches!(c, ' ' | '-')).collect();
        let number = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
        number.then(|| digits.parse().ok()).flatten().map(Self)
    }
}

impl fmt::Display for ApprovalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08}", self.0)
    }
}
