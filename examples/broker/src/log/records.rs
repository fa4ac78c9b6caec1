//! Records: opened just as far as to find when they are to be delivered.
//!
//! Only in batches that are not compressed: the broker never decompresses.

use super::batch::{Batch, Checked};
use bytes::{BufMut, Bytes, BytesMut};

/// The header of a record that is not to be seen before a time: in milliseconds since 1970, in
/// digits.
pub const DELIVER_AT: &[u8] = b"deliver-at";

/// A batch some of whose records are held back.
#[derive(Debug, Default)]
pub struct Split {
    /// Those that are not.
    pub now: Option<Bytes>,
    /// Each a batch of its own, and its time.
    pub later: Vec<(i64, Bytes)>,
}

/// One record of a batch.
struct Record<'a> {
    attributes: u8,
    timestamp_delta: i64,
    /// Its key, its value and its headers.
    rest: &'a [u8],
    deliver_at: Option<i64>,
}

impl Split {
    /// Reads the records of a batch. Returns `None` if nothing is to be held back, or that can't be
    /// seen.
    pub fn new(batch: Checked<'_>, now: i64) -> Option<Self> {
        let records = records(batch.bytes)?;
        let is_late = |record: &Record<'_>| record.deliver_at.is_some_and(|time| time > now);
        if !records.iter().any(is_late) {
            return None;
        }
        let (later, at_once): (Vec<_>, Vec<_>) = records.into_iter().partition(is_late);
        let later = later.into_iter().filter_map(|record| {
            let time = record.deliver_at?;
            Some((time, encode(batch.bytes, &[record])))
        });
        let later = later.collect();
        let now = (!at_once.is_empty()).then(|| encode(batch.bytes, &at_once));
        Some(Split { now, later })
    }
}

/// Returns when the records of some batches were to be delivered: for the measurement.
pub fn delivery_times(mut batches: &[u8]) -> Vec<i64> {
    let mut times = Vec::new();
    while let Some((batch, rest)) = Batch::split_first(batches) {
        let records = records(batch).unwrap_or_default();
        times.extend(records.iter().filter_map(|record| record.deliver_at));
        batches = rest;
    }
    times
}

/// Makes a batch of records that are to be delivered at some times: for the measurement and the
/// tests.
pub fn delayed(times: &[i64], timestamp: i64, value: &[u8]) -> Bytes {
    let plain = Batch::encode(1, timestamp, b"");
    let rests: Vec<_> = times.iter().map(|time| rest(*time, value)).collect();
    let record = |rest| Record { attributes: 0, timestamp_delta: 0, rest, deliver_at: None };
    encode(&plain, &rests.iter().map(|rest| record(rest)).collect::<Vec<_>>())
}

fn rest(time: i64, value: &[u8]) -> BytesMut {
    let mut rest = BytesMut::new();
    put_varint(&mut rest, -1); // No key.
    put_varint(&mut rest, value.len() as i64);
    rest.put_slice(value);
    put_varint(&mut rest, 1);
    put_varint(&mut rest, DELIVER_AT.len() as i64);
    rest.put_slice(DELIVER_AT);
    let digits = time.to_string();
    put_varint(&mut rest, digits.len() as i64);
    rest.put_slice(digits.as_bytes());
    rest
}

/// Reads records. Returns `None` if they are compressed, or not in order: then that is their
/// consumer's affair.
fn records(batch: &[u8]) -> Option<Vec<Record<'_>>> {
    let (count, mut body) = Batch::uncompressed(batch)?;
    let mut records = Vec::new();
    for _ in 0..count {
        let length = usize::try_from(varint(&mut body)?).ok()?;
        let record;
        (record, body) = body.split_at_checked(length)?;
        records.push(parsed(record)?);
    }
    body.is_empty().then_some(records)
}

fn parsed(record: &[u8]) -> Option<Record<'_>> {
    let (&attributes, mut body) = record.split_first()?;
    let timestamp_delta = varint(&mut body)?;
    varint(&mut body)?; // Its place in the batch.
    let rest = body;
    field(&mut body)?;
    field(&mut body)?;
    let mut deliver_at = None;
    for _ in 0..varint(&mut body)? {
        let (name, value) = (field(&mut body)?, field(&mut body)?);
        if name == DELIVER_AT {
            deliver_at = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
        }
    }
    Some(Record { attributes, timestamp_delta, rest, deliver_at })
}

fn encode(head: &[u8], records: &[Record<'_>]) -> Bytes {
    let mut body = BytesMut::new();
    let mut one = BytesMut::new();
    for (place, record) in records.iter().enumerate() {
        one.clear();
        one.put_u8(record.attributes);
        put_varint(&mut one, record.timestamp_delta);
        put_varint(&mut one, place as i64);
        one.put_slice(record.rest);
        put_varint(&mut body, one.len() as i64);
        body.put_slice(&one);
    }
    Batch::with_records(head, records.len() as i32, &body)
}

/// Bytes after their length; none if that is -1.
fn field<'a>(body: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(body)?.max(0)).ok()?;
    let (field, rest) = body.split_at_checked(length)?;
    *body = rest;
    Some(field)
}

/// Reads a number of seven bits in each byte, the lowest first; the sign is the lowest bit of all.
fn varint(body: &mut &[u8]) -> Option<i64> {
    let mut value = 0_u64;
    for place in 0..10 {
        let (&byte, rest) = body.split_first()?;
        *body = rest;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    None
}

fn put_varint(body: &mut BytesMut, value: i64) {
    let mut value = ((value << 1) ^ (value >> 63)) as u64;
    while value >= 0x80 {
        body.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    body.put_u8(value as u8);
}
