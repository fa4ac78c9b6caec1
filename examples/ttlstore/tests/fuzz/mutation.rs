//! What clients send, mutated: each input by a seed of its own.

use fastrand::Rng;

const TRAFFIC: [&[u8]; 4] = [
    include_bytes!("../traffic/node_redis.resp"),
    include_bytes!("../traffic/ioredis.resp"),
    include_bytes!("../traffic/redis_py.resp"),
    include_bytes!("../traffic/redis_py_async.resp"),
];

/// What lengths and counts become.
const NUMBERS: [&[u8]; 9] =
    [b"0", b"-1", b"1", b"65536", b"8388609", b"2147483648", b"9223372036854775807", b"x", b""];

/// Returns about a thousand bytes, at times many more.
pub(crate) fn mutated(random: &mut Rng) -> Vec<u8> {
    let mut bytes = piece(random).to_vec();
    for _ in 0..random.usize(..6) {
        let at = random.usize(..=bytes.len());
        match random.u32(..7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.u32(..8),
            1 => bytes.truncate(at),
            2 => drop(bytes.drain(at..bytes.len().min(at + random.usize(..40)))),
            3 => {
                let other = piece(random).to_vec();
                bytes.splice(at..at, other);
            }
            4 => {
                // A length or a count becomes another.
                let is_head = |byte: &u8| b"*$".contains(byte);
                let Some(head) = bytes[at..].iter().position(is_head) else { continue };
                let start = at + head + 1;
                let digits = bytes[start..].iter().take_while(|it| it.is_ascii_digit()).count();
                let number = NUMBERS[random.usize(..NUMBERS.len())];
                bytes.splice(start..start + digits, number.iter().copied());
            }
            5 => {
                // Large values, so that there is something to hold.
                let size = random.usize(..200_000);
                let key = random.u32(..100);
                let ttl = random.u32(1..1000).to_string();
                let value = "v".repeat(size);
                bytes.extend_from_slice(format!("set k{key} x\r\n").as_bytes());
                let head = format!("*5\r\n$3\r\nset\r\n$4\r\nk{key:03}\r\n${size}\r\n");
                let tail = format!("\r\n$2\r\npx\r\n${}\r\n{ttl}\r\n", ttl.len());
                bytes.extend_from_slice(
                    &[head.as_bytes(), value.as_bytes(), tail.as_bytes()].concat(),
                );
                bytes.extend_from_slice(format!("get k{key:03}\r\n").repeat(20).as_bytes());
            }
            _ => bytes = bytes.repeat(random.usize(1..4)),
        }
        bytes.truncate(1 << 20);
    }
    bytes
}

fn piece(random: &mut Rng) -> &'static [u8] {
    let traffic = TRAFFIC[random.usize(..TRAFFIC.len())];
    // Mostly at the start of a request.
    let mut start = random.usize(..traffic.len());
    if random.u32(..4) > 0 {
        start += traffic[start..].iter().position(|byte| *byte == b'*').unwrap_or(0);
    }
    &traffic[start..(start + random.usize(1..3000)).min(traffic.len())]
}
