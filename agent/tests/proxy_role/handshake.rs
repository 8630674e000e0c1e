//! A client's TLS handshake with a listener.

use std::{io, net::SocketAddr, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Of `localhost`, by itself.
pub(crate) const CERTIFICATE: &str = "tests/proxy_role/localhost.pem";
/// Its key.
pub(crate) const KEY: &str = "tests/proxy_role/localhost.key";

/// Offers one protocol, and trusts one certificate.
pub(crate) async fn handshake(
    address: SocketAddr,
    protocol: &[u8],
    trusted: &str,
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}
