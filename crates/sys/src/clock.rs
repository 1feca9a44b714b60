//! The time of day where the machine is.

/// Minutes since midnight, in the time zone of the machine or of `TZ`.
pub fn local_minute() -> u16 {
    // SAFETY: `time` takes a null pointer, and then only returns the time.
    let now = unsafe { libc::time(std::ptr::null_mut()) };
    // SAFETY: all bytes zero is a valid `tm`: numbers, and a pointer that may be null.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid; the library takes its own lock to look at the time zone.
    let told = unsafe { libc::localtime_r(&now, &mut local) };
    if told.is_null() {
        return 0;
    }
    u16::try_from(local.tm_hour * 60 + local.tm_min).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_what_other_programs_say() {
        let date = || {
            let said = std::process::Command::new("date").arg("+%H %M").output().unwrap().stdout;
            let said = String::from_utf8(said).unwrap();
            let (hours, minutes) = said.trim().split_once(' ').unwrap();
            hours.parse::<u16>().unwrap() * 60 + minutes.parse::<u16>().unwrap()
        };
        let (before, own, after) = (date(), super::local_minute(), date());
        assert!(own == before || own == after, "{before} {own} {after}");
    }
}
