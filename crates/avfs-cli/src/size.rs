//! Sizes as people write them: `512M`, `8G`, `1T`, `4096`.

use units::Bytes;

/// Reads a number of bytes with an optional binary unit: K, M, G or T, also as `KiB` or `KB`, in any case.
///
/// # Errors
/// One line that says what was expected.
pub fn parse(text: &str) -> Result<Bytes, String> {
    let wrong = || format!("`{text}` is not a size: expected a number with K, M, G or T, like 512M");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).map(Bytes).ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_whatever_the_unit_is_called() {
        for text in ["8388608", "8192K", "8m", "8M", "8MB", "8MiB"] {
            assert_eq!(parse(text), Ok(Bytes::from_mib(8)), "{text}");
        }
        assert_eq!(parse("2T"), Ok(Bytes(2 << 40)));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "M", "-1", "1.5G", "8 M", "8X", "16777216T", "99999999999999999999"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
