//! The bodies that cost a parser most: as long as the longest answer that is read, in every order of rows.

/// The longest answer that is read by default.
pub(crate) const LONGEST: usize = 1 << 20;

/// As many rows as there is room for.
const ALL: usize = usize::MAX;

/// The order in which rows of one second each come.
#[derive(Clone, Copy, Debug)]
enum Order {
    Rising,
    Falling,
    /// First and last, second and last but one.
    Inwards,
    Scattered,
    Same,
    /// Each within the one before it, where rows say their end.
    Nested,
    /// Each around the one before it.
    Around,
}

const ORDERS: [Order; 7] =
    [Order::Rising, Order::Falling, Order::Inwards, Order::Scattered, Order::Same, Order::Nested, Order::Around];

impl Order {
    fn slot(self, i: usize, n: usize) -> (usize, usize) {
        let base = 1_700_000_000;
        let start = match self {
            Self::Rising => i,
            Self::Falling => n - i,
            Self::Inwards if i.is_multiple_of(2) => i,
            Self::Inwards => 2 * n - i,
            Self::Scattered => i * 7919 % 40_009,
            Self::Same => 0,
            Self::Nested => return (base + i, base + 86_000 - i),
            Self::Around => return (base + n - i, base + n + i + 1),
        };
        (base + start, base + start + 1)
    }
}

/// As many rows as there is room for, and no more than `most`.
fn rows(head: &str, tail: &str, most: usize, between: &str, row: impl Fn(usize, usize) -> String) -> Vec<u8> {
    let longest = row(1_000_000, 1_000_000).len() + between.len();
    let n = most.min((LONGEST - head.len() - tail.len()) / longest);
    let rows: Vec<_> = (0..n).map(|i| row(i, n)).collect();
    format!("{head}{}{tail}", rows.join(between)).into_bytes()
}

fn repeated(head: &str, part: &str, tail: &str) -> Vec<u8> {
    let n = (LONGEST - head.len() - tail.len()) / part.len();
    format!("{head}{}{tail}", part.repeat(n)).into_bytes()
}

/// What any parser may be given.
fn general() -> Vec<(String, Vec<u8>)> {
    let named = |name: &str, body| (name.to_owned(), body);
    vec![
        named("open brackets", repeated("", "[", "")),
        named("open objects", repeated("", "{\"a\":", "")),
        named("empty arrays", repeated("[", "[],", "[]]")),
        named("small arrays", repeated("[", "[0],", "[]]")),
        named("small objects", repeated("[", "{\"\":0},", "{}]")),
        named("small objects as data", repeated("{\"data\":[", "{\"\":0},", "{}]}")),
        named("empty objects as data", repeated("{\"data\":[", "{},", "{}]}")),
        named("zeros", repeated("[", "0,", "0]")),
        named("one text", repeated("\"", "x", "\"")),
        named("escapes", repeated("\"", "\\u0001", "\"")),
        named("one number", repeated("", "9", "")),
        named("words", repeated("\"", "a ", "\"")),
        named("white", repeated("", " ", "")),
        named("commas", repeated("time,value", ",", "\n1,2\n")),
        named("columns", repeated("time,value", ",a", "\n1,2\n")),
        named("quotes", repeated("time,value\n", "\"\"", "")),
        named("short rows", repeated("time,value\n", "0,1\n", "")),
        named("keys", rows("{", "}", ALL, ",", |i, _| format!("\"{:x}\":0", i & 0xf_ffff))),
        named("keys of rows", rows("[", "]", ALL, ",", |i, _| format!("{{\"{:x}\":0}}", i & 0xf_ffff))),
        named("an error", repeated("{\"error\":[", "{},", "0]}")),
        named("a message", repeated("{\"error\":1,\"message\":\"", "\u{e9}\u{a0}", "\"}")),
    ]
}

