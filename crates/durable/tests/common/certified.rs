//! A server that demands TLS.

use crate::server::{Server, connect};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_postgres::Client;

/// Has the server make itself a certificate, and demand TLS of the role `private`. Returns the path
/// of the certificate.
pub(crate) async fn demand_tls(server: &Server, client: &Client) -> PathBuf {
    let make = "COPY (SELECT) TO PROGRAM 'openssl req -x509 -newkey rsa:2048 -nodes -days 2
        -keyout server.key -out server.crt -subj /CN=server -addext subjectAltName=IP:127.0.0.1
        -addext basicConstraints=critical,CA:FALSE'";
    let make = make.replace('\n', " ");
    for sql in [&make, "CREATE ROLE private SUPERUSER LOGIN"] {
        client.batch_execute(sql).await.unwrap();
    }
    let rules: String = client.query_one("SHOW hba_file", &[]).await.unwrap().get(0);
    let former = fs::read_to_string(&rules).unwrap();
    let demand = "hostssl all private all trust\nhost all private all reject\n";
    fs::write(&rules, format!("{demand}{former}")).unwrap();
    for sql in ["ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"] {
        client.batch_execute(sql).await.unwrap();
    }
    while connect(server.config().user("private")).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Path::new(&rules).with_file_name("server.crt")
}
