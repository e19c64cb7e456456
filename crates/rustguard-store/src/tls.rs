//! The files of an address: certificates, keys, passwords.

use crate::{
    LogError,
    address::{PASSWORD_VARIABLE, StoreAddress},
};
use std::{env, fs, path::Path};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use zeroize::Zeroizing;

/// The certificates of the authorities that the address names, as PEM with at least one. `None`: those of the system.
pub(crate) fn authorities(address: &StoreAddress) -> Result<Option<Vec<u8>>, LogError> {
    let Some(ca) = &address.ca else { return Ok(None) };
    let pem = read(address, "ca", ca)?;
    check_certificates(address, "ca", ca, &pem)?;
    Ok(Some(pem.to_vec()))
}

/// A client certificate and its private key, as PEM.
pub(crate) type Identity = (Vec<u8>, Zeroizing<Vec<u8>>);

/// The client certificate and its private key.
pub(crate) fn identity(address: &StoreAddress) -> Result<Option<Identity>, LogError> {
    let Some((cert, key)) = &address.identity else { return Ok(None) };
    let (certificate, private) = (read(address, "cert", cert)?, read(address, "key", key)?);
    check_certificates(address, "cert", cert, &certificate)?;
    PrivateKeyDer::from_pem_slice(&private).map_err(|error| unusable(address, "key", key, error))?;
    Ok(Some((certificate.to_vec(), private)))
}

fn check_certificates(address: &StoreAddress, option: &str, path: &Path, pem: &[u8]) -> Result<(), LogError> {
    match CertificateDer::pem_slice_iter(pem).next() {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(unusable(address, option, path, error)),
        None => Err(unusable(address, option, path, "it has no certificate")),
    }
}

/// The password, without the end of its line.
pub(crate) fn password(address: &StoreAddress) -> Result<Option<Zeroizing<String>>, LogError> {
    let text = match &address.password_file {
        Some(path) => {
            let bytes = read(address, "password-file", path)?;
            let text =
                std::str::from_utf8(&bytes).map_err(|_| unusable(address, "password-file", path, "it is no text"))?;
            Zeroizing::new(text.to_owned())
        }
        None => match env::var(PASSWORD_VARIABLE) {
            Ok(text) => Zeroizing::new(text),
            Err(_) => return Ok(None),
        },
    };
    Ok(Some(Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned())))
}

fn read(address: &StoreAddress, option: &str, path: &Path) -> Result<Zeroizing<Vec<u8>>, LogError> {
    fs::read(path).map(Zeroizing::new).map_err(|error| unusable(address, option, path, error))
}

/// The error about a file that cannot be used.
pub(crate) fn unusable(address: &StoreAddress, option: &str, path: &Path, cause: impl ToString) -> LogError {
    let cause = format!("the file {} cannot be used: {}", path.display(), cause.to_string());
    LogError::refused(&address.to_string(), cause, format!("give another one: ?{option}=FILE"))
}
