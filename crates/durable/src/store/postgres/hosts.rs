//! The hosts of a user's configuration, each in a configuration of its own.

use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, TargetSessionAttrs};

/// After how long without any bytes TCP asks whether the server is there.
const KEPT_ALIVE: Duration = Duration::from_secs(10);

/// Returns a configuration for each host alone, with the settings of a node's connections.
pub(super) fn hosts(config: &Config) -> Vec<Config> {
    let count = config.get_hosts().len().max(config.get_hostaddrs().len());
    (0..count).map(|at| of_host(config, at)).collect()
}

/// Copies a configuration with only one of its hosts. Copied option by option: hosts cannot be
/// removed from a clone.
fn of_host(all: &Config, at: usize) -> Config {
    let mut one = Config::new();
    match all.get_hosts().get(at) {
        Some(Host::Tcp(name)) => drop(one.host(name)),
        #[cfg(unix)]
        Some(Host::Unix(path)) => drop(one.host_path(path)),
        None => {}
    }
    if let Some(address) = all.get_hostaddrs().get(at) {
        one.hostaddr(*address);
    }
    // A single port counts for all hosts.
    let ports = all.get_ports();
    if let Some(port) = ports.get(at).or(ports.first()) {
        one.port(*port);
    }
    if let Some(user) = all.get_user() {
        one.user(user);
    }
    if let Some(password) = all.get_password() {
        one.password(password);
    }
    if let Some(database) = all.get_dbname() {
        one.dbname(database);
    }
    if let Some(options) = all.get_options() {
        one.options(options);
    }
    if let Some(name) = all.get_application_name() {
        one.application_name(name);
    }
    if let Some(timeout) = all.get_connect_timeout() {
        one.connect_timeout(*timeout);
    }
    one.ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .channel_binding(all.get_channel_binding())
        .keepalives(all.get_keepalives())
        // A lost connection is soon noticed, also while no statement is sent.
        .keepalives_idle(KEPT_ALIVE)
        .keepalives_interval(KEPT_ALIVE / 2)
        .keepalives_retries(3)
        .tcp_user_timeout(KEPT_ALIVE * 2)
        // A standby's answers may be old, also to calls that only read.
        .target_session_attrs(TargetSessionAttrs::ReadWrite)
        // The first of a name's addresses may be dead: each try begins with a random one.
        .load_balance_hosts(LoadBalanceHosts::Random);
    one
}
