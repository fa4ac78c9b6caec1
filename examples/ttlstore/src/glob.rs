//! Patterns of SCAN and PSUBSCRIBE: `*`, `?`, `[a-z]`, `[^a]`, and `\` before what is literal.

/// Returns whether a name matches a pattern, in time proportional to the product of their lengths.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut position) = (0, 0);
    // What follows the last `*`, and how much of the name that has taken: only that is tried anew.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, position));
        } else if position == name.len() && at == pattern.len() {
            return true;
        } else if let Some(length) =
            name.get(position).and_then(|byte| element(&pattern[at..], *byte))
        {
            (at, position) = (at + length, position + 1);
        } else {
            match star {
                Some((after, taken)) if taken < name.len() => {
                    (at, position) = (after, taken + 1);
                    star = Some((at, position));
                }
                _ => return false,
            }
        }
    }
}

/// Returns the length of the pattern's first element, if it matches the byte.
fn element(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => class_of(class, byte).map(|length| length + 1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// Returns the length of a class, `]` included, if the byte is in it. A class that is not closed
/// ends with the pattern.
fn class_of(class: &[u8], byte: u8) -> Option<usize> {
    let negated = class.first() == Some(&b'^');
    let (mut at, mut found) = (usize::from(negated), false);
    loop {
        let (first, last, length) = match class[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => (literal, literal, 2),
            [first, b'-', last, ..] => (first.min(last), first.max(last), 3),
            [literal, ..] => (literal, literal, 1),
        };
        found |= (first..=last).contains(&byte);
        at += length;
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::matches;

    /// What matches, `tests/differential.rs` compares with a redis-server.
    #[test]
    fn a_pattern_of_many_stars_takes_no_ages() {
        assert!(!matches(("a*".repeat(500) + "c").as_bytes(), &[b'a'; 1000]));
    }
}
