//! Who asks, and whether it may ask now: before the quorum is asked for anything.

use std::net::IpAddr;

use palisade_contract::{Code, Result, ports::Credential};

use super::{Incoming, Rest, request};
use crate::{
    envelope::{Authenticated, Caller, Consistency},
    rate::Pass,
};

/// Where a connection comes from; every request of it carries this among its extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(pub(crate) IpAddr);

/// A caller that is known and may ask.
pub(super) struct Admitted {
    pub(super) who: Authenticated,
    pub(super) credential: Credential,
    /// Counts the request until it is answered.
    pub(super) pass: Pass,
}

impl Rest {
    /// Authenticates, and takes from the caller's bucket.
    ///
    /// What this replica knows by itself decides first, so that neither a flood of one principal nor one of wrong
    /// credentials reaches the quorum; whether it is still true is what the second look is for.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, `RATE_LIMITED`, or the view cannot be had.
    pub(super) async fn admit(
        &self,
        incoming: &Incoming<'_>,
        consistency: Consistency,
    ) -> Result<Admitted> {
        let credential = request::credential(&incoming.parts.headers, incoming.peer)?;
        let caller = Caller::Credential(credential.clone());
        let rates = self.envelope.rates();
        let known = self.envelope.authenticate(caller.clone(), Consistency::Local).await;
        let pass = match &known {
            Ok(who) => Some(rates.admit(&who.principal.name)?),
            Err(error) if error.code == Code::Unauthenticated => {
                if let Some(Origin(address)) = incoming.parts.extensions.get() {
                    rates.wrong(*address)?;
                }
                None
            }
            Err(_) => None,
        };
        let who = match consistency {
            Consistency::Local => known?,
            newer => self.envelope.authenticate(caller, newer).await?,
        };
        let pass = match pass {
            Some(pass) => pass,
            // It was made a moment ago, and this replica did not know yet.
            None => rates.admit(&who.principal.name)?,
        };
        Ok(Admitted { who, credential, pass })
    }
}
