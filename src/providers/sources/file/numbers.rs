//! Recognises column separators and decimal signs of CSV files.

use super::columns::Columns;
use super::settings::Settings;
use super::signal::FileSignal;

/// Possible column separators: the comma, and those that programs write where the comma is the decimal sign.
const SEPARATORS: [u8; 3] = [b',', b';', b'\t'];

/// Returns first the table without the optional line that names the separator ("sep=;"), second the separator: the
/// named one, else the first of [`SEPARATORS`] with which the header line has the required columns, else the one with
/// which it has the most columns.
pub(super) fn separator<'a, V: FileSignal>(bytes: &'a [u8], settings: &Settings) -> (&'a [u8], u8) {
    if let Some([said, rest @ ..]) = bytes.strip_prefix(b"sep=")
        && let Some(table) = rest.strip_prefix(b"\r\n").or_else(|| rest.strip_prefix(b"\n"))
    {
        return (table, *said);
    }
    let names = |separator: u8| -> Vec<String> {
        let mut reader = csv::ReaderBuilder::new().delimiter(separator).from_reader(bytes);
        reader.headers().map(|names| names.iter().map(|n| n.trim().to_owned()).collect()).unwrap_or_default()
    };
    let fits = |separator: &u8| Columns::find::<V>(&names(*separator), settings).is_ok();
    // Of equal numbers, `max_by_key` takes the last, but the first separator is wanted.
    let most = || SEPARATORS.into_iter().rev().max_by_key(|separator| names(*separator).len());
    (bytes, SEPARATORS.into_iter().find(fits).or_else(most).unwrap_or(b','))
}

/// The decimal sign of a file, according to the numbers read so far.
#[derive(Debug)]
pub(super) struct Numbers {
    may_have_commas: bool,
    has_commas: bool,
    has_points: bool,
}

impl Numbers {
    /// Makes the state before the first number. Decimal commas are accepted if `separator` is not a comma.
    pub(super) fn separated_by(separator: u8) -> Self {
        Self { may_have_commas: separator != b',', has_commas: false, has_points: false }
    }

    /// Reads a number with either decimal sign, which must be the same throughout the file.
    ///
    /// # Errors
    /// If the text is not a number; the error is a hint to add to the caller's message, and may be empty.
    pub(super) fn read(&mut self, text: &str) -> Result<f64, &'static str> {
        let (comma, point) = (text.contains(','), text.contains('.'));
        if comma && (point || !self.may_have_commas || text.matches(',').count() > 1) {
            return Err(" (write a decimal point, and nothing between thousands)");
        }
        self.has_commas |= comma;
        self.has_points |= point;
        if self.has_commas && self.has_points {
            return Err(" (some rows have decimal commas and others decimal points; use one)");
        }
        text.replace(',', ".").parse().map_err(|_| "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattune_core::units::GramsPerKwh;

    #[test]
    fn the_separator_is_found_in_the_first_line() {
        let found = |text: &'static str| separator::<GramsPerKwh>(text.as_bytes(), &Settings::default());
        for (text, right) in [
            ("time,value\n", b','),
            ("time;value\n", b';'),
            ("time\tvalue\n", b'\t'),
            ("\"time\";\"value\";\"a,b\"\n", b';'),
            ("a;b;c,d\n", b';'),
            ("nonsense\n", b','),
            ("", b','),
        ] {
            assert_eq!(found(text), (text.as_bytes(), right), "{text}");
        }
        assert_eq!(found("sep=;\r\ntime;value\n"), (b"time;value\n".as_slice(), b';'));
    }

    #[test]
    fn decimal_commas_are_read_where_they_are_unambiguous() {
        let mut german = Numbers::separated_by(b';');
        assert_eq!((german.read("369,1"), german.read("12"), german.read("-0,5")), (Ok(369.1), Ok(12.0), Ok(-0.5)));
        assert!(german.read("1.234,5").is_err() && german.read("1,234,5").is_err());
        assert!(german.read("1.234").expect_err("which?").contains("decimal commas and others decimal points"));
        let mut english = Numbers::separated_by(b';');
        assert_eq!(english.read("369.1"), Ok(369.1));
        assert!(english.read("369,1").is_err());
        assert!(Numbers::separated_by(b',').read("369,1").expect_err("thousands?").contains("write a decimal point"));
    }
}
