//! Reading the token: from the command line, a file, standard input or the environment.

use super::enrolment::TokenSource;
use crate::inherited;
use anyhow::{Context as _, Result, bail};
use rustguard_enroll::token::Token;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use zeroize::Zeroizing;

/// The most bytes that are read. Every token is shorter.
const MAX: u64 = 1_024;

impl TokenSource {
    /// Reads the token. Returns `None` if no token was given.
    pub(crate) fn read(&self) -> Result<Option<Zeroizing<String>>> {
        let text = match (&self.token, &self.token_file) {
            (_, Some(path)) => {
                let file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
                if rustguard_quick::conf::readable_by_others(path).unwrap_or(false) {
                    tracing::warn!("every user of this machine can read {0}; chmod 600 {0}", path.display());
                }
                read(file).with_context(|| format!("cannot read {}", path.display()))?
            }
            (Some(token), None) if token == "-" => {
                if io::stdin().is_terminal() {
                    let _ = write!(io::stderr(), "token: ");
                }
                read(io::stdin()).context("cannot read standard input")?
            }
            (Some(token), None) => {
                // This command uses up an invite for one machine, and a code is valid for minutes. A passphrase stays
                // valid.
                if matches!(Token::parse(token), Ok(Token::Passphrase(_))) {
                    tracing::warn!(
                        "every user of this machine can see a passphrase on the command line; \
                         RUSTGUARD_TOKEN, --token-file and `--token -` keep it private"
                    );
                }
                Zeroizing::new(token.clone())
            }
            (None, None) if inherited::brings_token() => {
                read(io::stdin()).context("cannot read the token from the parent process")?
            }
            (None, None) => match inherited::token() {
                Some(token) => token,
                None => return Ok(None),
            },
        };
        let token = Zeroizing::new(text.trim().to_owned());
        if token.is_empty() {
            bail!("the token is empty");
        }
        Ok(Some(token))
    }
}

/// Reads the first line.
fn read(from: impl io::Read) -> io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::with_capacity(MAX as usize));
    let mut byte = [0];
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX as usize));
    let mut from = io::BufReader::with_capacity(1, from).take(MAX);
    while from.read(&mut byte)? > 0 && byte[0] != b'\n' {
        bytes.push(byte[0]);
    }
    let line = std::str::from_utf8(&bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))?;
    text.push_str(line);
    Ok(text)
}
