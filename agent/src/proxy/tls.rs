//! TLS towards clients (H12): certificates from PEM files, HTTP/2 and HTTP/1.1 by ALPN.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

use crate::config::TlsConfig;

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is no PEM of that kind.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// The certificate and key do not work together.
    #[error("certificate {certificate} and key {key}: {source}")]
    Pair {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
        /// What is wrong with them.
        source: rustls::Error,
    },
}

/// Reads a certificate chain and its key.
pub(super) fn load(tls: &TlsConfig) -> Result<Arc<ServerConfig>, TlsError> {
    let unreadable = |path: &PathBuf| {
        let path = path.clone();
        move |source| TlsError::File { path, source }
    };
    let chain = CertificateDer::pem_file_iter(&tls.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(unreadable(&tls.certificate))?;
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(unreadable(&tls.key))?;
    let unusable =
        |source| TlsError::Pair { certificate: tls.certificate.clone(), key: tls.key.clone(), source };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
