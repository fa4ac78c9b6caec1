//! Noise: the same in each run, for each seed; and frames that are changed by it.

use crate::client::framed;
use bytes::{Bytes, BytesMut};

pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Noise(seed)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Lengths and counts that are not true, in either encoding of a number.
const LENGTHS: [&[u8]; 5] = [
    &[0x7f, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x80, 0, 0, 0],
    &[0x7f, 0xff],
    &[0, 0, 0x4e, 0x20],
];

/// Returns one of some frames, mostly changed in a few places, with a length before it, which is
/// mostly true.
pub(crate) fn mutated(frames: &[Bytes], noise: &mut Noise) -> Bytes {
    let mut bad = BytesMut::from(&noise.one_of(frames)[..]);
    for _ in 0..noise.below(5) {
        change(&mut bad, frames, noise);
    }
    let mut whole = BytesMut::from(&framed(&bad)[..]);
    if noise.below(20) == 0 {
        whole[noise.below(4)] = noise.below(256) as u8;
    }
    whole.freeze()
}

fn change(bad: &mut BytesMut, frames: &[Bytes], noise: &mut Noise) {
    let place = noise.below(bad.len());
    match noise.below(7) {
        0 => bad[place] ^= 1 << noise.below(8),
        1 => bad[place] = noise.below(256) as u8,
        2 => bad[place] = *noise.one_of(&[0, 1, 0x7f, 0x80, 0xff]),
        3 => {
            let length = noise.one_of(&LENGTHS);
            bad[place..].iter_mut().zip(*length).for_each(|(byte, new)| *byte = *new);
        }
        4 => bad.truncate(place + 1),
        5 => {
            let other = noise.one_of(frames);
            bad.truncate(place + 1);
            bad.extend_from_slice(&other[noise.below(other.len())..]);
        }
        _ => {
            let again = bad.split_off(place);
            bad.extend_from_slice(&again);
            bad.extend_from_slice(&again);
        }
    }
}
