//! Parser for JSON as Python's `json` accepts it: also `NaN`, `Infinity` and `-Infinity`. Errors are Python's.

use std::collections::HashMap;

/// Depth of nested lists and objects at which the parser stops.
const MAX_DEPTH: u32 = 500;

/// A JSON value. Whole numbers beyond the range of `i128` become the nearest bound of that range.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Value>),
    Object(HashMap<String, Value>),
}

/// Reason why a body is not JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    /// A syntax error: the position in characters, and Python's message.
    Syntax(usize, &'static str),
    /// The body is not UTF-8, or too deeply nested.
    Unreadable,
}

/// Parses a body.
pub(super) fn parse(body: &[u8]) -> Result<Value, Invalid> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let text = std::str::from_utf8(body).map_err(|_| Invalid::Unreadable)?;
    let mut parser = Parser { text: text.chars().collect(), at: 0 };
    parser.skip_space();
    let value = parser.value(0)?;
    parser.skip_space();
    if parser.at < parser.text.len() {
        return Err(Invalid::Syntax(parser.at, "Extra data"));
    }
    Ok(value)
}

struct Parser {
    text: Vec<char>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.at += 1;
        }
    }

    /// Returns true and skips the word if the text continues with it.
    fn skip(&mut self, word: &str) -> bool {
        let found = word.chars().enumerate().all(|(i, c)| self.text.get(self.at + i) == Some(&c));
        if found {
            self.at += word.len();
        }
        found
    }

    fn value(&mut self, depth: u32) -> Result<Value, Invalid> {
        if depth > MAX_DEPTH {
            return Err(Invalid::Unreadable);
        }
        let words = [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("NaN", Value::Float(f64::NAN)),
            ("Infinity", Value::Float(f64::INFINITY)),
            ("-Infinity", Value::Float(f64::NEG_INFINITY)),
        ];
        match self.peek() {
            Some('"') => self.string().map(Value::Text),
            Some('{') => self.object(depth),
            Some('[') => self.list(depth),
            _ => match words.into_iter().find(|(word, _)| self.skip(word)) {
                Some((_, value)) => Ok(value),
                None => self.number().ok_or(Invalid::Syntax(self.at, "Expecting value")),
            },
        }
    }

    fn object(&mut self, depth: u32) -> Result<Value, Invalid> {
        let mut fields = HashMap::new();
        self.at += 1;
        self.skip_space();
        if self.skip("}") {
            return Ok(Value::Object(fields));
        }
        loop {
            if self.peek() != Some('"') {
                return Err(Invalid::Syntax(self.at, "Expecting property name enclosed in double quotes"));
            }
            let name = self.string()?;
            self.skip_space();
            if !self.skip(":") {
                return Err(Invalid::Syntax(self.at, "Expecting ':' delimiter"));
            }
            self.skip_space();
            let value = self.value(depth + 1)?;
            fields.insert(name, value);
            self.skip_space();
            if self.skip("}") {
                return Ok(Value::Object(fields));
            }
            self.comma()?;
        }
    }

    fn list(&mut self, depth: u32) -> Result<Value, Invalid> {
        let mut entries = Vec::new();
        self.at += 1;
        self.skip_space();
        if self.skip("]") {
            return Ok(Value::List(entries));
        }
        loop {
            entries.push(self.value(depth + 1)?);
            self.skip_space();
            if self.skip("]") {
                return Ok(Value::List(entries));
            }
            self.comma()?;
        }
    }

    fn comma(&mut self) -> Result<(), Invalid> {
        if !self.skip(",") {
            return Err(Invalid::Syntax(self.at, "Expecting ',' delimiter"));
        }
        self.skip_space();
        Ok(())
    }

    /// Reads a number: as in JSON, without leading zeros. `None` if there is none.
    fn number(&mut self) -> Option<Value> {
        let digits = |from: usize| self.text.iter().skip(from).take_while(|c| c.is_ascii_digit()).count();
        let is = |at: usize, allowed: &str| self.text.get(at).is_some_and(|c| allowed.contains(*c));
        let first = self.at + usize::from(is(self.at, "-"));
        let mut end = match self.text.get(first) {
            Some('0') => first + 1,
            Some('1'..='9') => first + digits(first),
            _ => return None,
        };
        let mut is_whole = true;
        if is(end, ".") && digits(end + 1) > 0 {
            (end, is_whole) = (end + 1 + digits(end + 1), false);
        }
        if is(end, "eE") {
            let from = end + 1 + usize::from(is(end + 1, "+-"));
            if digits(from) > 0 {
                (end, is_whole) = (from + digits(from), false);
            }
        }
        let text: String = self.text[self.at..end].iter().collect();
        self.at = end;
        if !is_whole {
            return text.parse().ok().map(Value::Float);
        }
        let bound = if text.starts_with('-') { i128::MIN } else { i128::MAX };
        Some(Value::Int(text.parse().unwrap_or(bound)))
    }

    fn string(&mut self) -> Result<String, Invalid> {
        let begin = self.at;
        let unterminated = Invalid::Syntax(begin, "Unterminated string starting at");
        let mut text = String::new();
        self.at += 1;
        loop {
            let c = self.peek().ok_or_else(|| unterminated.clone())?;
            self.at += 1;
            match c {
                '"' => return Ok(text),
                '\\' => {
                    let escape = self.peek().ok_or_else(|| unterminated.clone())?;
                    self.at += 1;
                    text.push(match escape {
                        '"' | '\\' | '/' => escape,
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        'n' => '\n',
                        'r' => '\r',
                        't' => '\t',
                        'u' => self.unicode()?,
                        _ => return Err(Invalid::Syntax(self.at - 2, "Invalid \\escape")),
                    });
                }
                c if u32::from(c) < 0x20 => return Err(Invalid::Syntax(self.at - 1, "Invalid control character at")),
                c => text.push(c),
            }
        }
    }

    /// Reads the rest of an escape `\uXXXX`, and of a second one if they are a pair. Half a pair becomes the
    /// replacement character.
    fn unicode(&mut self) -> Result<char, Invalid> {
        let high = self.four_digits()?;
        if (0xd800..0xdc00).contains(&high) && self.text.get(self.at..self.at + 2) == Some(&['\\', 'u']) {
            let before = self.at;
            self.at += 2;
            let low = self.four_digits()?;
            if (0xdc00..0xe000).contains(&low) {
                let code = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = before;
        }
        Ok(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn four_digits(&mut self) -> Result<u32, Invalid> {
        let digits = self.text.get(self.at..self.at + 4).unwrap_or_default();
        let read =
            digits.iter().try_fold(0, |code, c| Some(code * 16 + c.to_digit(16)?)).filter(|_| !digits.is_empty());
        let code = read.ok_or(Invalid::Syntax(self.at - 1, "Invalid \\uXXXX escape"))?;
        self.at += 4;
        Ok(code)
    }
}
