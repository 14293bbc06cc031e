//! What a verb that failed says: what, where, why, and what to do.

use std::fmt;

use serde_json::{Map, Value, json};

use super::exit::Exit;

/// The reason why a verb failed, as an operator reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How the program ends.
    pub exit: Exit,
    /// What happened, in one sentence.
    pub detail: String,
    /// Problems of the input: JSON pointer and message.
    pub problems: Vec<(String, String)>,
    /// More lines: reasons per node, a log's end.
    pub notes: Vec<String>,
    /// What a person could do.
    pub hint: Option<Box<str>>,
    /// The request's id, to look it up in a replica's log.
    pub request_id: Option<Box<str>>,
    /// The problem document of the replica that refused.
    pub problem: Option<Box<Value>>,
}

/// What a verb answers.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure.
    #[must_use]
    pub fn new(exit: Exit, detail: impl Into<String>) -> Self {
        Self {
            exit,
            detail: detail.into(),
            problems: vec![],
            notes: vec![],
            hint: None,
            request_id: None,
            problem: None,
        }
    }

    /// What was asked cannot be.
    #[must_use]
    pub fn usage(detail: impl Into<String>) -> Self {
        Self::new(Exit::Usage, detail)
    }

    /// It failed, with the chain of causes in the sentence, which says how the program ends, too.
    #[must_use]
    pub fn caused(detail: impl fmt::Display, source: &(dyn std::error::Error + 'static)) -> Self {
        Self::new(Exit::of_cause(source), format!("{detail}: {}", chain(source)))
    }

    /// Adds what a person could do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into().into_boxed_str());
        self
    }

    /// The failure as a problem document (RFC 9457): a replica's own, with what this program adds. Without a `code` it failed
    /// on this machine.
    #[must_use]
    pub fn document(&self) -> Value {
        let mut document = match self.problem.as_deref() {
            Some(Value::Object(problem)) => problem.clone(),
            _ => Map::from_iter([("type".to_owned(), json!("about:blank"))]),
        };
        document.insert("detail".to_owned(), json!(self.detail));
        document.insert("exitCode".to_owned(), json!(self.exit as u8));
        if !self.problems.is_empty() {
            let problem = |(pointer, message): &(String, String)| json!({ "pointer": pointer, "message": message });
            let errors = self.problems.iter().map(problem).collect();
            document.insert("errors".to_owned(), Value::Array(errors));
        }
        if !self.notes.is_empty() {
            document.insert("notes".to_owned(), json!(self.notes));
        }
        if let Some(hint) = &self.hint {
            document.insert("hint".to_owned(), json!(hint));
        }
        if let Some(id) = &self.request_id {
            document.insert("requestId".to_owned(), json!(id));
        }
        Value::Object(document)
    }

    /// Adds a line.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}

/// An error and its causes, outermost first, none repeated.
#[must_use]
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.detail)?;
        for (pointer, message) in &self.problems {
            // The sentence for one problem is the problem.
            if self.problems.len() == 1 && self.detail.ends_with(message) {
                continue;
            }
            let place = if pointer.is_empty() { "(document)" } else { pointer };
            write!(f, "\n  {place}: {message}")?;
        }
        for note in &self.notes {
            write!(f, "\n  {note}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {hint}")?;
        }
        if let Some(id) = &self.request_id {
            write!(f, "\nrequest id {id}")?;
        }
        Ok(())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Exit::of_cause(&error), chain(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_problem_is_said_once() {
        let failure = Failure {
            problems: vec![("/count".into(), "must be at least 1".into())],
            ..Failure::usage("/count: must be at least 1")
        };
        assert_eq!(failure.to_string(), "error: /count: must be at least 1");
    }

    #[test]
    fn a_failure_is_a_problem_document_with_the_exit_code() {
        let local = Failure::usage("it has no name").note("line 1").hint("name it");
        let expected = json!({
            "type": "about:blank", "detail": "it has no name", "exitCode": 2, "notes": ["line 1"], "hint": "name it",
        });
        assert_eq!(local.document(), expected);
        let problem = json!({"type": "urn:x", "status": 404, "code": "NOT_FOUND", "detail": "no web", "retryable": false});
        let refused = Failure {
            problem: Some(Box::new(problem)),
            ..Failure::new(Exit::NotFound, "web.yaml: no web")
        };
        let expected = json!({
            "type": "urn:x", "status": 404, "code": "NOT_FOUND", "detail": "web.yaml: no web", "retryable": false, "exitCode": 3,
        });
        assert_eq!(refused.document(), expected);
    }

    #[test]
    fn a_failure_says_what_where_and_what_to_do() {
        let failure = Failure {
            problems: vec![
                ("/count".into(), "must be from 1 to 10000".into()),
                ("/comand".into(), "is not known; did you mean `command`?".into()),
            ],
            request_id: Some("req_1".into()),
            ..Failure::usage("the input has 2 problems").hint("see `examples/hello.yaml`")
        };
        insta::assert_snapshot!(failure, @r"
        error: the input has 2 problems
          /count: must be from 1 to 10000
          /comand: is not known; did you mean `command`?
        hint: see `examples/hello.yaml`
        request id req_1
        ");
    }
}
