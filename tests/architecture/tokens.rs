//! Sources as tokens, so that comments and texts say what they like.

/// A word, `::`, or a single sign, and its line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
}

/// Words that may stand before a path that begins with `::`, and are no part of it.
const KEYWORDS: [&str; 14] =
    ["use", "as", "dyn", "else", "for", "if", "impl", "in", "let", "match", "move", "mut", "return", "while"];

impl Token {
    /// Whether it can be a part of a path.
    pub(super) fn is_name(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_') && !KEYWORDS.contains(&self.text.as_str())
    }
}

/// The code of a text: comments and the contents of literals are left out.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut out, mut i, mut line) = (Vec::new(), 0, 1);
    let peek = |i: usize| chars.get(i).copied().unwrap_or('\0');
    while i < chars.len() {
        let start = i;
        match (peek(i), peek(i + 1)) {
            ('/', '/') => i += chars[i..].iter().take_while(|c| **c != '\n').count(),
            ('/', '*') => i = block_comment_end(&chars, i),
            ('"', _) => i = string_end(&chars, i),
            ('\'', '\\') => i += 3 + chars[i + 3..].iter().take_while(|c| **c != '\'').count(),
            ('\'', _) if peek(i + 2) == '\'' => i += 2,
            (':', ':') => {
                out.push(Token { text: "::".into(), line });
                i += 1;
            }
            (c, _) if c.is_alphanumeric() || c == '_' => {
                let word: String = chars[i..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
                i += word.chars().count();
                let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
                if matches!(word.as_str(), "r" | "br" | "cr") && peek(i + hashes) == '"' {
                    i = raw_string_end(&chars, i + hashes, hashes);
                } else {
                    i -= 1;
                    out.push(Token { text: word, line });
                }
            }
            (c, _) if c.is_whitespace() => {}
            (c, _) => out.push(Token { text: c.into(), line }),
        }
        i = i.min(chars.len() - 1);
        line += chars[start..=i].iter().filter(|c| **c == '\n').count();
        i += 1;
    }
    out
}

/// The place of a block comment's last sign; they nest.
fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') if depth == 1 => return i + 1,
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
    }
    chars.len()
}

/// The place of a string's closing quote.
fn string_end(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i
}

/// The place of a raw string's last `#`, or of its closing quote.
fn raw_string_end(chars: &[char], quote: usize, hashes: usize) -> usize {
    let closes =
        |i: usize| chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    (quote + 1..chars.len()).find(|i| closes(*i)).map_or(chars.len(), |i| i + hashes)
}

/// Takes away the items under `#[cfg(test)]`.
pub(super) fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut out, mut i) = (Vec::new(), 0);
    while i < tokens.len() {
        if tokens[i..].len() >= MARK.len() && tokens[i..].iter().zip(MARK).all(|(t, m)| t.text == m) {
            i = item_end(&tokens, i + MARK.len());
        } else {
            out.push(tokens[i].clone());
            i += 1;
        }
    }
    out
}

/// The place after an item: after its `;`, or after the braces that it ends with.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let (mut depth, mut i) = (0_usize, start);
    while i < tokens.len() {
        match tokens[i].text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth -= 1,
            "}" if depth == 1 => return i + 1,
            "}" => depth -= 1,
            ";" if depth == 0 => return i + 1,
            _ => {}
        }
        i += 1;
    }
    i
}

#[test]
fn comments_and_literals_are_left_out() {
    let table = [
        ("a::b /* c /* d */ e */ f // g", "a :: b f"),
        (r##"a "b \" c" r#"d " e"# br"f" g"##, "a g"),
        (r"'a' '\n' '\'' '\u{1f}' &'a b 'static", "& ' a b ' static"),
    ];
    for (text, expected) in table {
        let words: Vec<String> = tokens(text).into_iter().map(|t| t.text).collect();
        assert_eq!(words.join(" "), expected, "{text}");
    }
}

#[test]
fn lines_are_counted_through_comments_and_literals() {
    let found = tokens("a /* \n */ b \"\n\n\" c");
    assert_eq!(found.iter().map(|t| t.line).collect::<Vec<_>>(), [1, 2, 4]);
}

#[test]
fn only_items_under_test_are_taken_away() {
    let code = "#[cfg(test)]\nuse a::b;\nfn c(x: [u8; 3]) {}\n#[cfg(test)]\nmod tests { fn d() {} }\nfn e() {}";
    let words: Vec<String> = without_tests(tokens(code)).into_iter().map(|t| t.text).collect();
    assert_eq!(words.join(" "), "fn c ( x : [ u8 ; 3 ] ) { } fn e ( ) { }");
}
