//! Typed lines of a reply: what was done, what is asked, what to do next. Beside each goes its
//! text, by which a program goes on that knows no types, or not this one.

use crate::{Cause, Hint, Told};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Display;

/// An enum of words: each variant with its text, which is its documentation.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name { $(#[doc = concat!("“", $text, "”")] $variant,)* }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(match self { $($name::$variant => $text,)* })
            }
        }
    };
}

/// An enum of lines: each variant with its text, in which its fields are shown. The JSON tells by
/// `$tag` which it is.
macro_rules! lines {
    ($(#[$meta:meta])* $name:ident by $tag:literal {
        $($variant:ident $({ $($(#[$own:meta])* $field:ident: $type:ty),* })? = $text:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(tag = $tag, rename_all = "kebab-case")]
        pub enum $name {
            $(
                #[doc = concat!("“", $text, "”")]
                $variant $({ $(#[doc = concat!("`", stringify!($field), "` of the text.")]
                               $(#[$own])* $field: $type),* })?,
            )*
        }

        /// The line for people.
        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self { $($name::$variant $({ $($field),* })? => write!(f, $text),)* }
            }
        }
    };
}

pub(crate) use {lines, words};

/// Lines of one type, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lines<T>(Vec<Line<T>>);

/// What to do next.
pub type Hints = Lines<Hint>;

/// What was done, or would be; or what is asked first.
pub type Tellings = Lines<Told>;

/// Why something needs attention.
pub type Causes = Lines<Cause>;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Line<T> {
    Typed(T),
    /// From a daemon of another version: only its words say what it is.
    Words(String),
}

impl<T> Default for Lines<T> {
    fn default() -> Lines<T> {
        Lines(Vec::new())
    }
}

impl<T> From<Vec<T>> for Lines<T> {
    fn from(lines: Vec<T>) -> Lines<T> {
        lines.into_iter().collect()
    }
}

impl<T> FromIterator<T> for Lines<T> {
    fn from_iter<I: IntoIterator<Item = T>>(lines: I) -> Lines<T> {
        Lines(lines.into_iter().map(Line::Typed).collect())
    }
}

impl<T> Extend<T> for Lines<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, lines: I) {
        self.0.extend(lines.into_iter().map(Line::Typed));
    }
}

impl<T: Display + PartialEq> Lines<T> {
    /// Adds one.
    pub fn push(&mut self, line: T) {
        self.0.push(Line::Typed(line));
    }

    /// Adds one, unless it is there.
    pub fn push_new(&mut self, line: T) {
        let line = Line::Typed(line);
        if !self.0.contains(&line) {
            self.0.push(line);
        }
    }

    /// Adds one before all others.
    pub fn push_first(&mut self, line: T) {
        self.put(0, [line]);
    }

    /// Adds some before the one with this number, which is there, or is the next one.
    pub fn put(&mut self, at: usize, lines: impl IntoIterator<Item = T>) {
        self.0.splice(at..at, lines.into_iter().map(Line::Typed));
    }

    /// Adds `others`.
    pub fn append(&mut self, mut others: Lines<T>) {
        self.0.append(&mut others.0);
    }

    /// Takes out what is among `others` too.
    pub fn take_out(&mut self, others: &Lines<T>) {
        self.0.retain(|line| !others.0.contains(line));
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that have a type here.
    pub fn typed(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(|line| match line {
            Line::Typed(line) => Some(line),
            Line::Words(_) => None,
        })
    }

    /// A line each for people.
    pub fn texts(&self) -> Vec<String> {
        let text = |line: &Line<T>| match line {
            Line::Typed(line) => line.to_string(),
            Line::Words(words) => words.clone(),
        };
        self.0.iter().map(text).collect()
    }
}

impl<T: Serialize + DeserializeOwned> Lines<T> {
    /// As they are sent: nothing for what has no type here, and no list if that is all.
    fn values(&self) -> Vec<Value> {
        let value = |line: &Line<T>| match line {
            Line::Typed(line) => serde_json::to_value(line).unwrap_or_default(),
            Line::Words(_) => Value::Null,
        };
        let values: Vec<Value> = self.0.iter().map(value).collect();
        if values.iter().all(Value::is_null) { Vec::new() } else { values }
    }

    /// Of their texts, and as they were sent.
    fn read(words: impl IntoIterator<Item = String>, values: Vec<Value>) -> Lines<T> {
        let values = values.into_iter().map(|value| serde_json::from_value(value).ok());
        let lines = words.into_iter().zip(values.chain(std::iter::repeat_with(|| None)));
        Lines(lines.map(|(words, line)| line.map_or(Line::Words(words), Line::Typed)).collect())
    }
}

/// How lines are sent: a field of texts, and beside it one of values.
macro_rules! sent {
    (
        $(#[$meta:meta])*
        $module:ident: $lines:ty, $(#[$of_texts:meta])* $texts:ident, $values:ident
    ) => {
        $(#[$meta])*
        pub(crate) mod $module {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};
            use serde_json::Value;

            #[derive(Default, Serialize, Deserialize)]
            #[serde(default)]
            struct Sent {
                $(#[$of_texts])*
                $texts: Vec<String>,
                #[serde(skip_serializing_if = "Vec::is_empty")]
                $values: Vec<Value>,
            }

            pub fn serialize<S: Serializer>(lines: &$lines, to: S) -> Result<S::Ok, S::Error> {
                Sent { $texts: lines.texts(), $values: lines.values() }.serialize(to)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$lines, D::Error> {
                Sent::deserialize(from).map(|sent| <$lines>::read(sent.$texts, sent.$values))
            }
        }
    };
}

sent!(
    /// What to do about an error.
    actions: crate::Hints, #[serde(skip_serializing_if = "Vec::is_empty")] actions, hints
);
sent!(
    /// What to do about what needs attention.
    action: crate::Hints, #[serde(skip_serializing_if = "Vec::is_empty")] action, hints
);
sent!(
    /// Why something needs attention.
    why: crate::Causes, #[serde(skip_serializing_if = "Vec::is_empty")] why, causes
);
sent!(
    /// What was done: the texts are there even if there is none.
    messages: crate::Tellings, messages, told
);
sent!(
    /// What is asked first.
    asks: crate::Tellings, #[serde(skip_serializing_if = "Vec::is_empty")] asks, risks
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::{Bytes, When};
    use crate::reply::Attention;
    use crate::told::Destroyed;
    use crate::{ApiError, Body, Done, Outcome, Reply};
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
        let lost = Cause::BlocksLost { blocks: 3 };
        let causes = vec![lost.clone(), Cause::TiersOpening].into();
        let attention = Attention { causes, hints: error().hints };
        let sent = serde_json::to_value(&attention).unwrap();
        assert_eq!(sent["why"], json!([lost.to_string(), "its tiers are being opened"]));
        let causes = json!([{"cause": "blocks-lost", "blocks": 3}, {"cause": "tiers-opening"}]);
        assert_eq!(sent["causes"], causes);
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

    fn done() -> Done {
        let mut done = Done::new(Outcome::Planned, Told::NoDirty { volume: "v".to_string() });
        done.told.push(Told::WouldDrain { volume: "v".to_string(), dirty_bytes: Bytes(4096) });
        done.asks.push(Told::Destroys { what: Destroyed(vec![]) });
        done
    }

    #[test]
    fn what_was_done_is_sent_as_sentences_and_as_fields() {
        let reply = Reply::from(Body::Done(Box::new(done())));
        let sent = serde_json::to_value(&reply).unwrap();
        let wanted = json!({
            "schema": 1,
            "kind": "done",
            "outcome": "planned",
            "messages": ["volume v has no dirty data", "would send 4.0K of volume v home"],
            "told": [
                {"told": "no-dirty", "volume": "v"},
                {"told": "would-drain", "volume": "v", "dirty_bytes": 4096}
            ],
            "asks": ["this destroys "],
            "risks": [{"told": "destroys", "what": []}],
        });
        assert_eq!(sent, wanted);
        assert_eq!(serde_json::from_value::<Reply>(sent).unwrap(), reply);
    }

    #[test]
    fn what_a_daemon_of_another_version_did_is_shown_in_its_words() {
        let reply = Reply::from(Body::Done(Box::new(done())));
        let mut sent = serde_json::to_value(&reply).unwrap();
        sent["told"][0] = json!({"told": "something-new", "volume": 7});
        // A field that is missing, or of another type, is as good as another word.
        sent["told"][1]["dirty_bytes"] = json!("4K");
        sent["risks"] = json!([{"told": 1}]);
        let read: Reply = serde_json::from_value(sent).unwrap();
        let Body::Done(read) = read.body else { panic!("{read:?}") };
        assert_eq!(read.told.texts(), done().told.texts());
        assert_eq!(read.asks.texts(), done().asks.texts());
        assert_eq!((read.told.typed().count(), read.asks.typed().count()), (0, 0));
        // An older one knows no types at all.
        let mut sent = serde_json::to_value(&reply).unwrap();
        let fields = sent.as_object_mut().unwrap();
        fields.remove("told");
        fields.remove("risks");
        fields.remove("asks");
        let read: Reply = serde_json::from_value(sent).unwrap();
        let Body::Done(read) = read.body else { panic!("{read:?}") };
        assert_eq!(read.told.texts(), done().told.texts());
        assert!(read.asks.is_empty());
    }
}
