//! What the daemon tells, as tables.

use crate::args::Format;
use crate::output::{self, Column};
use crate::{EXIT_DEGRADED, printed};
use forebay_api::hint::{Bytes, Care};
use forebay_api::reply::{
    Attention, Job, JobState, PoolInfo, PoolPlan, Reply, State, VolumeInfo, WhyReason,
};
use forebay_api::size::human;
use forebay_api::told::{Milliseconds, how_long};
use forebay_api::{ApiError, Body, Hint, Told};

/// The daemon answered something else than was asked.
pub fn unexpected(body: &Body) -> ApiError {
    let text = serde_json::to_string(body).unwrap_or_default();
    let text: String = text.chars().take(200).collect();
    ApiError::failed(format!("the daemon's answer does not fit the request: {text}"))
        .hint(Hint::SeeTo { what: Care::Version })
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_string();
    }
    format!("{:.0}%", part as f64 * 100.0 / whole as f64)
}

/// A size that nobody may know, for people.
fn known(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_string(), human)
}

/// The same for programs.
fn raw(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| bytes.to_string())
}

/// How many use a volume. Who uses its block device nobody counts, but there may be others.
fn clients(volume: &VolumeInfo) -> Option<u64> {
    let is_device = volume.export.as_ref().is_some_and(|export| export.starts_with('/'));
    Some(volume.clients).filter(|count| !is_device || *count > 0)
}

const VOLUMES: &[Column<VolumeInfo>] = &[
    Column::words("VOLUME", "volume", |v| v.name.clone()),
    Column::words("STATE", "state", |v| v.state.name().to_string()),
    Column::words("MODE", "mode", |v| v.mode.to_string()),
    Column::words("POOL", "pool", |v: &VolumeInfo| v.pool.clone()).wide(),
    Column::bytes("SIZE", "size_bytes", |v| v.bytes),
    Column::numbers("USED", "used_bytes", |v| known(v.used_bytes), |v| raw(v.used_bytes)),
    Column::numbers("DIRTY", "dirty_bytes", |v| known(v.dirty_bytes), |v| raw(v.dirty_bytes)),
    Column::ratio("HIT 5m", "hit_ratio_5m", |v| v.hit_ratio_5m),
    Column::ratio("HIT 1h", "hit_ratio_1h", |v| v.hit_ratio_1h),
    Column::numbers(
        "CLIENTS",
        "clients",
        |v: &VolumeInfo| clients(v).map_or_else(|| "-".to_string(), |count| count.to_string()),
        |v: &VolumeInfo| clients(v).map_or_else(String::new, |count| count.to_string()),
    )
    .wide(),
    Column::words("ORIGIN", "origin", |v: &VolumeInfo| v.origin.clone()).wide(),
    Column::words("EXPORT", "export", |v| v.export.clone().unwrap_or_else(|| "-".to_string())),
    Column::words("WHY SO", "export_why", |v: &VolumeInfo| {
        v.export_why.clone().unwrap_or_else(|| "-".to_string())
    })
    .wide(),
];

const POOLS: &[Column<PoolInfo>] = &[
    Column::words("POOL", "pool", |p| p.name.clone()),
    Column::words("STATE", "state", |p| p.state.name().to_string()),
    Column::bytes("SIZE", "capacity_bytes", |p| p.capacity_bytes),
    Column::numbers(
        "USED",
        "used_bytes",
        |p| share(p.used_bytes, p.capacity_bytes),
        |p| p.used_bytes.to_string(),
    ),
    Column::bytes("DIRTY", "dirty_bytes", |p| p.dirty_bytes),
    Column::bytes("RAM", "ram_bytes", |p| p.ram.total_bytes),
    Column::count("SEGMENTS", "segments", |p: &PoolInfo| p.segments).wide(),
    Column::count("FREE", "segments_free", |p: &PoolInfo| p.segments_free).wide(),
    Column::count("VOLUMES", "volumes", |p| p.volumes.len() as u64),
    Column::words("DEVICES", "devices", |p| {
        let paths: Vec<&str> = p.devices.iter().map(|device| device.path.as_str()).collect();
        paths.join(" ")
    }),
];

fn attention(attention: &Attention) -> Vec<String> {
    let why = attention.causes.texts().into_iter().map(|line| format!("  why:    {line}"));
    let action = attention.hints.texts().into_iter().map(|line| format!("  action: {line}"));
    why.chain(action).collect()
}

fn below_volume(volume: &VolumeInfo) -> Vec<String> {
    let mut lines = attention(&volume.attention);
    if let Some(job) = volume.job.as_ref().filter(|job| job.progress == JobState::Running) {
        lines.push(format!("  job:    {}", job_line(job)));
    }
    let doings = volume.tiers.as_ref().and_then(|tiers| crate::tiers::doings(tiers));
    lines.extend(doings.map(|doings| format!("  tiers:  {doings}")));
    if let Some(tiers) = volume.tiers.as_ref().filter(|tiers| tiers.ephemeral) {
        let why = tiers.emptied.as_ref().map(|why| format!("; it began empty: {why}"));
        lines.push(format!("  ephemeral{}", why.unwrap_or_default()));
    }
    lines
}

