//! Local date and time for chat templates, and Python's `strftime`. The page's time zone is the
//! only one supported.

/// Date and time in local time, for chat templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    /// The year.
    pub year: i32,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day of the month, 1 to 31.
    pub day: u32,
    /// Hour, 0 to 23.
    pub hour: u32,
    /// Minute, 0 to 59.
    pub minute: u32,
    /// Second, 0 to 60.
    pub second: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

impl LocalTime {
    /// Returns the current time: local in browsers, UTC in native builds, because std has no time
    /// zones.
    #[cfg(target_arch = "wasm32")]
    pub fn now() -> LocalTime {
        let date = js_sys::Date::new_0();
        LocalTime {
            year: i32::try_from(date.get_full_year()).unwrap_or(1970),
            month: date.get_month() + 1,
            day: date.get_date(),
            hour: date.get_hours(),
            minute: date.get_minutes(),
            second: date.get_seconds(),
        }
    }

    /// Returns the current time: local in browsers, UTC in native builds, because std has no time
    /// zones.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn now() -> LocalTime {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        LocalTime::from_unix(i64::try_from(since.as_secs()).unwrap_or(0))
    }

    /// Converts seconds since the Unix epoch, without a time zone.
    pub fn from_unix(seconds: i64) -> LocalTime {
        let days = seconds.div_euclid(86_400);
        let rest = seconds.rem_euclid(86_400) as u32;

        // Days since 1 March of year 0, in cycles of 400 years.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);

        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 {
            shifted_month + 3
        } else {
            shifted_month - 9
        } as u32;
        LocalTime {
            year: (year_of_era + era * 400 + i64::from(month <= 2)) as i32,
            month,
            day: (day_of_year - (153 * shifted_month + 2) / 5 + 1) as u32,
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }

    fn day_of_year(self) -> u32 {
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let lengths = [
            31,
            if leap { 29 } else { 28 },
            31,
            30,
            31,
            30,
            31,
            31,
            30,
            31,
            30,
            31,
        ];
        lengths
            .iter()
            .take(self.month.saturating_sub(1) as usize)
            .sum::<u32>()
            + self.day
    }

    /// Day of the week; 0 is Sunday.
    fn weekday(self) -> usize {
        let before = self.year - 1;
        let days =
            before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400);
        (days + self.day_of_year() as i32).rem_euclid(7) as usize
    }

    /// Formats the time like Python's `datetime.strftime` in the C locale.
    pub(super) fn strftime(self, format: &str) -> String {
        let mut out = String::new();
        let mut chars = format.chars();
        let hour12 = (self.hour + 11) % 12 + 1;
        let month = MONTHS
            .get(self.month.saturating_sub(1) as usize)
            .copied()
            .unwrap_or_default();
        let day = DAYS.get(self.weekday()).copied().unwrap_or_default();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut code = chars.next();
            let bare = code == Some('-');
            if bare {
                code = chars.next();
            }
            let two = |n: u32| {
                if bare {
                    n.to_string()
                } else {
                    format!("{n:02}")
                }
            };
            match code {
                Some('Y') => out += &self.year.to_string(),
                Some('y') => out += &two(self.year.rem_euclid(100) as u32),
                Some('m') => out += &two(self.month),
                Some('d') => out += &two(self.day),
                Some('e') => out += &format!("{:2}", self.day),
                Some('H') => out += &two(self.hour),
                Some('I') => out += &two(hour12),
                Some('M') => out += &two(self.minute),
                Some('S') => out += &two(self.second),
                Some('f') => out += "000000",
                Some('p') => out += if self.hour < 12 { "AM" } else { "PM" },
                Some('j') if bare => out += &self.day_of_year().to_string(),
                Some('j') => out += &format!("{:03}", self.day_of_year()),
                Some('B') => out += month,
                Some('b' | 'h') => out += month.get(..3).unwrap_or_default(),
                Some('A') => out += day,
                Some('a') => out += day.get(..3).unwrap_or_default(),
                Some('w') => out += &self.weekday().to_string(),
                Some('u') => out += &((self.weekday() + 6) % 7 + 1).to_string(),
                Some('F') => out += &self.strftime("%Y-%m-%d"),
                Some('T' | 'X') => out += &self.strftime("%H:%M:%S"),
                Some('R') => out += &self.strftime("%H:%M"),
                Some('D' | 'x') => out += &self.strftime("%m/%d/%y"),
                Some('c') => out += &self.strftime("%a %b %e %H:%M:%S %Y"),
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('Z' | 'z') => {}
                Some('%') => out.push('%'),
                Some(other) => out.extend(['%', other]),
                None => out.push('%'),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let clock = LocalTime::from_unix(1_741_944_413);
        assert_eq!(
            clock,
            LocalTime {
                year: 2025,
                month: 3,
                day: 14,
                hour: 9,
                minute: 26,
                second: 53
            }
        );
        assert_eq!(
            clock.strftime("%A %a %d %B %b %Y-%m-%d %H:%M:%S %j %-I%p %%"),
            "Friday Fri 14 March Mar 2025-03-14 09:26:53 073 9AM %"
        );
        assert_eq!(
            LocalTime::from_unix(951_782_400).strftime("%F %u"),
            "2000-02-29 2"
        );
        assert_eq!(
            LocalTime::from_unix(-1).strftime("%c"),
            "Wed Dec 31 23:59:59 1969"
        );
    }
}
