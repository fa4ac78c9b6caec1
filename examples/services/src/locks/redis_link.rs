//! The link to Redis: a connection that is made again after a failure, and the scripts.

use redis::{Client, Connection, RedisResult};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// `KEYS`: locks. `ARGV`: the lease in milliseconds, then each lock's token. Answers with 1 for
/// each that was renewed, and 0 for each that this token does not hold.
pub(crate) const RENEW: &str = r"
local renewed = {}
for i, lock in ipairs(KEYS) do
    if redis.call('GET', lock) == ARGV[i + 1] then
        renewed[i] = redis.call('PEXPIRE', lock, ARGV[1])
    else
        renewed[i] = 0
    end
end
return renewed";

/// `KEYS`: a lock. `ARGV`: its token. Answers whether it was held by that.
pub(crate) const RELEASE: &str = r"
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0";

pub(crate) struct RedisLink {
    client: Client,
    /// How long Redis may take to answer.
    limit: Duration,
    connection: Mutex<Option<Connection>>,
}

impl RedisLink {
    /// Connects when it is used.
    pub(crate) fn new(client: &Client, limit: Duration) -> Self {
        RedisLink { client: client.clone(), limit, connection: Mutex::default() }
    }

    /// Calls Redis; one call at a time. A connection that has failed is not used again: its next
    /// answer might be to the call before. One that was closed since it was used last is no failure
    /// but replaced; so a call may be made twice.
    pub(crate) fn call<R>(
        &self,
        call: impl Fn(&mut Connection) -> RedisResult<R>,
    ) -> RedisResult<R> {
        let mut place = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut connection) = place.take() {
            match call(&mut connection) {
                Err(error) if error.is_connection_dropped() => {}
                Err(error) => return Err(error),
                Ok(answer) => {
                    *place = Some(connection);
                    return Ok(answer);
                }
            }
        }
        let mut connection = self.connect()?;
        let answer = call(&mut connection)?;
        *place = Some(connection);
        Ok(answer)
    }

    fn connect(&self) -> RedisResult<Connection> {
        let connection = self.client.get_connection_with_timeout(self.limit)?;
        connection.set_read_timeout(Some(self.limit))?;
        connection.set_write_timeout(Some(self.limit))?;
        Ok(connection)
    }
}
