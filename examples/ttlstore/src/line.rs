//! A line typed by hand: its words, which may be quoted as in redis-cli.

use std::ops::Range;

/// Appends the words of a line to `text`, and where each of them lies there to `words`. Returns
/// false if a quote is not closed, or something follows it without a blank between.
///
/// Between double quotes, `\n`, `\r`, `\t`, `\a`, `\b` and `\x41` are bytes, and any other byte
/// after a backslash is itself; between single quotes, only `\'` is a quote.
pub(crate) fn split(line: &[u8], text: &mut Vec<u8>, words: &mut Vec<Range<usize>>) -> bool {
    let mut rest = line;
    loop {
        let blanks = rest.iter().take_while(|byte| is_blank(**byte)).count();
        rest = &rest[blanks..];
        if rest.is_empty() {
            return true;
        }
        let start = text.len();
        let Some(after) = word(rest, text) else { return false };
        words.push(start..text.len());
        rest = after;
    }
}

/// Appends the word with which `line` begins, and returns what follows it.
fn word<'a>(line: &'a [u8], text: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut rest = line;
    while let [byte, after @ ..] = rest {
        rest = match byte {
            b'"' => return double_quoted(after, text),
            b'\'' => return single_quoted(after, text),
            // Not at any blank: so Redis reads it.
            b' ' | b'\t' | b'\r' | b'\n' => return Some(rest),
            byte => {
                text.push(*byte);
                after
            }
        };
    }
    Some(rest)
}

fn double_quoted<'a>(line: &'a [u8], text: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut rest = line;
    loop {
        let (byte, after) = match rest {
            [b'\\', b'x', high, low, after @ ..] if hex(*high).is_some() && hex(*low).is_some() => {
                (hex(*high)? * 16 + hex(*low)?, after)
            }
            [b'\\', escaped, after @ ..] => (unescaped(*escaped), after),
            [b'"', after @ ..] => return closed(after),
            [byte, after @ ..] => (*byte, after),
            [] => return None,
        };
        text.push(byte);
        rest = after;
    }
}

fn single_quoted<'a>(line: &'a [u8], text: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut rest = line;
    loop {
        let (byte, after) = match rest {
            [b'\\', b'\'', after @ ..] => (b'\'', after),
            [b'\'', after @ ..] => return closed(after),
            [byte, after @ ..] => (*byte, after),
            [] => return None,
        };
        text.push(byte);
        rest = after;
    }
}

/// Returns what follows a quoted word, if it may follow one.
fn closed(after: &[u8]) -> Option<&[u8]> {
    after.first().is_none_or(|byte| is_blank(*byte)).then_some(after)
}

fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// Returns whether C's `isspace` takes it for a blank, which knows the vertical tab as well.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

#[cfg(test)]
mod tests {
    use super::split;

    fn words(line: &str) -> Option<Vec<Vec<u8>>> {
        let (mut text, mut words) = (Vec::new(), Vec::new());
        let is_whole = split(line.as_bytes(), &mut text, &mut words);
        is_whole.then(|| words.iter().map(|word| text[word.clone()].to_vec()).collect())
    }

    #[test]
    fn quotes_and_escapes() {
        let lines: [(&str, &[&[u8]]); 9] = [
            ("", &[]),
            (" \t\u{b}\r", &[]),
            (" set  k\tv\r", &[b"set", b"k", b"v"]),
            (r#"set k "a b""#, &[b"set", b"k", b"a b"]),
            (r#"a"b c" '' """#, &[b"ab c", b"", b""]),
            (r#""\n\r\t\a\b\x41\xfF\xg\"\\""#, &[b"\n\r\t\x07\x08A\xffxg\"\\"]),
            (r"'a\'b\n' \n", &[br"a'b\n", br"\n"]),
            (r#""it's" 'a "b"'"#, &[b"it's", b"a \"b\""]),
            ("\u{0}\u{b} \u{b}a", &[b"\0\x0b", b"a"]),
        ];
        for (line, wanted) in lines {
            assert_eq!(words(line).expect(line), wanted, "{line}");
        }
        for line in [r#"""#, r#"set k "a"#, "'", r#""a"b"#, "'a'b", r#""a\"#, r#""a\""#, r"'a\'"] {
            assert_eq!(words(line), None, "{line}");
        }
    }
}
