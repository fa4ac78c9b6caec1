//! Bounds: whether the lengths in a request are true, before anybody believes them.
//!
//! `kafka-protocol` makes room for as many elements as an array claims to have: twelve bytes that
//! claim two billion would end the process. So a request is walked first, without allocating.

/// What a body is made of.
pub(super) enum Field {
    /// So many bytes.
    Fixed(usize),
    /// Its length in 2 bytes, -1 for none.
    Text,
    /// Its length in 4 bytes, -1 for none.
    Bytes,
    /// Their number in 4 bytes, -1 for none; and each of them.
    Array(&'static [Field]),
    /// From this version on.
    Since(i16, &'static [Field]),
}

/// How many elements the arrays of a request may have, together. What is decoded takes far more
/// room than what was sent.
const MAX_ELEMENTS: usize = 20_000;

/// Checks that a body holds what it claims to hold, not too much, and nothing else. Returns `None`
/// if not.
pub(super) fn check(body: &[u8], version: i16, fields: &[Field]) -> Option<()> {
    let mut walk = Walk { rest: body, version, elements: 0 };
    walk.fields(fields)?;
    walk.rest.is_empty().then_some(())
}

struct Walk<'a> {
    rest: &'a [u8],
    version: i16,
    /// How many there were so far.
    elements: usize,
}

impl Walk<'_> {
    fn fields(&mut self, fields: &[Field]) -> Option<()> {
        fields.iter().try_for_each(|field| match field {
            Field::Fixed(length) => self.skip(*length),
            Field::Text => {
                let length = i16::from_be_bytes(self.take()?);
                self.skip(usize::try_from(length).unwrap_or(0))
            }
            Field::Bytes => {
                let length = self.length()?;
                self.skip(length)
            }
            Field::Array(element) => {
                let count = self.length()?;
                self.elements = self.elements.saturating_add(count);
                if self.elements > MAX_ELEMENTS {
                    return None;
                }
                (0..count).try_for_each(|_| self.fields(element))
            }
            Field::Since(first, fields) if self.version >= *first => self.fields(fields),
            Field::Since(..) => Some(()),
        })
    }

    fn length(&mut self) -> Option<usize> {
        Some(usize::try_from(i32::from_be_bytes(self.take()?)).unwrap_or(0))
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.rest = self.rest.get(length..)?;
        Some(())
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }
}
