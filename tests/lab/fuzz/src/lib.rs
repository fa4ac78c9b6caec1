//! The part of quickcheck that the models of the tests use, with values drawn from bytes.
//!
//! The fuzz targets include the models as they are. There quickcheck draws the operations at
//! random; here they are drawn from the fuzzer's input. So both have the same operations, with the
//! same bias to edges, and the fuzzer changes single choices.

/// The fuzzer's input, as far as it is not used up. Then it goes on with zeros.
pub struct Gen<'a>(&'a [u8]);

impl<'a> Gen<'a> {
    /// Creates a generator that draws from these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Gen(bytes)
    }

    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// Chooses a value; `None` if there is none.
    pub fn choose<'s, T>(&mut self, values: &'s [T]) -> Option<&'s T> {
        let index = usize::arbitrary(self).checked_rem(values.len())?;
        values.get(index)
    }
}

/// Values that can be drawn.
pub trait Arbitrary: Clone + 'static {
    /// Draws a value.
    fn arbitrary(g: &mut Gen<'_>) -> Self;

    /// Returns no simpler values: the fuzzer shortens its input instead.
    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        empty_shrinker()
    }
}

/// Returns no values.
pub fn empty_shrinker<T: 'static>() -> Box<dyn Iterator<Item = T>> {
    Box::new(std::iter::empty())
}

/// Returns one value.
pub fn single_shrinker<T: 'static>(value: T) -> Box<dyn Iterator<Item = T>> {
    Box::new(std::iter::once(value))
}

impl Arbitrary for u8 {
    fn arbitrary(g: &mut Gen<'_>) -> Self {
        g.byte()
    }
}

impl Arbitrary for bool {
    fn arbitrary(g: &mut Gen<'_>) -> Self {
        g.byte() % 2 == 1
    }
}

/// Most numbers only choose among a few things, so small ones take one byte. The largest values of
/// that byte say how many more bytes follow.
impl Arbitrary for u64 {
    fn arbitrary(g: &mut Gen<'_>) -> Self {
        let first = g.byte();
        match first.checked_sub(248) {
            None => first.into(),
            Some(more) => (0..=more).fold(0, |value, _| value << 8 | u64::from(g.byte())),
        }
    }
}

impl Arbitrary for u32 {
    fn arbitrary(g: &mut Gen<'_>) -> Self {
        u64::arbitrary(g) as u32
    }
}

impl Arbitrary for usize {
    fn arbitrary(g: &mut Gen<'_>) -> Self {
        u64::arbitrary(g) as usize
    }
}

/// Draws values until the input is used up.
impl<T: Arbitrary> Arbitrary for Vec<T> {
    fn arbitrary(g: &mut Gen<'_>) -> Self {
        let mut values = Vec::new();
        while !g.0.is_empty() {
            values.push(T::arbitrary(g));
        }
        values
    }
}
