//! Pages of a holder whose head is of the life before.
//!
//! A start that was cut short between two heads leaves one holder with the new life and one with
//! the old. Nothing was changed in the new one: what its records say, over the old pages and what
//! had been confirmed there, is the same map. So a page that is bad on the one is taken from the
//! other.

use super::Recovery;
use forebay_format::tier::Head;

impl Recovery {
    /// Whether the head of a source is of an earlier life than those that count.
    pub(super) fn is_elder(&self, source: usize) -> bool {
        let head = self.sources[source].head();
        head.zip(self.head).is_some_and(|(own, newest)| own.epoch < newest.epoch)
    }

    /// Sources whose pages can be used though their heads are of the life before, where the last
    /// one that was opened is `opened`. What was confirmed in that life is among the records from
    /// now on.
    pub(super) fn elders(&mut self, opened: u64) -> Vec<usize> {
        let Some(newest) = self.head.filter(|it| it.epoch > opened) else { return Vec::new() };
        let all = 0..self.sources.len();
        let elders: Vec<usize> = all.filter(|&it| self.is_elder(it)).collect();
        elders.into_iter().filter(|&it| self.take_elder(it, newest)).collect()
    }

    /// Takes the records of such a source, if each up to those of the newest life is there: then
    /// that life came right after, and what was confirmed before it is known.
    fn take_elder(&mut self, source: usize, newest: Head) -> bool {
        let Some(head) = self.sources[source].head() else { return false };
        let find = |seq: u64| {
            let mut own = self.sources.iter().filter_map(|it| it.records.get(&seq));
            own.rfind(|it| it.epoch == head.epoch).cloned()
        };
        let Some(records) = (head.tail..newest.tail).map(find).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let said = records.iter().map(|it| it.confirmed).max().unwrap_or(0);
        let confirmed = records.into_iter().filter(|it| it.seq <= said);
        self.records.extend(confirmed.map(|it| (it.seq, it)));
        true
    }
}