/// Returns the worst bodies for a target, with names.
pub(crate) fn bodies(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut bodies = general();
    for order in ORDERS {
        let mut add = |head: &str, tail: &str, between: &str, row: &dyn Fn(usize, usize) -> String| {
            for most in [20_000, ALL] {
                bodies.push((
                    format!("{order:?} {head:.24}{}", if most == ALL { " long" } else { "" }),
                    rows(head, tail, most, between, row),
                ));
            }
        };
        let slot = |i, n| order.slot(i, n);
        match target {
            "electricity_maps" => {
                let row = |i, n| format!("{{\"datetime\":{},\"carbonIntensity\":1}}", slot(i, n).0);
                add("{\"zone\":\"DE\",\"forecast\":[", "]}", ",", &row);
                add("{\"zone\":\"DE\",\"history\":[", "]}", ",", &row);
                add("{", "}", ",", &|i, _| format!("\"{}\":{{}}", i & 0xf_ffff));
            }
            "watttime" => {
                let head = "{\"meta\":{\"units\":\"lbs_co2_per_mwh\",\"region\":\"CAISO_NORTH\",\
                            \"data_point_period_seconds\":86400},\"data\":[";
                add(head, "]}", ",", &|i, n| format!("{{\"point_time\":{},\"value\":1}}", slot(i, n).0));
                add("{\"signal_types\":[{\"regions\":[", "]}]}", ",", &|_, _| "{}".to_owned());
            }
            "uk_carbon_intensity" => add("{\"data\":[", "]}", ",", &|i, n| {
                let (from, to) = slot(i, n);
                format!("{{\"from\":{from},\"to\":{to},\"intensity\":{{\"actual\":1}}}}")
            }),
            "carbon_aware_sdk" => {
                let row = |i, n| {
                    let (from, to) = slot(i, n);
                    format!("{{\"timestamp\":{from},\"duration\":{},\"value\":1}}", (to - from) / 60)
                };
                add("[{\"location\":\"eastus\",\"forecastData\":[", "]}]", ",", &row);
                add("[", "]", ",", &|i, n| format!("{{\"time\":{},\"rating\":1}}", slot(i, n).0));
                let place = |i, _| format!("\"{}\":{{\"latitude\":{}.5,\"longitude\":8}}", i & 0xf_ffff, i % 90);
                add("{", "}", ",", &place);
            }
            "energy_charts" | "price" => {
                let (column, tail) = match target {
                    "price" => ("price", "],\"unit\":\"EUR / MWh\"}"),
                    _ => ("co2eq", "]}"),
                };
                // Two arrays of one length.
                let n = 20_000;
                let join =
                    |value: &dyn Fn(usize) -> usize| (0..n).map(|i| value(i).to_string()).collect::<Vec<_>>().join(",");
                let (starts, values) = (join(&|i| slot(i, n).0), join(&|i| i % 500));
                let body = format!("{{\"unix_seconds\":[{starts}],\"{column}\":[{values}{tail}");
                bodies.push((format!("{order:?}"), body.into_bytes()));
            }
            "energinet" => add("{\"records\":[", "]}", ",", &|i, n| {
                let area = if i.is_multiple_of(2) { "DK1" } else { "DK2" };
                format!("{{\"PriceArea\":\"{area}\",\"Minutes5UTC\":{},\"CO2Emission\":1}}", slot(i, n).0)
            }),
            "file" | "price_file" => {
                let row = |i, n| {
                    let (from, to) = slot(i, n);
                    format!("{from},{to},1")
                };
                add("time,end,value\n", "\n", "\n", &row);
                add("time,value\n", "\n", "\n", &|i, n| format!("{},1", slot(i, n).0));
                add("[", "]", ",", &|i, n| format!("{{\"time\":{},\"value\":1}}", slot(i, n).0));
            }
            "stored" => {
                let row = |i: usize, n| {
                    let second = slot(i, n).0 % 100_000;
                    let text = |s: usize| {
                        format!("2026-08-{:02}T{:02}:{:02}:{:02}Z", 1 + s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60)
                    };
                    let (from, to) = (text(second), text(second + 1));
                    format!("[{{\"start\":\"{from}\",\"end\":\"{to}\"}},{{\"value\":1,\"origin\":\"forecast\"}}]")
                };
                let head = "{\"version\":1,\"forecast\":{\"zone\":\"DE\",\"source\":\"file\",\"kind\":\"average\",\
                    \"scope\":\"lifecycle\",\"issued_at\":\"2026-08-22T18:52:11Z\",\
                    \"retrieved_at\":\"2026-08-22T18:55:00Z\",\"actual\":{\"points\":[]},\"expected\":{\"points\":[";
                add(head, "]}}}", ",", &row);
                add("{\"asked\":[", "]}", ",", &|i, n| slot(i, n).0.to_string());
            }
            _ => {}
        }
    }
    bodies
}
