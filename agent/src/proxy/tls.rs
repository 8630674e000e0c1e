//! TLS towards clients (H12): certificates from PEM files, which may be renewed at any time, HTTP/2 and HTTP/1.1 by
//! ALPN.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
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

/// A listener's certificate and key: what its files held when they were last good.
#[derive(Debug)]
pub(super) struct Identity {
    files: TlsConfig,
    current: ArcSwap<CertifiedKey>,
    renewal: Mutex<Renewal>,
}

/// What the files held, and what was wrong with them, when they were last read.
#[derive(Debug)]
struct Renewal {
    pair: Pair,
    error: Option<String>,
}

/// A certificate chain and the key of its first certificate, as their files hold them.
#[derive(PartialEq, Debug)]
struct Pair {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads a certificate chain and its key.
    pub(super) fn load(files: &TlsConfig) -> Result<Self, TlsError> {
        let pair = Pair::read(files)?;
        let current = ArcSwap::from_pointee(pair.certify(files)?);
        Ok(Self { files: files.clone(), current, renewal: Mutex::new(Renewal { pair, error: None }) })
    }

    /// How a listener speaks that has it.
    pub(super) fn server(self: &Arc<Self>) -> Result<Arc<ServerConfig>, TlsError> {
        let resolver: Arc<dyn ResolvesServerCert> = Arc::<Self>::clone(self);
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|source| unusable(&self.files, source))?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Reads the files again. Handshakes from here on use what has changed.
    pub(super) fn renew(&self, listener: &str) {
        let mut last = self.renewal.lock().unwrap_or_else(PoisonError::into_inner);
        let renewed = Pair::read(&self.files).and_then(|pair| {
            if pair == last.pair {
                return Ok(None);
            }
            let key = pair.certify(&self.files)?;
            Ok(Some((pair, key)))
        });
        match renewed {
            Ok(None) => last.error = None,
            Ok(Some((pair, key))) => {
                self.current.store(Arc::new(key));
                *last = Renewal { pair, error: None };
                tracing::info!(listener, "the new certificate is in force");
            }
            Err(error) => {
                let error = error.to_string();
                if last.error.as_ref() != Some(&error) {
                    tracing::error!(
                        listener,
                        error,
                        "the new certificate is bad; the old one stays in force"
                    );
                    last.error = Some(error);
                }
            }
        }
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl Pair {
    fn read(files: &TlsConfig) -> Result<Self, TlsError> {
        let unreadable = |path: &PathBuf| {
            let path = path.clone();
            move |source| TlsError::File { path, source }
        };
        let chain = CertificateDer::pem_file_iter(&files.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(unreadable(&files.certificate))?;
        if chain.is_empty() {
            return Err(unreadable(&files.certificate)(pem::Error::NoItemsFound));
        }
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(unreadable(&files.key))?;
        Ok(Self { chain, key })
    }

    /// Sees that the two belong together.
    fn certify(&self, files: &TlsConfig) -> Result<CertifiedKey, TlsError> {
        CertifiedKey::from_der(self.chain.clone(), self.key.clone_key(), &ring::default_provider())
            .map_err(|source| unusable(files, source))
    }
}

fn unusable(files: &TlsConfig, source: rustls::Error) -> TlsError {
    TlsError::Pair { certificate: files.certificate.clone(), key: files.key.clone(), source }
}

/// Reads a certificate chain and its key, and says what is wrong with them.
pub fn check(files: &TlsConfig) -> Result<(), TlsError> {
    Identity::load(files).map(drop)
}
