//! Made-up bodies: the documented ones of `corpus/`, mutated as broken connections, careless servers and attackers do
//! it. The same number gives the same bodies, everywhere.

use std::path::Path;

use serde_json::{Map, Value};

/// SplitMix64.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `n`, or 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % (n.max(1) as u64)).unwrap_or(0)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn span(&mut self, length: usize, most: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        start..(start + self.below(most + 1)).min(length)
    }
}

/// A documented body.
pub(crate) struct Seed {
    /// Place of its target among all.
    pub(crate) target: usize,
    pub(crate) bytes: Vec<u8>,
    tree: Option<Value>,
}

/// Reads the bodies in `corpus/`, whose folders bear the names of the targets.
pub(crate) fn seeds(targets: &[&str]) -> Vec<Seed> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let of = |(target, name): (usize, &&str)| {
        let folder = std::fs::read_dir(corpus.join(name)).expect("a folder for each target");
        let mut files: Vec<_> = folder.map(|entry| entry.expect("readable").path()).collect();
        files.sort();
        assert!(!files.is_empty(), "no body for {name}");
        files.into_iter().map(move |file| {
            let bytes = std::fs::read(file).expect("readable");
            Seed { target, tree: serde_json::from_slice(&bytes).ok(), bytes }
        })
    };
    targets.iter().enumerate().flat_map(of).collect()
}

const NUMBERS: [&str; 24] = [
    "0",
    "-0",
    "-1",
    "1e308",
    "-1e308",
    "1e309",
    "1e-320",
    "NaN",
    "Infinity",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1e400",
    "20000.000001",
    "253402300799",
    "1e11",
    "99999999999999",
    "0.1e1",
    "00",
    "+1",
    "1_000",
    "0x10",
    "1e",
    "4102444800000",
];

const TEXTS: [&str; 22] = [
    "",
    " ",
    "null",
    "NaN",
    "-inf",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "-262143-01-01T00:00:00Z",
    "+262142-12-31T23:59:59.999999999Z",
    "2199-12-31T23:59:59.999999999-23:59",
    "1970-01-01T00:00:00+23:59",
    "2016-12-31T23:59:60Z",
    "2026-08-22T19:00:00.000000000000000001Z",
    "2026-02-30T00:00Z",
    "1969-12-31T23:59:59Z",
    "99999.23:59:59",
    "65535.65535:65535:1e308",
    "255_minutes",
    "\u{0}\u{1b}[31m",
    "ẞ\u{202e}\u{feff}é",
    "Wed, 31 Dec 262142 23:59:59 GMT",
    "1e9999",
];

/// A mutated body of a seed; now and then a very long one.
pub(crate) fn mutated(seed: &Seed, all: &[Seed], dice: &mut Dice) -> Vec<u8> {
    let mut body = match &seed.tree {
        Some(tree) if !dice.one_in(3) => {
            let mut tree = tree.clone();
            for _ in 0..=dice.below(4) {
                change(&mut tree, dice);
            }
            tree.to_string().into_bytes()
        }
        _ => seed.bytes.clone(),
    };
    if dice.one_in(2) {
        for _ in 0..=dice.below(4) {
            edit(&mut body, all, dice);
        }
    }
    body
}

/// Changes one value of a tree.
fn change(tree: &mut Value, dice: &mut Dice) {
    let other = pick(tree, dice).clone();
    let value = pick(tree, dice);
    match dice.below(12) {
        0 => *value = other,
        1 => *value = Value::Null,
        2 => *value = Value::Bool(dice.one_in(2)),
        3 => *value = Value::Array(Vec::new()),
        4 => *value = Value::Object(Map::new()),
        5 => *value = dice.of(&TEXTS).into(),
        6 => *value = serde_json::from_str(dice.of(&NUMBERS)).unwrap_or_else(|_| Value::from(i64::MIN)),
        7 => *value = Value::Array(vec![std::mem::take(value)]),
        8 => *value = Value::from_iter([("data", std::mem::take(value))]),
        9 => nudge(value, dice),
        _ => resize(value, dice),
    }
}

/// Any value of a tree, those deep down as likely as those at the top.
fn pick<'a>(tree: &'a mut Value, dice: &mut Dice) -> &'a mut Value {
    let mut value = tree;
    loop {
        let within = match &*value {
            Value::Array(entries) => entries.len(),
            Value::Object(fields) => fields.len(),
            _ => 0,
        };
        if within == 0 || dice.one_in(5) {
            return value;
        }
        let at = dice.below(within);
        value = match value {
            Value::Array(entries) => &mut entries[at],
            Value::Object(fields) => fields.values_mut().nth(at).expect("counted"),
            other => return other,
        };
    }
}

/// A little off, or text in place of a number.
fn nudge(value: &mut Value, dice: &mut Dice) {
    if let Some(number) = value.as_f64() {
        let factor = dice.of(&[-1.0, 0.5, 1.000_001, 10.0, 1e3, 1e6, 1e-3]);
        *value = if dice.one_in(4) { number.to_string().into() } else { (number * factor).into() };
    } else if let Some(text) = value.as_str() {
        let text = text.replace(dice.of(&["0", "1", "2", ":", "T", "Z", "-"]), dice.of(&["9", "", "00", "+", "z"]));
        *value = text.into();
    }
}

