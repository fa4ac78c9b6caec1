//! The schema of the tables. Statements say `tickwheel`, which is replaced by the user's schema.

use crate::entry::{Error, bad_name};
use crate::store::postgres::link::{Param, explain};
use tokio_postgres::{Client, Row};

/// A schema's name, and the namespace of the timers there.
pub(super) struct Schema {
    name: String,
    pub(super) space: String,
}

/// The default schema.
pub(super) const DEFAULT: &str = "tickwheel";

impl Schema {
    /// Returns the schema of a name, which must be a plain identifier. The name also stands in the
    /// bodies of functions, where quotes alone would not make any name safe.
    pub(super) fn new(name: &str, space: &str) -> Result<Self, Error> {
        let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        let is_plain = name.chars().all(|c| is_letter(c) || c.is_ascii_digit());
        // PostgreSQL would cut a longer name.
        if name.starts_with(is_letter) && is_plain && name.len() < 64 {
            return Ok(Schema {
                name: name.to_owned(),
                space: space.to_owned(),
            });
        }
        let rule = "letters, digits and underscores, at most 63, and no digit first";
        Err(bad_name("schema", name, rule))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a statement with this schema's name, quoted: the name may be a keyword.
    pub(super) fn of(&self, sql: &str) -> String {
        sql.replace("tickwheel.", &format!("\"{}\".", self.name))
    }

    pub(super) fn on<'a>(&'a self, client: &'a Client) -> On<'a> {
        On {
            client,
            schema: self,
        }
    }
}

/// A connection, with its transaction if there is one, for statements on a schema's tables.
#[derive(Clone, Copy)]
pub(super) struct On<'a> {
    client: &'a Client,
    pub(super) schema: &'a Schema,
}

impl On<'_> {
    pub(super) async fn query(
        self,
        sql: &str,
        params: &[&dyn Param],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let params: Vec<_> = params.iter().map(|param| param.typed()).collect();
        self.client.query_typed(&self.schema.of(sql), &params).await
    }

    pub(super) async fn execute(self, sql: &str) -> Result<(), Error> {
        self.client
            .batch_execute(&self.schema.of(sql))
            .await
            .map_err(explain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_only_be_a_name() {
        for name in [
            "",
            "1a",
            "a b",
            "a\"b",
            "a.b",
            "a$$b",
            "a;",
            "ä",
            &"a".repeat(64),
        ] {
            assert!(
                matches!(Schema::new(name, "n"), Err(Error::BadName(_))),
                "{name:?}"
            );
        }
        let sql = "DELETE FROM tickwheel.timer USING tickwheel.pause";
        assert_eq!(
            Schema::new("user", "n").unwrap().of(sql),
            "DELETE FROM \"user\".timer USING \"user\".pause"
        );
    }
}
