//! Signatures by Standard Webhooks 1.0: `v1`, HMAC-SHA256 over `<id>.<timestamp>.<body>`.
//!
//! # Invariants
//! - `EVT-1` What is sent to a receiver is signed with every secret that is valid then, under an id that every attempt at the same
//!   event has.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use palisade_contract::SecretBytes;
use ring::hmac;

/// What the text of a secret begins with.
pub const PREFIX: &str = "whsec_";
/// Bytes of a secret at least and at most.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// What a secret must be, for messages.
pub const RULE: &str = "must be whsec_ and the base64 (with padding) of 24 to 64 random bytes";

/// A secret that something is signed with. It has no `Debug` that shows it: `SEC-1`.
pub struct SigningKey(hmac::Key);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

impl SigningKey {
    /// Reads `whsec_…`; a line feed at its end, as files have one, is none of it. `None`: it is not one.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?.trim_end_matches(['\r', '\n']);
        let bytes = STANDARD.decode(text.strip_prefix(PREFIX)?).ok()?;
        BYTES.contains(&bytes.len()).then(|| Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The same of a secret.
    #[must_use]
    pub fn of(secret: &SecretBytes) -> Option<Self> {
        Self::parse(secret.reveal())
    }

    fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut signed = hmac::Context::with_key(&self.0);
        signed.update(format!("{id}.{timestamp}.").as_bytes());
        signed.update(body);
        format!("v1,{}", STANDARD.encode(signed.sign()))
    }
}

/// The value of `webhook-signature`: a signature for each key. `timestamp` is in seconds.
#[must_use]
pub fn header(keys: &[SigningKey], id: &str, timestamp: u64, body: &[u8]) -> String {
    let all: Vec<String> = keys.iter().map(|key| key.sign(id, timestamp, body)).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const AT: u64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SECRET: &[u8] = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn the_vector_of_standard_webhooks_comes_out() {
        let key = SigningKey::parse(SECRET).unwrap();
        assert_eq!(header(&[key], ID, AT, BODY), SIGNATURE, "EVT-1");
        let key = SigningKey::parse(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        for (id, at, body) in [("msg_2", AT, BODY), (ID, AT + 1, BODY), (ID, AT, b"{}".as_slice())]
        {
            assert_ne!(key.sign(id, at, body), SIGNATURE, "each part is signed");
        }
    }

    #[test]
    fn with_two_secrets_there_are_two_signatures() {
        let other = format!("whsec_{}", STANDARD.encode([7; 32]));
        let keys = [SigningKey::parse(other.as_bytes()), SigningKey::parse(SECRET)];
        let both = header(&keys.map(Option::unwrap), ID, AT, BODY);
        let both: Vec<&str> = both.split(' ').collect();
        assert!(both.len() == 2 && both[1] == SIGNATURE && both[0] != SIGNATURE, "EVT-1: {both:?}");
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![1; bytes]));
        assert!(SigningKey::parse(of(24).as_bytes()).is_some());
        assert!(SigningKey::parse(of(64).as_bytes()).is_some());
        for wrong in
            [of(23), of(65), of(32).replace("whsec_", ""), "whsec_%%".into(), String::new()]
        {
            assert!(SigningKey::parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
        let shown = format!("{:?}", SigningKey::parse(SECRET).unwrap());
        assert_eq!(shown, "SigningKey", "SEC-1");
    }
}