/// Where a job stands, on one line.
pub fn job_line(job: &Job) -> String {
    let done = job.sent_bytes;
    let (name, left) = (job.job.name(), human(job.dirty_bytes));
    match &job.progress {
        JobState::Running => {
            let rate = done as f64 / job.elapsed_s.max(0.001);
            let eta = if rate >= 1.0 {
                format!("about {:.0} s to go", job.dirty_bytes as f64 / rate)
            } else {
                "time to go unknown".to_string()
            };
            let rate = human(rate as u64);
            format!("{name} runs, {left} dirty left, {rate}/s, {eta}")
        }
        JobState::Done { .. } => job_done(job).to_string(),
        JobState::Failed { error } => format!("{name} failed: {error}"),
    }
}

/// What is told of a job that is done.
pub fn job_done(job: &Job) -> Told {
    let elapsed_ms = Milliseconds((job.elapsed_s * 1000.0) as u64);
    Told::JobDone { job: job.job, sent_bytes: Bytes(job.sent_bytes), elapsed_ms }
}

/// `status`: exit code 3 when something needs attention.
pub fn status(format: Format, body: Body) -> Result<u8, ApiError> {
    let Body::Status(status) = &body else { return Err(unexpected(&body)) };
    let degraded = status.state.needs_attention();
    match format {
        Format::Table | Format::Wide => {
            let wide = format == Format::Wide;
            let mut lines = Vec::new();
            if status.volumes.is_empty() {
                lines.push("no volumes; make one: forebay cache ORIGIN --with DEVICE".to_string());
            } else {
                lines = output::table(VOLUMES, &status.volumes, wide, below_volume);
            }
            let told = |pool: &&PoolInfo| {
                pool.state.needs_attention() || !pool.attention.causes.is_empty()
            };
            for pool in status.pools.iter().filter(told) {
                lines.push(format!("pool {}: {}", pool.name, pool.state.name()));
                lines.extend(attention(&pool.attention));
            }
            lines.extend(attention(&status.attention));
            printed(output::lines(&lines))?;
        }
        _ => {
            let rows = status.volumes.clone();
            let document = Reply::from(body);
            printed(output::rows(format, &document, VOLUMES, &rows, |_| Vec::new()))?;
        }
    }
    Ok(if degraded { EXIT_DEGRADED } else { 0 })
}

/// `volume list`.
pub fn volumes(format: Format, body: Body) -> Result<u8, ApiError> {
    let Body::Volumes { volumes } = &body else { return Err(unexpected(&body)) };
    let rows = volumes.clone();
    printed(output::rows(format, &Reply::from(body), VOLUMES, &rows, below_volume))?;
    Ok(0)
}

/// `pool list`.
pub fn pools(format: Format, body: Body) -> Result<u8, ApiError> {
    let Body::Pools { pools } = &body else { return Err(unexpected(&body)) };
    let rows = pools.clone();
    let below = |pool: &PoolInfo| attention(&pool.attention);
    printed(output::rows(format, &Reply::from(body), POOLS, &rows, below))?;
    Ok(0)
}

fn exit_of(state: State) -> u8 {
    if state.needs_attention() { EXIT_DEGRADED } else { 0 }
}

/// `volume show`.
pub fn volume(format: Format, body: Body) -> Result<u8, ApiError> {
    let Body::Volumes { volumes } = &body else { return Err(unexpected(&body)) };
    let [volume] = &volumes[..] else { return Err(unexpected(&body)) };
    let mut text: Vec<String> =
        VOLUMES.iter().map(|column| field(column.title, &column.text(volume))).collect();
    if let Some(job) = &volume.job {
        text.push(field("LAST JOB", &job_line(job)));
    }
    if let Some(tiers) = &volume.tiers {
        text.extend(crate::tiers::lines(tiers));
    }
    text.extend(attention(&volume.attention));
    printed(output::one(format, &document(format, "volume", volume), &text))?;
    Ok(exit_of(volume.state))
}

/// One thing as a document of its own, with the schema and its kind in it.
pub fn document(format: Format, kind: &str, thing: &impl serde::Serialize) -> serde_json::Value {
    let mut value = serde_json::to_value(thing).unwrap_or_default();
    let is_json = matches!(format, Format::Json | Format::Jsonl);
    if let (true, serde_json::Value::Object(fields)) = (is_json, &mut value) {
        fields.insert("schema".to_string(), forebay_api::SCHEMA.into());
        fields.insert("kind".to_string(), kind.into());
    }
    value
}

