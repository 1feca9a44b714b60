//! The names of what worlds may be bent towards.

/// What a whole run of seeds may be bent towards: `forebay-sim --bend NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bend {
    /// See `Params::starve`.
    Starve,
    /// See `Params::live_briefly`.
    Brief,
    /// See `Params::come_and_go`.
    Away,
    /// See `Params::dwindle`.
    Dwindle,
    /// See `Params::harm_often`.
    Harm,
    /// See `Params::manage`.
    Admin,
    /// See `Params::repair_in_vain`.
    Repair,
    /// See `Params::linger`.
    Linger,
    /// See `Params::turn_over`.
    Turnover,
    /// See `Params::zero_in_vain`.
    Vain,
    /// See `Params::need_the_spare`.
    Spare,
    /// See `Params::overtake`.
    Overtake,
    /// See `Params::evict`.
    Evict,
    /// See `Params::leave_untold`.
    Untold,
    /// See `Params::last_resort`.
    Resort,
    /// See `Params::come_late`.
    Late,
    /// See `Params::replug`.
    Replug,
    /// See `Params::come_back_older`.
    Older,
    /// See `Params::stripe`.
    Stripes,
    /// See `Params::replace`.
    Replace,
    /// Another kind of world: see [`crate::large`].
    Large,
    /// The same, before a volume whose provider allows few I/Os.
    Cloud,
    /// The same, in which room in the log is short again and again: see `Plan::shortened`.
    Short,
}

/// All of them, by name.
pub const BENDS: [(&str, Bend); 23] = [
    ("starve", Bend::Starve),
    ("brief", Bend::Brief),
    ("away", Bend::Away),
    ("dwindle", Bend::Dwindle),
    ("harm", Bend::Harm),
    ("admin", Bend::Admin),
    ("repair", Bend::Repair),
    ("linger", Bend::Linger),
    ("turnover", Bend::Turnover),
    ("spare", Bend::Spare),
    ("vain", Bend::Vain),
    ("overtake", Bend::Overtake),
    ("evict", Bend::Evict),
    ("untold", Bend::Untold),
    ("resort", Bend::Resort),
    ("late", Bend::Late),
    ("replug", Bend::Replug),
    ("older", Bend::Older),
    ("stripes", Bend::Stripes),
    ("replace", Bend::Replace),
    ("large", Bend::Large),
    ("cloud", Bend::Cloud),
    ("short", Bend::Short),
];

impl Bend {
    /// Whether its worlds are large ones.
    pub fn is_large(self) -> bool {
        matches!(self, Bend::Large | Bend::Cloud | Bend::Short)
    }

    /// The bend of this name.
    pub fn named(name: &str) -> Option<Bend> {
        BENDS.iter().find(|(known, _)| *known == name).map(|&(_, bend)| bend)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        BENDS.iter().find(|(_, bend)| *bend == self).expect("all are listed").0
    }
}
