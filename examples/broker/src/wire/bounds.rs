//! Bounds: whether the lengths in a request are true, before anybody believes them.
//!
//! `kafka-protocol` makes room for as many elements as an array claims to have. Twelve bytes that
//! claim two billion would end the process. Here the request is walked first, without
//! allocating, and an array that has fewer elements than it claims is refused.

/// What a body is made of.
pub(super) enum Field {
    /// So many bytes.
    Fixed(usize),
    /// Its length in 2 bytes; -1 for none.
    Text,
    /// Its length in 4 bytes; -1 for none.
    Bytes,
    /// Their number in 4 bytes; -1 for none.
    Array(&'static [Field]),
    /// From this version on.
    Since(i16, &'static [Field]),
    /// Before this version.
    Before(i16, &'static [Field]),
}

/// Checks whether a body holds what it claims to hold. Returns `None` if not.
pub(super) fn check(body: &mut &[u8], version: i16, fields: &[Field]) -> Option<()> {
    for field in fields {
        match field {
            Field::Fixed(length) => skip(body, *length)?,
            Field::Text => {
                let length = i16::from_be_bytes(take(body)?);
                skip(body, usize::try_from(length.max(0)).ok()?)?;
            }
            Field::Bytes => {
                let length = i32::from_be_bytes(take(body)?);
                skip(body, usize::try_from(length.max(0)).ok()?)?;
            }
            Field::Array(element) => {
                // Every element takes some bytes, so this ends where they end.
                for _ in 0..i32::from_be_bytes(take(body)?) {
                    check(body, version, element)?;
                }
            }
            Field::Since(first, fields) if version >= *first => check(body, version, fields)?,
            Field::Before(end, fields) if version < *end => check(body, version, fields)?,
            Field::Since(..) | Field::Before(..) => {}
        }
    }
    Some(())
}

fn skip(body: &mut &[u8], length: usize) -> Option<()> {
    *body = body.get(length..)?;
    Some(())
}

fn take<const N: usize>(body: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = body.split_first_chunk()?;
    *body = rest;
    Some(*taken)
}
