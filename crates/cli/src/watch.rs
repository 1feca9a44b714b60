//! Watching a job: progress, rate, time to go. Ctrl-C stops the job, and the volume stays as it
//! was.

use crate::show::unexpected;
use forebay_api::hint::When;
use forebay_api::reply::{Job, JobState};
use forebay_api::request::Named;
use forebay_api::tiers::{TierEvacuation, TierPart, TiersShown};
use forebay_api::{ApiError, Body, Client, ErrorKind, Hint, Outcome, Request};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(100);
/// An evacuation of which nothing moves for so long is not waited for.
const STUCK: Duration = Duration::from_secs(10);

/// Whether somebody wants to stop. Ctrl-C does not end the process; the second one does, where the
/// daemon does not answer.
pub struct Interrupts(Arc<AtomicBool>);

impl Interrupts {
    /// Before the job is asked for: one that nobody watches goes on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn catch() -> Result<Interrupts, ApiError> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let ends = ErrorKind::Cancelled.exit_code();
            signal_hook::flag::register_conditional_shutdown(
                signal,
                ends.into(),
                Arc::clone(&stop),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| ApiError::failed(format!("catch signal {signal}: {error}")))?;
        }
        Ok(Interrupts(stop))
    }

    /// Whether it came to that.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Waits for the job of `volume`, and shows how far it is on a terminal.
///
/// # Errors
/// The job's own error; [`ErrorKind::Cancelled`] after Ctrl-C.
pub fn job(
    client: &Client,
    volume: &str,
    interrupts: &Interrupts,
) -> Result<(Job, Outcome), ApiError> {
    let bar = bar(volume);
    let named = || Named { name: volume.to_string() };
    let mut cancelled = false;
    loop {
        if interrupts.came() && !cancelled {
            cancelled = true;
            client.ask(&Request::JobCancel(named()))?;
        }
        let body = client.ask(&Request::Job(named()))?;
        let Body::Job { job: Some(job) } = body else { return Err(unexpected(&body)) };
        show(&bar, &job);
        match job.progress.clone() {
            JobState::Running => std::thread::sleep(POLL),
            JobState::Done { outcome } => {
                bar.finish_and_clear();
                return Ok((job, outcome));
            }
            JobState::Failed { error } => {
                bar.finish_and_clear();
                return Err(explain(error, &job));
            }
        }
    }
}

/// What is told of an evacuation that does not go on.
fn stuck(shown: &TiersShown, left: u64) -> ApiError {
    let tiers = &shown.tiers;
    let why = match (tiers.paused, tiers.window, tiers.pending.first()) {
        (true, ..) => "moves are paused".to_string(),
        (_, Some(window), _) if tiers.outside_window => {
            format!("moves wait for their time, {window}")
        }
        (_, _, Some(pending)) => pending.reason.clone(),
        (_, _, None) => "clients may keep the devices busy".to_string(),
    };
    let left = forebay_api::size::human(left);
    let seconds = STUCK.as_secs();
    ApiError::failed(format!(
        "nothing has moved for {seconds} s, and {left} still have to: {why}; forebayd goes on \
         trying"
    ))
}

/// Waits until nothing is left on what is being emptied of a volume's tiers. Ctrl-C only ends that:
/// the daemon goes on; `on` is told of that then.
///
/// # Errors
/// [`ErrorKind::Cancelled`] after Ctrl-C; [`ErrorKind::Conflict`] if somebody uses it again.
pub fn evacuation(
    client: &Client,
    (volume, part): (&str, &TierPart),
    (interrupts, on): (&Interrupts, &str),
) -> Result<(), ApiError> {
    let style = |how: &str| {
        let template = format!(
            "{{prefix}} [{{bar:30}}] {{done}} of {{all}} moved{how} (Ctrl-C ends the watching only)"
        );
        in_our_units(ProgressStyle::with_template(&template).expect("a valid template"))
    };
    // How long it takes is not known before anything has moved.
    let bar = hidden_or_bar().with_style(style(""));
    let bar = bar.with_prefix(volume.to_string());
    let (mut before, mut moved) = (None, Instant::now());
    loop {
        let body = client.ask(&Request::TierShow(Named { name: volume.to_string() }))?;
        let Body::Tiers(shown) = &body else { return Err(unexpected(&body)) };
        // By their names: the number of the tier may be another meanwhile.
        let own = shown.tiers.devices.iter().filter(|it| part.devices.contains(&it.device));
        // What has moved counts as left until the map says so durably, which may come in bursts.
        let copied: u64 = own.clone().map(|it| it.moved_out_bytes).sum();
        let is_of = |it: &&TierEvacuation| {
            let TierPart { tier, devices, .. } = &it.part;
            // A daemon of another version names the tier alone.
            let is_meant = devices.is_empty() && *tier == part.tier;
            is_meant || devices.iter().any(|device| part.devices.contains(device))
        };
        let left: u64 = shown.tiers.evacuations.iter().filter(is_of).map(|it| it.left_bytes).sum();
        // Of memory another may have the name, and stay.
        let leaving = own.clone().filter(|it| it.leaving).count();
        if leaving < part.devices.len().min(own.count()) {
            bar.finish_and_clear();
            let text = format!("{part} is in use again: somebody has cancelled its evacuation");
            return Err(ApiError::conflict(text));
        }
        let total = bar.length().unwrap_or(0).max(left);
        bar.set_length(total);
        bar.set_position(total - left);
        if left == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        if before.is_some_and(|(before, _)| left < before) {
            bar.set_style(style(", {rate}/s, {eta} to go"));
        }
        if before != Some((left, copied)) {
            (before, moved) = (Some((left, copied)), Instant::now());
        }
        if moved.elapsed() > STUCK {
            bar.finish_and_clear();
            return Err(stuck(shown, left));
        }
        if interrupts.came() {
            bar.finish_and_clear();
            let left = forebay_api::size::human(left);
            let text = format!("{left} still have to move; forebayd goes on with that{on}");
            return Err(ApiError::new(ErrorKind::Cancelled, text));
        }
        std::thread::sleep(POLL);
    }
}

