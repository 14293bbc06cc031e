//! Watches as server-sent events (WHATWG HTML, "Server-sent events").

use futures::{StreamExt, stream::BoxStream};
use palisade_contract::{Result, method::ByteStream};
use serde_json::json;

use crate::{
    problem,
    watch::{Batch, Told},
};

/// Their media type.
pub(super) const MEDIA: &str = "text/event-stream";

/// After how many milliseconds a reader comes back.
const RETRY_MS: u64 = 1000;

/// The bytes of a watch. Each of its batches ends with the event that has an id, so that a reader who comes back
/// behind that has missed nothing.
pub(super) fn bytes(
    batches: BoxStream<'static, Batch>,
    path: String,
    request_id: String,
) -> ByteStream {
    let first = futures::stream::iter([Ok(format!("retry: {RETRY_MS}\n\n").into_bytes())]);
    let rest = batches.map(move |batch| -> Result<Vec<u8>> {
        let mut out = vec![];
        for told in batch {
            frame(&mut out, &told, &path, &request_id);
        }
        Ok(out)
    });
    first.chain(rest).boxed()
}

fn frame(out: &mut Vec<u8>, told: &Told, path: &str, request_id: &str) {
    let mut event = |name: &str, data: &[u8]| {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\ndata: ");
        // JSON has no line ends outside of its texts, and none in them as they stand.
        out.extend_from_slice(data);
        out.extend_from_slice(b"\n\n");
    };
    match told {
        Told::Put(record) => event("put", record),
        Told::Delete(id) => event("delete", json!({"id": id}).to_string().as_bytes()),
        Told::Reset => event("reset", b"{}"),
        Told::End(error) => {
            problem::log(error, path, request_id);
            let status = problem::status_of(error.code);
            event("end", &problem::document(error, status, path, request_id));
        }
        Told::Mark(id) => {
            out.extend_from_slice(format!("id: {id}\nevent: mark\ndata: {{}}\n\n").as_bytes());
        }
        Told::Alive => out.extend_from_slice(b": alive\n\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use palisade_contract::{Code, Error};

    use super::*;

    fn framed(told: &Told) -> String {
        let mut out = vec![];
        frame(&mut out, told, "/api/compute/pets", "req_1");
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_event_is_a_name_a_line_of_data_and_an_empty_line() {
        assert_eq!(
            framed(&Told::Put("{\"id\":\"a\"}".into())),
            "event: put\ndata: {\"id\":\"a\"}\n\n"
        );
        assert_eq!(
            framed(&Told::Delete("a\nb".to_owned())),
            "event: delete\ndata: {\"id\":\"a\\nb\"}\n\n"
        );
        assert_eq!(framed(&Told::Reset), "event: reset\ndata: {}\n\n");
        assert_eq!(
            framed(&Told::Mark("7@cl_1".to_owned())),
            "id: 7@cl_1\nevent: mark\ndata: {}\n\n"
        );
        assert_eq!(framed(&Told::Alive), ": alive\n\n");
        let end = framed(&Told::End(Arc::new(Error::new(Code::Unauthenticated, "gone"))));
        assert!(end.starts_with("event: end\ndata: {") && end.ends_with("}\n\n"), "{end}");
        assert_eq!(end.lines().count(), 3, "{end}");
    }
}
