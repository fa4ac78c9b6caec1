//! The patterns of KEYS: `*`, `?`, `[a-z]`, `[^a]`, `\` before what is meant literally.

/// Returns whether a key matches a pattern.
pub fn matches(pattern: &[u8], key: &[u8]) -> bool {
    let (mut at, mut pos) = (0, 0);
    // Where the last `*` was, and how much of the key it has taken: only that one is tried anew.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, pos));
            at += 1;
            continue;
        }
        if pos == key.len() && at == pattern.len() {
            return true;
        }
        let step = key.get(pos).and_then(|byte| one(&pattern[at..], *byte));
        match (step, star) {
            (Some(taken), _) => (at, pos) = (at + taken, pos + 1),
            (None, Some((after, taken))) if taken < key.len() => {
                star = Some((after, taken + 1));
                (at, pos) = (after, taken + 1);
            }
            (None, _) => return false,
        }
    }
}

/// Returns how many bytes the pattern's first element has, if it matches the byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => class_has(class, byte).map(|length| length + 1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// Returns the length of a class, `]` included, if it contains the byte. A class that is not closed
/// ends with the pattern.
fn class_has(class: &[u8], byte: u8) -> Option<usize> {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match class[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                found |= literal == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                found |= (from.min(to)..=from.max(to)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= literal == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        let yes = [
            ("*", ""),
            ("a*c", "abbc"),
            ("a*b*c", "axbxbxc"),
            ("h?llo", "hello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-c]llo", "hbllo"),
            ("h[c-a]llo", "hbllo"),
            (r"a\*b", "a*b"),
            (r"[\]]", "]"),
            ("[ab", "a"),
            ("", ""),
        ];
        for (pattern, key) in yes {
            assert!(matches(pattern.as_bytes(), key.as_bytes()), "{pattern} {key}");
        }
        let no = [("", "a"), ("a", ""), ("a*c", "abb"), ("h[^e]llo", "hello"), (r"a\*b", "axb")];
        for (pattern, key) in no {
            assert!(!matches(pattern.as_bytes(), key.as_bytes()), "{pattern} {key}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = b"a*".repeat(50);
        assert!(!matches(&[&pattern[..], b"b"].concat(), &b"a".repeat(5000)));
    }
}
