//! Charging, and the refusal of what is too much.
//!
//! # Invariants
//! - `TEN-4` What a tenant takes is the sum of its charges, which are written in one transaction with it.
//! - `TEN-5` No charge that is asked for leaves a quota exceeded that it takes more of than before: it reads the tenant's
//!   quotas and what it takes, and writes the latter, so of two at once the kernel applies one, and the other is built
//!   again on what is left.

use palisade_contract::{
    Code, Error, Result,
    tenants::{Amounts, Charging},
};
use palisade_state::{Tx, View};

use crate::{
    SWEEP_KIND,
    records::{CHARGES, ChargeRow, Quotas, State, TENANTS, USAGE, UsageRow, charge_key},
};

/// The most that one thing is charged of a kind: sums of these stay numbers.
const CHARGE_MAX: u64 = 1 << 56;

/// The most that a tenant may take of a kind, whatever its quota is.
const USED_MAX: u64 = 1 << 62;

/// One kind of what a tenant may have.
pub(crate) struct Kind {
    /// Its name over REST, and the flag of the command line.
    pub name: &'static str,
    /// How much of it an amount is.
    pub of: fn(&mut Amounts) -> &mut u64,
    /// How much of it a tenant may have.
    pub allowed: fn(&Quotas) -> Option<u64>,
    /// An amount of it for people.
    pub shown: fn(u64) -> String,
}

/// All kinds.
pub(crate) const KINDS: [Kind; 4] = [
    Kind {
        name: "workloads",
        of: |amounts| &mut amounts.workloads,
        allowed: |quotas| quotas.workloads,
        shown: |count| count.to_string(),
    },
    Kind {
        name: "instances",
        of: |amounts| &mut amounts.instances,
        allowed: |quotas| quotas.instances,
        shown: |count| count.to_string(),
    },
    Kind {
        name: "cpu",
        of: |amounts| &mut amounts.cpu_milli,
        allowed: |q| q.cpu_milli,
        shown: cpus,
    },
    Kind {
        name: "memory",
        of: |amounts| &mut amounts.memory_bytes,
        allowed: |quotas| quotas.memory_bytes,
        shown: bytes,
    },
];

impl Kind {
    fn amount(&self, amounts: Amounts) -> u64 {
        let mut amounts = amounts;
        *(self.of)(&mut amounts)
    }
}

fn each(amounts: Amounts, with: Amounts, of: fn(u64, u64) -> u64) -> Amounts {
    let mut result = amounts;
    for kind in &KINDS {
        *(kind.of)(&mut result) = of(kind.amount(amounts), kind.amount(with));
    }
    result
}

/// Both together.
pub(crate) fn plus(a: Amounts, b: Amounts) -> Amounts {
    each(a, b, u64::saturating_add)
}

fn minus(a: Amounts, b: Amounts) -> Amounts {
    each(a, b, u64::saturating_sub)
}

/// The sum of a tenant's charges in a view.
pub(crate) fn sum(view: &View, tenant: &str) -> Result<Amounts> {
    let charges = CHARGES.with_prefix(view, charge_key(tenant, "").as_bytes())?;
    Ok(charges.into_iter().fold(Amounts::default(), |sum, (_, row)| plus(sum, row.value.amounts)))
}

/// What a tenant takes, as it is kept in a view.
pub(crate) fn used(view: &View, tenant: &str) -> Result<Amounts> {
    let row = USAGE.get(view, &tenant.to_owned())?;
    Ok(row.map(|row| row.value.used).unwrap_or_default())
}

/// As [`used`], as part of what a transaction has read.
pub(crate) fn used_in(tx: &mut Tx, tenant: &str) -> Result<Amounts> {
    Ok(tx.get(&USAGE, &tenant.to_owned())?.unwrap_or_default().used)
}

/// See [`palisade_contract::tenants::Tenants::charge`].
pub(crate) fn charge(
    tx: &mut Tx,
    tenant: &str,
    subject: &str,
    amounts: Amounts,
    how: Charging,
) -> Result<()> {
    let most = Amounts {
        workloads: CHARGE_MAX,
        instances: CHARGE_MAX,
        cpu_milli: CHARGE_MAX,
        memory_bytes: CHARGE_MAX,
    };
    let asked = each(amounts, most, u64::min);
    let (tenant, key) = (tenant.to_owned(), charge_key(tenant, subject));
    let before = tx.get(&CHARGES, &key)?.unwrap_or_default().amounts;
    if before == asked {
        return Ok(());
    }
    debug_assert_eq!(sum(tx.view(), &tenant)?, self::used(tx.view(), &tenant)?, "TEN-4");
    let row = tx.get(&TENANTS, &tenant)?;
    let used = used_in(tx, &tenant)?;
    let after = plus(minus(used, before), asked);
    if how == Charging::Asked {
        let quotas = row.as_ref().map(|row| row.quotas).unwrap_or_default();
        check(&tenant, &quotas, used, after)?;
    }
    if asked == Amounts::default() {
        tx.delete(&CHARGES, &key)?;
        if row.is_some_and(|row| row.state == State::Deleting) {
            // One thing less to wait for.
            tx.enqueue(SWEEP_KIND, &tenant)?;
        }
    } else {
        tx.put(&CHARGES, &key, &ChargeRow { amounts: asked })?;
    }
    Ok(tx.put(&USAGE, &tenant, &UsageRow { used: after })?)
}

/// `TEN-5`: what is not more than before is never refused, so that a tenant over a lowered quota can shrink.
fn check(tenant: &str, quotas: &Quotas, used: Amounts, after: Amounts) -> Result<()> {
    let (mut broken, mut flags) = (vec![], vec![]);
    for kind in &KINDS {
        let (used, after) = (kind.amount(used), kind.amount(after));
        let allowed = (kind.allowed)(quotas).unwrap_or(USED_MAX).min(USED_MAX);
        if after <= used || after <= allowed {
            continue;
        }
        let [more, used, allowed] = [after - used, used, allowed].map(kind.shown);
        broken
            .push(format!("{}: {used} used, {more} more asked for, {allowed} allowed", kind.name));
        flags.push(format!("--{} {}", kind.name, flag(&(kind.shown)(after))));
    }
    if broken.is_empty() {
        return Ok(());
    }
    let quota = if broken.len() == 1 { "a quota" } else { "quotas" };
    Err(Error::new(
        Code::QuotaExceeded,
        format!("this exceeds {quota} of tenant {tenant}: {}", broken.join("; ")),
    )
    .hint(format!(
        "ask for less, scale down or remove another workload of the tenant, or have a cluster-admin allow more: \
         `palisade tenant set-quota {tenant} {}`",
        flags.join(" ")
    )))
}

/// An amount as a word of a command line.
fn flag(shown: &str) -> String {
    shown.replace(' ', "")
}

/// Thousandths of a thread for people: `2`, `0.25`.
pub(crate) fn cpus(milli: u64) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Bytes for people, exactly: in the largest unit of which they are a whole number.
pub(crate) fn bytes(count: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (size, unit) in units {
        if count >= size && count.is_multiple_of(size) {
            return format!("{} {unit}", count / size);
        }
    }
    format!("{count} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_shown_exactly() {
        assert_eq!([0, 250, 1000, 1500, 12_345].map(cpus), ["0", "0.25", "1", "1.5", "12.345"]);
        let sizes = [0, 512, 1 << 20, 3 << 29, (1 << 30) + 1];
        assert_eq!(sizes.map(bytes), ["0 B", "512 B", "1 MiB", "1536 MiB", "1073741825 B"]);
    }
}
