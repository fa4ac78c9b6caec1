//! Connections by TLS.

use crate::certified::demand_tls;
use crate::{SERVER, builder, client, name, next_key, schedule, start, until};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::postgres::PostgresServer;
use tickwheel_durable::{DurableBuilder, Outcome, Search};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

fn trusting(roots: RootCertStore) -> MakeRustlsConnect {
    let config = ClientConfig::builder().with_root_certificates(roots);
    MakeRustlsConnect::new(config.with_no_client_auth())
}

/// Returns why a node does not start.
async fn refusal(builder: DurableBuilder<PostgresServer>) -> String {
    let timer = Timer::builder().start().unwrap();
    let refused = builder.start(&timer, async |_| Outcome::Done).await;
    refused.unwrap_err().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_of_a_node_are_encrypted() {
    let certificate = demand_tls(&SERVER, &client().await).await;
    let certificate = CertificateDer::from_pem_file(certificate).unwrap();
    let mut config = SERVER.config();
    config.user("private");
    let told = refusal(builder(config.clone(), &name())).await;
    assert!(told.contains("no encryption"), "{told}");
    config.ssl_mode(SslMode::Require);
    refusal(builder(config.clone(), &name())).await;
    let stranger = builder(config.clone(), &name()).tls(trusting(RootCertStore::empty()));
    let told = refusal(stranger).await;
    assert!(told.contains("certificate"), "{told}");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let (node, mut fired) = start(builder(config, &name()).tls(trusting(roots))).await;
    schedule(&node, "a", Duration::ZERO).await;
    assert_eq!(next_key(&mut fired).await, "a");
    node.list(Search::new(1)).await.unwrap();
    let client = client().await;
    let sql = "SELECT count(*), count(*) FILTER (WHERE ssl)
        FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'private'";
    until(async || {
        let row = client.query_one(sql, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), row.get::<_, i64>(1));
        row.get::<_, i64>(0) == 8 // With those that listen and list.
    })
    .await;
    node.drain().await;
}
