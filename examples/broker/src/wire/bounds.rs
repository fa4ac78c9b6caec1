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
    /// Their number in 4 bytes; -1 for none. Each is a structure.
    Array(&'static [Field]),
    /// The same, but of plain values.
    List(&'static [Field]),
    /// From this version on.
    Since(i16, &'static [Field]),
    /// Before this version.
    Before(i16, &'static [Field]),
}

/// How many elements the arrays of a request may have, together. What is decoded takes far more
/// room than what was sent.
const MAX_ELEMENTS: usize = 20_000;

/// Checks that a body holds what it claims to hold, and not too much. Returns `None` if not. In a
/// flexible version lengths have as many bytes as they need, and each structure ends with tagged
/// fields.
pub(super) fn check(body: &[u8], version: i16, flexible: bool, fields: &[Field]) -> Option<()> {
    Walk { body, version, flexible, elements: 0 }.structure(fields)
}

/// What is left of a body.
struct Walk<'a> {
    body: &'a [u8],
    version: i16,
    flexible: bool,
    /// How many there were so far.
    elements: usize,
}

impl Walk<'_> {
    fn structure(&mut self, fields: &[Field]) -> Option<()> {
        self.fields(fields)?;
        if self.flexible {
            let count = self.varint()?;
            self.count(count)?;
            for _ in 0..count {
                self.varint()?; // The tag.
                let length = self.varint()?;
                self.skip(length)?;
            }
        }
        Some(())
    }

    fn fields(&mut self, fields: &[Field]) -> Option<()> {
        for field in fields {
            match field {
                Field::Fixed(length) => self.skip(*length)?,
                Field::Text => {
                    let length =
                        self.length(|walk| Some(i16::from_be_bytes(walk.take()?).into()))?;
                    self.skip(length)?;
                }
                Field::Bytes => {
                    let length = self.length(|walk| Some(i32::from_be_bytes(walk.take()?)))?;
                    self.skip(length)?;
                }
                Field::Array(element) => self.array(|walk| walk.structure(element))?,
                Field::List(element) => self.array(|walk| walk.fields(element))?,
                Field::Since(first, fields) if self.version >= *first => self.fields(fields)?,
                Field::Before(end, fields) if self.version < *end => self.fields(fields)?,
                Field::Since(..) | Field::Before(..) => {}
            }
        }
        Some(())
    }

    fn array(&mut self, element: impl Fn(&mut Self) -> Option<()>) -> Option<()> {
        let count = self.length(|walk| Some(i32::from_be_bytes(walk.take()?)))?;
        self.count(count)?;
        (0..count).try_for_each(|_| element(self).ok_or(())).ok()
    }

    fn count(&mut self, elements: usize) -> Option<()> {
        self.elements = self.elements.saturating_add(elements);
        (self.elements <= MAX_ELEMENTS).then_some(())
    }

    /// Reads a length in either encoding. What is absent has none.
    fn length(&mut self, fixed: impl Fn(&mut Self) -> Option<i32>) -> Option<usize> {
        if self.flexible {
            return Some(self.varint()?.saturating_sub(1));
        }
        usize::try_from(fixed(self)?.max(0)).ok()
    }

    /// Reads a number of seven bits in each byte, the lowest first; the eighth bit says that there
    /// are more.
    fn varint(&mut self) -> Option<usize> {
        let mut value = 0_u32;
        for place in 0..5 {
            let [byte] = self.take()?;
            value |= u32::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                break;
            }
        }
        usize::try_from(value).ok()
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
