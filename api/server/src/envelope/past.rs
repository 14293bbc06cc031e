//! Reading the state as it was.

use palisade_contract::{Code, Error, Handler, Method, Problem, Result};
use palisade_state::View;

use super::{Call, Envelope};

/// Refuses a moment where nobody would look at it.
pub(super) fn check(method: &Method) -> Result<()> {
    if method.past && matches!(method.handler, Handler::Query(_)) {
        return Ok(());
    }
    let message = "this method has no past: it is answered for the present alone";
    let problem = Problem { pointer: "/at".to_owned(), message: message.to_owned() };
    Err(Error::invalid(vec![problem])
        .hint("leave it out; /openapi.json has the parameter `at` where there is one"))
}

/// That something is not there, said of the moment that was asked for.
pub(super) fn told(call: &Call<'_>, view: &View, error: Error) -> Error {
    if call.options.at.is_none() || error.code != Code::NotFound {
        return error;
    }
    let detail = format!("{} at revision {}", error.detail, view.revision());
    Error { detail, ..error }
}

impl Envelope {
    /// The view that a query reads: the one that was, where a moment was named. Whether it may be asked was decided on the
    /// present one.
    pub(super) async fn view_of(&self, call: &Call<'_>) -> Result<View> {
        let Some(when) = call.options.at else { return Ok(call.view.clone()) };
        let history = self.context.ports.history.get();
        let history =
            history.map_err(|_| Error::new(Code::Unsupported, "this process keeps no history"))?;
        history.view_at(when, self.kept.clone()).await
    }
}