/// Waits until all that is dirty in a pool has two copies again. Ctrl-C only ends that: the daemon
/// goes on.
///
/// # Errors
/// A device failed, or nothing moves.
pub fn second_copies(client: &Client, pool: &str) -> Result<(), ApiError> {
    let template = "{prefix} [{bar:30}] {done} of {all} have two copies, {rate}/s, {eta} to go \
                    (Ctrl-C ends the watching only)";
    let style = ProgressStyle::with_template(template).expect("a valid template");
    let bar = hidden_or_bar().with_style(in_our_units(style)).with_prefix(pool.to_string());
    let (mut before, mut moved) = (u64::MAX, Instant::now());
    loop {
        let body = client.ask(&Request::PoolShow(Named { name: pool.to_string() }))?;
        let Body::Pools { pools } = &body else { return Err(unexpected(&body)) };
        let [shown] = &pools[..] else { return Err(unexpected(&body)) };
        let (one, two) = (shown.dirty_one_copy_bytes, shown.dirty_two_copies_bytes);
        bar.set_length(one + two);
        bar.set_position(two);
        if one == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        if one < before {
            (before, moved) = (one, Instant::now());
        }
        let fewer = shown.devices.iter().any(|device| !device.present);
        if fewer || moved.elapsed() > STUCK {
            bar.finish_and_clear();
            let left = forebay_api::size::human(one);
            let why = match fewer {
                true => "a device of the pool does not work",
                false => "nothing moves now: the pool may have no room for that",
            };
            let text = format!("{left} of dirty data have one copy still, and {why}");
            let (pool, when) = (pool.to_string(), When::SeeWhatIsWrong);
            return Err(ApiError::failed(text).hint(Hint::ShowPool { pool, when }));
        }
        std::thread::sleep(POLL);
    }
}

fn explain(error: ApiError, job: &Job) -> ApiError {
    if error.kind != ErrorKind::Cancelled {
        return error;
    }
    let left = forebay_api::size::human(job.dirty_bytes);
    let text = format!(
        "{} of {} cancelled; the volume stays as it was, with {left} dirty",
        job.job.name(),
        job.volume
    );
    ApiError::new(ErrorKind::Cancelled, text)
}

/// A bar on a terminal, and nothing elsewhere.
fn hidden_or_bar() -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(5)
    } else {
        ProgressDrawTarget::hidden()
    };
    ProgressBar::with_draw_target(Some(0), target)
}

/// Sizes as they are told everywhere else.
fn in_our_units(style: ProgressStyle) -> ProgressStyle {
    let size = |of: fn(&ProgressState) -> u64| {
        move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            // Nobody sees a bar that cannot be written.
            let _ = out.write_str(&forebay_api::size::human(of(state)));
        }
    };
    style
        .with_key("done", size(ProgressState::pos))
        .with_key("all", size(|state| state.len().unwrap_or(0)))
        .with_key("rate", size(|state| state.per_sec() as u64))
}

fn bar(volume: &str) -> ProgressBar {
    let bar = hidden_or_bar();
    let style = ProgressStyle::with_template(
        "{prefix} [{bar:30}] {done} of {all} sent home, {rate}/s, {eta} to go (Ctrl-C stops, and \
         the volume stays as it is)",
    );
    // The template is fixed, so that only a test of this function could see it refused.
    bar.with_style(in_our_units(style.expect("a valid template"))).with_prefix(volume.to_string())
}

/// Shows how far a rescue of `volume` is, of so many bytes.
pub fn rescue_bar(volume: &str, bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{prefix} [{bar:30}] {done} of {all} read, {rate}/s, {eta} to go (Ctrl-C stops, and keeps \
         what is read)",
    );
    let bar = hidden_or_bar().with_style(in_our_units(style.expect("a valid template")));
    bar.set_length(bytes);
    bar.with_prefix(volume.to_string())
}

/// New writes make new dirty data while a job runs: the bar is never behind what is left.
fn show(bar: &ProgressBar, job: &Job) {
    let total = job.dirty_bytes_start.max(job.dirty_bytes);
    bar.set_length(total);
    bar.set_position(total - job.dirty_bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::reply::JobKind;

    #[test]
    fn the_bar_takes_any_progress() {
        let bar = bar("vz");
        let mut job = Job {
            job: JobKind::Drain,
            volume: "vz".to_string(),
            dirty_bytes_start: 100,
            dirty_bytes: 40,
            sent_bytes: 60,
            elapsed_s: 1.0,
            progress: JobState::Running,
        };
        show(&bar, &job);
        assert_eq!((bar.position(), bar.length()), (60, Some(100)));
        job.dirty_bytes = 120;
        show(&bar, &job);
        assert_eq!((bar.position(), bar.length()), (0, Some(120)));
        let error = explain(ApiError::new(ErrorKind::Cancelled, "stopped"), &job);
        assert!(error.message.contains("drain of vz cancelled; the volume stays as it was"));
    }
}
