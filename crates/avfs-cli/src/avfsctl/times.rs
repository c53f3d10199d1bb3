//! Times of day as an editor says them.

use jiff::civil::Time;
use jiff::{SignedDuration, Span, Timestamp, ZonedDateTime};

/// A time that was named, and how exactly: a minute, or a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: ZonedDateTime,
    pub(super) lasts: SignedDuration,
}

impl Moment {
    /// In milliseconds since 1970 UTC: from so long before until so long after.
    pub(super) fn around(&self, time: SignedDuration) -> (i64, i64) {
        let at = self.at.timestamp().as_millisecond();
        let around = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let lasts = i64::try_from(self.lasts.as_millis()).unwrap_or(0);
        (at.saturating_sub(around), at.saturating_add(lasts).saturating_add(around))
    }
}

const MINUTE: SignedDuration = SignedDuration::from_secs(60);
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// `21:14`, `21:14:05`: when it was that last; `2026-11-29 21:14`; `10m`, `2h`: so long ago.
pub(super) fn parse(text: &str, now: &ZonedDateTime) -> Result<Moment, String> {
    let expected = || {
        format!(
            "`{text}` is no time: say 21:14, 21:14:05, \"2026-11-29 21:14\", or how long ago, as 10m or 2h"
        )
    };
    let lasts = |time: &str| if time.matches(':').count() >= 2 { SECOND } else { MINUTE };
    let zone = now.time_zone().clone();
    if let Some((date, time)) = text.split_once([' ', 'T']) {
        let (date, clock) = (date.parse::<jiff::civil::Date>(), parse_clock(time));
        let at = date
            .ok()
            .zip(clock)
            .and_then(|(date, clock)| date.to_datetime(clock).to_zoned_datetime(zone).ok());
        return at.map(|at| Moment { at, lasts: lasts(time) }).ok_or_else(expected);
    }
    if let Some(clock) = parse_clock(text) {
        let on = |day: &ZonedDateTime| day.date().to_datetime(clock).to_zoned_datetime(zone.clone()).ok();
        let today = on(now).ok_or_else(expected)?;
        let yesterday = || now.yesterday().ok().and_then(|day| on(&day));
        let at = if today > *now { yesterday().ok_or_else(expected)? } else { today };
        return Ok(Moment { at, lasts: lasts(text) });
    }
    let ago: Span = text.parse().map_err(|_| expected())?;
    let at = now.checked_sub(ago.abs()).map_err(|_| expected())?;
    Ok(Moment { at, lasts: SignedDuration::ZERO })
}

fn parse_clock(text: &str) -> Option<Time> {
    text.contains(':').then(|| text.parse().ok()).flatten()
}

/// Now, here.
pub(super) fn now() -> ZonedDateTime {
    ZonedDateTime::now()
}

/// A time that was measured in milliseconds since 1970 UTC, as it was said here: with the day, where it is another one.
pub(super) fn shown(milliseconds: i64, now: &ZonedDateTime) -> String {
    let Ok(at) = Timestamp::from_millisecond(milliseconds) else { return "?".into() };
    let at = at.to_zoned_datetime(now.time_zone().clone());
    let format = if at.date() == now.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    at.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_when_it_was_last() {
        let now: ZonedDateTime = "2026-11-29T21:20:00[Europe/Berlin]".parse().unwrap();
        let told = |text: &str| parse(text, &now).map(|moment| (moment.at.to_string(), moment.lasts));
        let at = |time: &str| format!("2026-{time}+01:00[Europe/Berlin]");
        assert_eq!(told("21:14"), Ok((at("11-29T21:14:00"), MINUTE)));
        assert_eq!(told("21:14:05"), Ok((at("11-29T21:14:05"), SECOND)));
        assert_eq!(told("23:10"), Ok((at("11-28T23:10:00"), MINUTE)));
        assert_eq!(told("2026-11-27 08:00"), Ok((at("11-27T08:00:00"), MINUTE)));
        assert_eq!(told("10m"), Ok((at("11-29T21:10:00"), SignedDuration::ZERO)));
        assert_eq!(told("2h"), Ok((at("11-29T19:20:00"), SignedDuration::ZERO)));
        for wrong in ["", "25:00", "21:60", "yesterday", "2026-13-01 10:00", "10:00 2026-11-27"] {
            assert!(told(wrong).unwrap_err().contains("is no time"), "{wrong}");
        }
    }

    #[test]
    fn a_time_of_another_day_is_shown_with_it() {
        let now: ZonedDateTime = "2026-11-29T21:20:00[UTC]".parse().unwrap();
        let milliseconds = now.timestamp().as_millisecond();
        assert_eq!(shown(milliseconds - 5000, &now), "21:19:55");
        assert_eq!(shown(milliseconds - 86_400_000, &now), "2026-11-28 21:20:00");
        let moment = parse("21:14", &now).unwrap();
        assert_eq!(moment.around(MINUTE), (milliseconds - 420_000, milliseconds - 240_000));
    }
}
