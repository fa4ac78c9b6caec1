//! Record batches: they stay closed, just as their producer made them, compressed or not.

use super::producer::Sequence;
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::ResponseError;

/// A batch as it lies in the log.
#[derive(Debug)]
pub struct Batch {
    pub(super) bytes: Bytes,
    pub(super) base_offset: i64,
    pub(super) last_offset: i64,
    pub(super) max_timestamp: i64,
    /// How many bytes of the log lie before it, from the beginning of time.
    pub(super) position: u64,
}

/// A batch that was checked, as its producer sent it.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    pub(super) bytes: &'a [u8],
    /// `None` if its producer is not idempotent.
    pub sequence: Option<Sequence>,
}

/// The bits of the attributes that say how it is compressed.
const COMPRESSION: i16 = 7;
/// And those that only transactions set.
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

impl Batch {
    /// Checks that a producer sent exactly one batch, in order and not larger than `max_bytes`.
    ///
    /// # Errors
    /// What Kafka says of such a batch.
    pub fn check(bytes: &[u8], max_bytes: usize) -> Result<Checked<'_>, ResponseError> {
        if bytes.len() < HEADER {
            return Err(ResponseError::CorruptMessage);
        }
        if bytes.len() > max_bytes {
            return Err(ResponseError::MessageTooLarge);
        }
        if bytes[MAGIC] != 2 {
            return Err(ResponseError::UnsupportedForMessageFormat);
        }
        let length = i32::from_be_bytes(at(bytes, LENGTH));
        if usize::try_from(length).ok() != Some(bytes.len() - LEADER_EPOCH) {
            return Err(ResponseError::InvalidRecord);
        }
        if u32::from_be_bytes(at(bytes, CRC)) != crc32c::crc32c(&bytes[ATTRIBUTES..]) {
            return Err(ResponseError::CorruptMessage);
        }
        let delta = i32::from_be_bytes(at(bytes, LAST_OFFSET_DELTA));
        let records = i32::from_be_bytes(at(bytes, RECORD_COUNT));
        if records < 1 || delta != records - 1 {
            return Err(ResponseError::InvalidRecord);
        }
        let attributes = i16::from_be_bytes(at(bytes, ATTRIBUTES));
        if attributes & CONTROL != 0 {
            return Err(ResponseError::InvalidRecord);
        }
        if attributes & TRANSACTIONAL != 0 {
            return Err(ResponseError::TransactionalIdAuthorizationFailed);
        }
        let sequence = Sequence {
            producer_id: i64::from_be_bytes(at(bytes, PRODUCER_ID)),
            epoch: i16::from_be_bytes(at(bytes, PRODUCER_EPOCH)),
            first: i32::from_be_bytes(at(bytes, BASE_SEQUENCE)),
            records,
        };
        let is_idempotent = sequence.producer_id >= 0;
        if is_idempotent && (sequence.epoch < 0 || sequence.first < 0) {
            return Err(ResponseError::InvalidRecord);
        }
        Ok(Checked { bytes, sequence: is_idempotent.then_some(sequence) })
    }

    /// Encodes a batch of identical records, as a producer sends it: for the load and the tests.
    /// Nobody looks into a record.
    pub fn encode(count: i32, timestamp: i64, record: &[u8]) -> Bytes {
        let mut batch = BytesMut::with_capacity(HEADER + record.len() * count as usize);
        batch.put_i64(0);
        batch.put_i32(0); // The length comes at the end.
        batch.put_i32(-1);
        batch.put_u8(2);
        batch.put_u32(0); // The checksum comes at the end.
        batch.put_i16(0); // Not compressed.
        batch.put_i32(count - 1);
        batch.put_i64(timestamp);
        batch.put_i64(timestamp);
        batch.put_i64(-1); // Of no producer that would be known again.
        batch.put_i16(-1);
        batch.put_i32(-1);
        batch.put_i32(count);
        (0..count).for_each(|_| batch.put_slice(record));
        sealed(batch)
    }

    /// Returns the head of a batch with other records in it. The batch has no producer that would
    /// be known again.
    pub(super) fn with_records(head: &[u8], count: i32, records: &[u8]) -> Bytes {
        let mut batch = BytesMut::with_capacity(HEADER + records.len());
        batch.extend_from_slice(&head[..HEADER]);
        batch[LAST_OFFSET_DELTA..LAST_OFFSET_DELTA + 4].copy_from_slice(&(count - 1).to_be_bytes());
        batch[PRODUCER_ID..RECORD_COUNT].fill(0xff); // -1 each.
        batch[RECORD_COUNT..].copy_from_slice(&count.to_be_bytes());
        batch.extend_from_slice(records);
        sealed(batch)
    }

    /// Returns how many records a batch has, and these, unless they are compressed.
    pub(super) fn uncompressed(bytes: &[u8]) -> Option<(i32, &[u8])> {
        let is_plain = i16::from_be_bytes(at(bytes, ATTRIBUTES)) & COMPRESSION == 0;
        is_plain.then(|| (i32::from_be_bytes(at(bytes, RECORD_COUNT)), &bytes[HEADER..]))
    }

    /// Splits the first of some batches off the others.
    pub(super) fn split_first(batches: &[u8]) -> Option<(&[u8], &[u8])> {
        let length = batches.get(LENGTH..LEADER_EPOCH)?.first_chunk()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
        let batch = batches.split_at_checked(LEADER_EPOCH + length)?;
        (batch.0.len() >= HEADER).then_some(batch)
    }

    /// Returns the latest timestamp among the first records of some batches.
    pub fn timestamp(batches: &[u8]) -> Option<i64> {
        (batches.len() >= HEADER).then(|| i64::from_be_bytes(at(batches, MAX_TIMESTAMP)))
    }

    /// Gives a batch its place. The checksum covers neither of the two fields that this writes.
    pub(super) fn place(batch: &[u8], base_offset: i64, position: u64) -> Self {
        let mut bytes = batch.to_vec(); // The frame that it came in must not stay with it.
        bytes[..LENGTH].copy_from_slice(&base_offset.to_be_bytes());
        bytes[LEADER_EPOCH..MAGIC].copy_from_slice(&0_i32.to_be_bytes());
        let delta = i32::from_be_bytes(at(&bytes, LAST_OFFSET_DELTA));
        Batch {
            base_offset,
            last_offset: base_offset + i64::from(delta),
            max_timestamp: i64::from_be_bytes(at(&bytes, MAX_TIMESTAMP)),
            position,
            bytes: bytes.into(),
        }
    }

    pub(super) fn end_position(&self) -> u64 {
        self.position + self.bytes.len() as u64
    }
}

/// Writes its length and its checksum.
fn sealed(mut batch: BytesMut) -> Bytes {
    let length = (batch.len() - LEADER_EPOCH) as i32;
    batch[LENGTH..LEADER_EPOCH].copy_from_slice(&length.to_be_bytes());
    let checksum = crc32c::crc32c(&batch[ATTRIBUTES..]);
    batch[CRC..ATTRIBUTES].copy_from_slice(&checksum.to_be_bytes());
    batch.freeze()
}

fn at<const N: usize>(bytes: &[u8], place: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[place + index])
}