pub fn field(title: &str, text: &str) -> String {
    format!("{:<10} {text}", title.to_lowercase())
}

/// `pool show`.
pub fn pool(format: Format, body: Body) -> Result<u8, ApiError> {
    let Body::Pools { pools } = &body else { return Err(unexpected(&body)) };
    let [pool] = &pools[..] else { return Err(unexpected(&body)) };
    let mut text: Vec<String> = POOLS
        .iter()
        .filter(|column| column.title != "DEVICES" && column.title != "VOLUMES")
        .map(|column| field(column.title, &column.text(pool)))
        .collect();
    text.push(field("UUID", &pool.uuid));
    text.push(field("INDEX RAM", &human(pool.ram.index_bytes + pool.ram.ghost_bytes)));
    text.push(field("RAM TIER", &human(pool.ram.tier_bytes)));
    text.push(field("VOLUMES", &pool.volumes.join(" ")));
    for device in &pool.devices {
        let state = match (device.present, device.unused_s) {
            (true, _) => String::new(),
            (false, None) => ", missing or failed".to_string(),
            (false, Some(seconds)) => format!(", failed {} ago", how_long(seconds)),
        };
        let serial = device.serial.as_ref().map(|serial| format!(", serial {serial}"));
        let serial = serial.unwrap_or_default();
        let (bytes, segments) = (human(device.bytes), device.segments);
        let line = format!("{} ({bytes}, {segments} segments{serial}{state})", device.path);
        text.push(field("DEVICE", &line));
    }
    if pool.devices.len() > 1 && pool.dirty_bytes > 0 {
        let (two, one) = (pool.dirty_two_copies_bytes, pool.dirty_one_copy_bytes);
        let one = if one > 0 { format!(", {} have one", human(one)) } else { String::new() };
        text.push(field("COPIES", &format!("{} of dirty data have two{one}", human(two))));
    }
    text.extend(attention(&pool.attention));
    printed(output::one(format, &document(format, "pool", pool), &text))?;
    Ok(exit_of(pool.state))
}

/// `why`.
pub fn why(format: Format, body: Body) -> Result<u8, ApiError> {
    const COLUMNS: &[Column<WhyReason>] = &[
        Column::words("REASON", "reason", |r| r.reason.clone()),
        Column::ratio("1h", "share_1h", |r| Some(r.share_1h)),
        Column::bytes("BYTES 1h", "bytes_1h", |r| r.bytes_1h),
        Column::bytes("BYTES", "bytes", |r| r.bytes),
        Column::words("MEANING", "meaning", |r| r.meaning.clone()),
    ];
    let Body::Why(why) = &body else { return Err(unexpected(&body)) };
    let rows = why.reasons.clone();
    printed(output::rows(format, &Reply::from(body), COLUMNS, &rows, |_| Vec::new()))?;
    Ok(0)
}

/// The plan of a pool, before it is made.
pub fn plan_lines(plan: &PoolPlan) -> Vec<String> {
    let mut lines = vec![format!(
        "pool {}: {} in {} segments of {}",
        plan.name,
        human(plan.capacity_bytes),
        plan.segments,
        human(plan.segment_bytes)
    )];
    for device in &plan.devices {
        let holds = match device.holds.is_empty() {
            true => "empty".to_string(),
            false => format!("HOLDS {}", device.holds.join(", ")),
        };
        lines.push(format!("  device {} ({}): {holds}", device.path, human(device.bytes)));
        lines.push(format!(
            "    superblocks at 0 and 64K, 2 checkpoint areas of {}, {} segments from {}",
            human(device.checkpoint_area_bytes),
            device.segments,
            human(device.segments_offset)
        ));
    }
    let ram = &plan.ram;
    lines.push(format!(
        "  memory needed: {} (index {}, ghost {}, RAM tier {}); the most allowed is {}, \
         beside {} for the clients of all pools",
        human(ram.total_bytes),
        human(ram.index_bytes),
        human(ram.ghost_bytes),
        human(ram.tier_bytes),
        human(plan.ram_cap_bytes),
        human(plan.clients_cap_bytes)
    ));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::reply::JobKind;

    #[test]
    fn a_job_tells_rate_and_time_to_go() {
        let mut job = Job {
            job: JobKind::Drain,
            volume: "vz".to_string(),
            dirty_bytes_start: 300 << 20,
            dirty_bytes: 100 << 20,
            sent_bytes: 200 << 20,
            elapsed_s: 10.0,
            progress: JobState::Running,
        };
        assert_eq!(job_line(&job), "drain runs, 100M dirty left, 20.0M/s, about 5 s to go");
        (job.dirty_bytes, job.sent_bytes) = (300 << 20, 0);
        assert_eq!(job_line(&job), "drain runs, 300M dirty left, 0/s, time to go unknown");
    }
}
