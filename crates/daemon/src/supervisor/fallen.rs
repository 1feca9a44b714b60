//! Pools that fell: an internal error ended their thread, as a `kill -9` would. Such a pool is
//! opened again, as at a start of the daemon, and no other pool notices; one that falls again and
//! again stays closed.

use super::{Opened, Supervisor, lock};
use crate::panics;
use crate::state::PoolState;
use forebay_api::cause::Often;
use forebay_api::hint::{Care, Log};
use forebay_api::reply::Attention;
use forebay_api::{ApiError, Cause, Hint};
use forebay_host::shard::ShardHandle;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A pool that falls so often in the window stays closed.
const FALLS_MAX: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);
/// How often to look whether the thread of a pool that fell has ended its I/O.
const PAUSE: Duration = Duration::from_millis(5);
const REPORT: Hint = Hint::SeeLog { of: Log::Panic };

/// How often a pool fell since the daemon started.
pub(super) struct Falls {
    count: u64,
    /// Those that count for whether it stays closed.
    lately: Vec<Instant>,
    last: Instant,
    words: String,
    /// What fell last. Its thread may still wait for I/O.
    shard: ShardHandle,
    /// The pool was open since.
    served: bool,
}

impl Falls {
    /// One more. Whether the pool is to be opened again.
    fn one_more(&mut self, shard: &ShardHandle, words: &str) -> bool {
        // Who never gets so far as to serve may take longer for each try.
        if self.served {
            self.lately.retain(|at| at.elapsed() < WINDOW);
        }
        self.last = Instant::now();
        self.lately.push(self.last);
        (self.count, self.served) = (self.count + 1, false);
        (self.words, self.shard) = (words.to_string(), shard.clone());
        let again = self.lately.len() < FALLS_MAX;
        if !again {
            // Whoever opens it by hand begins anew.
            self.lately.clear();
        }
        again
    }
}

/// A time that has passed, in words.
fn ago(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s ago"),
        seconds @ 120..7200 => format!("{} min ago", seconds / 60),
        seconds => format!("{} h ago", seconds / 3600),
    }
}

impl Supervisor {
    /// Sees to the pools that fell since the last look.
    pub(super) fn watch_falls(self: &Arc<Self>) {
        for (name, open) in self.open_pools() {
            if let Some(words) = open.handle.fell() {
                self.fell(name, open, words);
            }
        }
    }

    fn fell(self: &Arc<Self>, name: String, open: Opened, words: String) {
        let mut inner = self.inner();
        let Some(known) = inner.pools.get(&name).map(|pool| pool.known.clone()) else { return };
        let falls = inner.falls.entry(name.clone()).or_insert_with(|| Falls {
            count: 0,
            lately: Vec::new(),
            last: Instant::now(),
            words: String::new(),
            shard: open.handle.clone(),
            served: false,
        });
        if falls.count > 0 && falls.shard.number() == open.handle.number() {
            return;
        }
        let again = falls.one_more(&open.handle, &words);
        drop(inner);
        let supervisor = Arc::clone(self);
        let thread = std::thread::Builder::new().name("fallen".to_string()).spawn(move || {
            let pick_up = || supervisor.pick_up(&known, &open.handle, &words, again);
            if !panics::passes(pick_up) {
                let error = ApiError::failed(format!("pool {name} could not be opened again"));
                supervisor.pool_closed(&known, error.hint(REPORT));
            }
        });
        if let Err(error) = thread {
            tracing::error!("start a thread: {error}");
        }
    }

    /// Opens a pool that fell, if it is to be opened `again`.
    fn pick_up(self: &Arc<Self>, pool: &PoolState, shard: &ShardHandle, words: &str, again: bool) {
        let (name, begin) = (pool.name.as_str(), Instant::now());
        let is_there = |own: u32| self.open_pool(name).is_ok_and(|it| it.handle.number() == own);
        let changes = lock(&self.changes);
        if self.is_stopping() || !is_there(shard.number()) {
            return;
        }
        self.exports.park_all(shard);
        let error = match again {
            true => ApiError::failed(format!(
                "pool {name} is opened again after an internal error: {words}"
            )),
            false => ApiError::failed(format!(
                "pool {name} stays closed after {FALLS_MAX} internal errors within a minute, the \
                 last: {words}"
            ))
            .hint(REPORT),
        };
        self.pool_closed(pool, error);
        // Clients are let in elsewhere.
        self.listen();
        drop(changes);
        while !shard.has_ended() {
            std::thread::sleep(PAUSE);
        }
        if !again {
            return;
        }
        let _changes = lock(&self.changes);
        if self.is_stopping() || !self.is_closed(name) {
            return;
        }
        self.inner().picked_up = Some(Instant::now());
        let opened = self.while_opening(name, || self.start_known_pool(pool));
        self.inner().picked_up = None;
        match opened {
            Ok(()) => {
                let took = begin.elapsed().as_millis();
                tracing::warn!(pool = name, "open again after an internal error, in {took} ms");
            }
            Err(error) => tracing::error!(pool = name, "{}", error.message),
        }
    }

    /// A pool is open: how often it falls is a matter of time from now on.
    pub(super) fn serves(&self, pool: &str) {
        if let Some(falls) = self.inner().falls.get_mut(pool) {
            falls.served = true;
        }
    }

    /// Whether a pool is known, and nobody has opened it.
    fn is_closed(&self, name: &str) -> bool {
        self.inner().pools.get(name).is_some_and(|pool| pool.open.is_err())
    }

    /// Refuses to open a pool that fell before its I/O has ended: what is still under way would
    /// reach the devices after what is written then.
    pub(super) fn check_rests(&self, pool: &str) -> Result<(), ApiError> {
        let inner = self.inner();
        match inner.falls.get(pool).filter(|falls| !falls.shard.has_ended()) {
            None => Ok(()),
            Some(_) => {
                let text = format!("pool {pool} fell, and I/O of its is still under way");
                Err(ApiError::failed(text).hint(Hint::SeeTo { what: Care::DiskOrServer }))
            }
        }
    }

    /// How often a pool fell.
    pub(super) fn falls(&self, pool: &str) -> u64 {
        self.inner().falls.get(pool).map_or(0, |falls| falls.count)
    }

    /// Tells that a pool fell that is open now.
    pub(super) fn tell_falls(&self, pool: &str, attention: &mut Attention) {
        let inner = self.inner();
        let Some(falls) = inner.falls.get(pool) else { return };
        let (last, words) = (ago(falls.last.elapsed()), falls.words.clone());
        attention.causes.push(Cause::Fell { times: Often(falls.count), last, words });
        attention.hints.push(REPORT);
    }
}
