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

/// How many elements the arrays of a request may have, together. What is decoded takes far more
/// room than what was sent.
const MAX_ELEMENTS: usize = 20_000;

/// Whether a body holds what it claims to hold, and not too much. `None` if not.
pub(super) fn check(body: &[u8], version: i16, fields: &[Field]) -> Option<()> {
    Walk { body, version, elements: 0 }.fields(fields)
}

/// What is left of a body.
struct Walk<'a> {
    body: &'a [u8],
    version: i16,
    /// How many there were so far.
    elements: usize,
}

impl Walk<'_> {
    fn fields(&mut self, fields: &[Field]) -> Option<()> {
        for field in fields {
            match field {
                Field::Fixed(length) => self.skip(*length)?,
                Field::Text => {
                    let length = i16::from_be_bytes(self.take()?);
                    self.skip(usize::try_from(length.max(0)).ok()?)?;
                }
                Field::Bytes => {
                    let length = i32::from_be_bytes(self.take()?);
                    self.skip(usize::try_from(length.max(0)).ok()?)?;
                }
                Field::Array(element) => {
                    let count = i32::from_be_bytes(self.take()?);
                    self.elements += usize::try_from(count.max(0)).ok()?;
                    if self.elements > MAX_ELEMENTS {
                        return None;
                    }
                    (0..count).try_for_each(|_| self.fields(element).ok_or(())).ok()?;
                }
                Field::Since(first, fields) if self.version >= *first => self.fields(fields)?,
                Field::Before(end, fields) if self.version < *end => self.fields(fields)?,
                Field::Since(..) | Field::Before(..) => {}
            }
        }
        Some(())
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.body = self.body.get(length..)?;
        Some(())
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.body.split_first_chunk()?;
        self.body = rest;
        Some(*taken)
    }
}
