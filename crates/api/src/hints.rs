//! The hints of a reply. Beside each goes its text, by which a program goes on that knows no hints,
//! or not this one.

use crate::Hint;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What to do next, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints(Vec<Line>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    Hint(Hint),
    /// From a daemon of another version: only its words say what it is.
    Words(String),
}

impl Hints {
    /// Adds one.
    pub fn push(&mut self, hint: Hint) {
        self.0.push(Line::Hint(hint));
    }

    /// Adds one, unless it is there.
    pub fn push_new(&mut self, hint: Hint) {
        let line = Line::Hint(hint);
        if !self.0.contains(&line) {
            self.0.push(line);
        }
    }

    /// Adds one before all others.
    pub fn push_first(&mut self, hint: Hint) {
        self.0.insert(0, Line::Hint(hint));
    }

    /// Adds `others`.
    pub fn append(&mut self, mut others: Hints) {
        self.0.append(&mut others.0);
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A line each for people.
    pub fn texts(&self) -> Vec<String> {
        let text = |line: &Line| match line {
            Line::Hint(hint) => hint.to_string(),
            Line::Words(words) => words.clone(),
        };
        self.0.iter().map(text).collect()
    }

    /// As they are sent: nothing for what has no type here, and no list if that is all.
    fn values(&self) -> Vec<Value> {
        let value = |line: &Line| match line {
            Line::Hint(hint) => serde_json::to_value(hint).unwrap_or_default(),
            Line::Words(_) => Value::Null,
        };
        let values: Vec<Value> = self.0.iter().map(value).collect();
        if values.iter().all(Value::is_null) { Vec::new() } else { values }
    }
}

/// Both forms, side by side. Errors call the texts `actions`, what needs attention `action`.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Sent {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    actions: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    action: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hints: Vec<Value>,
}

impl From<Sent> for Hints {
    fn from(sent: Sent) -> Hints {
        let words = sent.actions.into_iter().chain(sent.action);
        let hints = sent.hints.into_iter().map(|hint| serde_json::from_value(hint).ok());
        let lines = words.zip(hints.chain(std::iter::repeat(None)));
        Hints(lines.map(|(words, hint)| hint.map_or(Line::Words(words), Line::Hint)).collect())
    }
}

/// The fields of an error.
pub(crate) mod actions {
    use super::{Hints, Sent};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(hints: &Hints, to: S) -> Result<S::Ok, S::Error> {
        let (actions, hints) = (hints.texts(), hints.values());
        Sent { actions, hints, ..Sent::default() }.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Hints, D::Error> {
        Sent::deserialize(from).map(Hints::from)
    }
}

/// The fields of what needs attention.
pub(crate) mod action {
    use super::{Hints, Sent};
    use serde::{Serialize, Serializer};

    pub use super::actions::deserialize;

    pub fn serialize<S: Serializer>(hints: &Hints, to: S) -> Result<S::Ok, S::Error> {
        let (action, hints) = (hints.texts(), hints.values());
        Sent { action, hints, ..Sent::default() }.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::When;
    use crate::reply::Attention;
    use crate::{ApiError, Body, Reply};
    use serde_json::json;

    fn error() -> ApiError {
        let error = ApiError::conflict("volume v is detached");
        error.hint(Hint::attach("v", When::BringBack)).hint(Hint::ListVolumes)
    }

    #[test]
    fn both_forms_are_sent_side_by_side() {
        let sent = serde_json::to_value(error()).unwrap();
        let attach =
            json!({"hint": "attach", "volume": "v", "dirty": "stays", "when": "bring-back"});
        let wanted = json!({
            "kind": "conflict",
            "message": "volume v is detached",
            "actions": [
                "bring it back: forebay volume attach v",
                "see which there are: forebay volume list"
            ],
            "hints": [attach, {"hint": "list-volumes"}]
        });
        assert_eq!(sent, wanted);
        let reply = Reply::from(Body::Error { error: error() });
        let json = serde_json::to_string(&reply).unwrap();
        assert_eq!(serde_json::from_str::<Reply>(&json).unwrap(), reply);
        let attention = Attention { why: vec!["detached".to_string()], hints: error().hints };
        let sent = serde_json::to_value(&attention).unwrap();
        assert_eq!(sent["action"], wanted["actions"]);
        assert_eq!(sent["hints"], wanted["hints"]);
        assert_eq!(serde_json::from_value::<Attention>(sent).unwrap(), attention);
        let nothing = serde_json::to_value(Attention::default()).unwrap();
        assert_eq!(nothing, json!({}));
    }

    #[test]
    fn what_a_daemon_of_another_version_says_is_shown_in_its_words() {
        let mut sent = serde_json::to_value(error()).unwrap();
        sent["hints"][0] = json!({"hint": "something-new"});
        let read: ApiError = serde_json::from_value(sent.clone()).unwrap();
        assert_eq!(read.hints.texts(), error().hints.texts());
        sent["hints"][0] = Value::Null;
        assert_eq!(serde_json::to_value(&read).unwrap(), sent);
        // An older one knows no hints at all.
        sent.as_object_mut().unwrap().remove("hints");
        let read: ApiError = serde_json::from_value(sent.clone()).unwrap();
        assert_eq!(read.hints.texts(), error().hints.texts());
        assert_eq!(serde_json::to_value(&read).unwrap(), sent);
    }
}