/// Fewer or more entries, in another order; one time in many a great many.
fn resize(value: &mut Value, dice: &mut Dice) {
    let many = if dice.one_in(400) { 21_000 } else { 12 };
    match value {
        Value::Array(entries) if !entries.is_empty() => match dice.below(4) {
            0 => entries.reverse(),
            1 => drop(entries.remove(dice.below(entries.len()))),
            2 => {
                let other = dice.below(entries.len());
                entries.swap(0, other);
            }
            _ => {
                let copy = entries[dice.below(entries.len())].clone();
                let times = dice.below(many);
                // Of a copy that is long itself, a few are enough.
                let times = if weight(&copy) > 40 { times.min(12) } else { times };
                entries.extend((0..times).map(|i| later(&copy, i)));
            }
        },
        Value::Object(fields) if !fields.is_empty() => {
            let name = fields.keys().nth(dice.below(fields.len())).expect("counted").clone();
            if dice.one_in(2) {
                fields.remove(&name);
            } else {
                let copy = fields[&name].clone();
                let times = if weight(&copy) > 40 { 2 } else { dice.below(many) };
                fields.extend((0..times).map(|i| (format!("{name}{i}"), copy.clone())));
            }
        }
        // Up to about a mebibyte.
        Value::String(text) => *text = text.repeat(dice.below(many.min((1 << 20) / text.len().max(1)))),
        other => *other = Value::Array(vec![Value::from(7); dice.below(many)]),
    }
}

fn weight(value: &Value) -> usize {
    1 + match value {
        Value::Array(entries) => entries.iter().map(weight).sum(),
        Value::Object(fields) => fields.values().map(weight).sum(),
        _ => 0,
    }
}

/// The same row with other numbers and minutes.
fn later(row: &Value, i: usize) -> Value {
    match row {
        Value::Number(number) => number.as_f64().map_or(Value::Null, |n| Value::from(n + i as f64)),
        Value::Object(fields) => Value::from_iter(fields.iter().map(|(name, value)| {
            let time = value.as_str().filter(|text| text.len() > 15 && text.as_bytes()[13] == b':');
            let moved = time.map(|text| format!("{}{:02}:{:02}{}", &text[..11], i / 60 % 24, i % 60, &text[16..]));
            (name.clone(), moved.map_or_else(|| value.clone(), Value::from))
        })),
        other => other.clone(),
    }
}

/// Changes a few bytes, whatever they mean.
fn edit(body: &mut Vec<u8>, all: &[Seed], dice: &mut Dice) {
    let length = body.len();
    match dice.below(12) {
        0 | 1 if length > 0 => {
            let at = dice.below(length);
            body[at] ^= 1 << dice.below(8);
        }
        2 if length > 0 => {
            let at = dice.below(length);
            body[at] = dice.of(b"{}[]\",:0-.eE\\ \n\xff\x00\xef");
        }
        3 => body.truncate(dice.below(length + 1)),
        4 => {
            let copy = body[dice.span(length, 120)].to_vec();
            let at = dice.below(length + 1);
            let times = if dice.one_in(500) { 2000 } else { 1 + dice.below(3) };
            body.splice(at..at, copy.repeat(times));
        }
        5 => drop(body.drain(dice.span(length, 60))),
        6 | 7 => {
            let digits: Vec<_> = (0..length).filter(|i| body[*i].is_ascii_digit()).collect();
            if !digits.is_empty() {
                let start = dice.of(&digits);
                let end = (start..length).find(|i| !body[*i].is_ascii_digit()).unwrap_or(length);
                let extreme = dice.of(&NUMBERS);
                body.splice(start..end, extreme.bytes());
            }
        }
        8 => {
            let at = dice.below(length + 1);
            body.splice(
                at..at,
                dice.of(&[&b"\xff\xfe"[..], b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]).to_vec(),
            );
        }
        9 => {
            let other = &all[dice.below(all.len())].bytes;
            let (head, tail) = (dice.below(length + 1), dice.below(other.len() + 1));
            body.truncate(head);
            body.extend_from_slice(&other[tail..]);
        }
        10 if dice.one_in(100) => {
            let at = dice.below(length + 1);
            let (open, close) = dice.of(&[("[", "]"), ("{\"data\":", "}"), ("[{\"a\":", "}]")]);
            let depth = dice.of(&[100, 127, 128, 10_000]);
            let nested = [open.repeat(depth), "0".to_owned(), close.repeat(depth)].concat();
            body.splice(at..at, nested.into_bytes());
        }
        11 => {
            let prefix = dice.of(&["\u{feff}", " \n\t", "{", "[", "\r\n", "time,value\n"]);
            body.splice(0..0, prefix.bytes());
        }
        _ => {
            let text = dice.of(&TEXTS);
            let at = dice.below(length + 1);
            body.splice(at..at, text.bytes());
        }
    }
}
