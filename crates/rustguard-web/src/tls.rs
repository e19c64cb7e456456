//! TLS, for a page that is served to other machines.

use crate::options::TlsFiles;
#[cfg(not(feature = "tls"))]
use std::io;
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::{fs, path::PathBuf};

/// Why TLS is impossible with these files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or has the wrong contents.
    #[error("{path}: {why}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        why: String,
    },
    /// This program was built without TLS.
    #[error("this rustguard was built without TLS (feature aws-lc): serve the page at 127.0.0.1 or a Unix socket")]
    Missing,
}

#[cfg(feature = "tls")]
pub(crate) use tokio_rustls::TlsAcceptor;

/// TLS is not available in this build.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Debug)]
pub(crate) enum TlsAcceptor {}

#[cfg(not(feature = "tls"))]
impl TlsAcceptor {
    #[expect(clippy::unused_async, reason = "as the real one")]
    pub(crate) async fn accept<S>(&self, _: S) -> io::Result<S> {
        match *self {}
    }
}

/// Reads the files.
///
/// # Errors
/// See [`TlsError`].
#[cfg(feature = "tls")]
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    use tokio_rustls::rustls::{
        Error, ServerConfig,
        crypto::aws_lc_rs::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    };
    use zeroize::Zeroizing;

    let wrong =
        |path: &PathBuf, why: &dyn std::fmt::Display| TlsError::File { path: path.clone(), why: why.to_string() };
    let read = |path: &PathBuf| fs::read(path).map(Zeroizing::new).map_err(|error| wrong(path, &error));
    let (chain, key) = (read(&files.certificate)?, read(&files.key)?);
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&chain)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(&files.certificate, &error))?;
    if chain.is_empty() {
        return Err(wrong(&files.certificate, &"it has no certificate in PEM"));
    }
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|error| {
        let why = format!("it has no private key in PEM ({error}); --web-key names the file with the key, and --web-cert that with the certificates");
        wrong(&files.key, &why)
    })?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&files.certificate, &error))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                let certificate = files.certificate.display();
                let why = format!(
                    "it is not the key of the first certificate in {certificate}: take the key that this was made for"
                );
                wrong(&files.key, &why)
            }
            error => wrong(&files.certificate, &error),
        })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// TLS is not available in this build.
#[cfg(not(feature = "tls"))]
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    // The files are still checked, so that a mistake in their names is found first.
    for path in [&files.certificate, &files.key] {
        fs::metadata(path).map_err(|error: io::Error| TlsError::File { path: path.clone(), why: error.to_string() })?;
    }
    Err(TlsError::Missing)
}
