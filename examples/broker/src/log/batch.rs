//! Record batches: they stay closed, just as their producer made them, compressed or not.

use super::producer::Sequence;
use crate::metadata::NO_TRANSACTIONS;
use kafka_protocol::ResponseError;

/// As Kafka's `message.max.bytes`.
const MAX_BATCH: usize = (1 << 20) + 12;
/// The bits of the attributes that only transactions set.
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;

/// Where the header of a batch has what.
const LENGTH: usize = 8;
const LEADER_EPOCH: usize = 12;
const MAGIC: usize = 16;
const CRC: usize = 17;
/// From here on the checksum covers all.
const ATTRIBUTES: usize = 21;
const LAST_OFFSET_DELTA: usize = 23;
const MAX_TIMESTAMP: usize = 35;
const PRODUCER_ID: usize = 43;
const PRODUCER_EPOCH: usize = 51;
const BASE_SEQUENCE: usize = 53;
const RECORD_COUNT: usize = 57;
const HEADER: usize = 61;

/// A batch as it lies in the log.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) base_offset: i64,
    pub(super) last_offset: i64,
    pub(super) max_timestamp: i64,
    /// How many bytes of the log lie before it, from the beginning of time.
    pub(super) position: usize,
}

/// A batch that was checked, as its producer sent it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked<'a> {
    pub(super) bytes: &'a [u8],
    /// `None` if its producer is not idempotent.
    pub(super) sequence: Option<Sequence>,
}

impl<'a> Checked<'a> {
    /// Checks that a producer sent exactly one batch, in order and not too large.
    ///
    /// # Errors
    /// What Kafka says of such a batch.
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, ResponseError> {
        if bytes.len() < HEADER {
            return Err(ResponseError::CorruptMessage);
        }
        if bytes.len() > MAX_BATCH {
            return Err(ResponseError::MessageTooLarge);
        }
        if bytes[MAGIC] != 2 {
            return Err(ResponseError::UnsupportedForMessageFormat);
        }
        if u32::from_be_bytes(at(bytes, CRC)) != crc32c::crc32c(&bytes[ATTRIBUTES..]) {
            return Err(ResponseError::CorruptMessage);
        }
        let length = i32::from_be_bytes(at(bytes, LENGTH));
        let delta = i32::from_be_bytes(at(bytes, LAST_OFFSET_DELTA));
        let attributes = i16::from_be_bytes(at(bytes, ATTRIBUTES));
        let sequence = Sequence {
            producer_id: i64::from_be_bytes(at(bytes, PRODUCER_ID)),
            epoch: i16::from_be_bytes(at(bytes, PRODUCER_EPOCH)),
            first: i32::from_be_bytes(at(bytes, BASE_SEQUENCE)),
            records: i32::from_be_bytes(at(bytes, RECORD_COUNT)),
        };
        let is_idempotent = sequence.producer_id >= 0;
        if usize::try_from(length).ok() != Some(bytes.len() - LEADER_EPOCH)
            || sequence.records < 1
            || delta != sequence.records - 1
            || attributes & CONTROL != 0
            || (is_idempotent && (sequence.epoch < 0 || sequence.first < 0))
        {
            return Err(ResponseError::InvalidRecord);
        }
        if attributes & TRANSACTIONAL != 0 {
            return Err(NO_TRANSACTIONS);
        }
        Ok(Checked { bytes, sequence: is_idempotent.then_some(sequence) })
    }

    /// Gives a batch its place. The checksum covers neither of the two fields that this writes.
    pub(super) fn place(self, base_offset: i64, position: usize) -> Batch {
        let mut bytes = self.bytes.to_vec(); // The frame that it came in must not stay with it.
        bytes[..LENGTH].copy_from_slice(&base_offset.to_be_bytes());
        bytes[LEADER_EPOCH..MAGIC].copy_from_slice(&0_i32.to_be_bytes());
        let delta = i32::from_be_bytes(at(&bytes, LAST_OFFSET_DELTA));
        let max_timestamp = i64::from_be_bytes(at(&bytes, MAX_TIMESTAMP));
        let last_offset = base_offset + i64::from(delta);
        Batch { bytes, base_offset, last_offset, max_timestamp, position }
    }
}

fn at<const N: usize>(bytes: &[u8], place: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[place + index])
}
