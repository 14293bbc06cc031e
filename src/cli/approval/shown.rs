//! How approvals are shown.

use jiff::Timestamp;
use serde_json::Value;

use crate::output::{Table, View, cell, human, number, text};

/// Scopes that a page shows at most.
const SCOPE_MAX: usize = 100;

/// Many approvals.
pub(super) struct Approvals;

impl Approvals {
    fn what(record: &Value) -> String {
        let scope = record.pointer("/scope").and_then(Value::as_array);
        let first = scope.and_then(|scope| scope.first());
        let Some(first) = first else { return "-".to_owned() };
        let more = match number(record, "/size") {
            0 | 1 => String::new(),
            size => format!(" and {} more", size - 1),
        };
        format!("{} {}{more}", cell(first, "/kind"), cell(first, "/subject"))
    }

    fn table_at(records: &[Value], wide: bool, now: Timestamp) -> Table {
        let mut header = vec!["ID", "TENANT", "STATE", "APPROVED", "WHAT", "BY", "AGE"];
        if wide {
            header.extend(["NOT AFTER", "REASON"]);
        }
        let mut table = Table::new(&header);
        for record in records {
            let mut row = vec![
                cell(record, "/id"),
                cell(record, "/tenant"),
                cell(record, "/state"),
                format!("{}/{}", number(record, "/approved"), number(record, "/required")),
                Self::what(record),
                cell(record, "/createdBy"),
                human::age(text(record, "/createdAt"), now),
            ];
            if wide {
                row.extend([cell(record, "/notAfter"), cell(record, "/reason")]);
            }
            table.row(row);
        }
        table
    }
}

impl View for Approvals {
    const KIND: &'static str = "approval";

    fn table(records: &[Value], wide: bool) -> Table {
        Self::table_at(records, wide, Timestamp::now())
    }

    fn name(record: &Value) -> &str {
        text(record, "/id").unwrap_or("-")
    }
}

/// Whose things it is about, in words.
fn whose(record: &Value) -> String {
    match text(record, "/tenant") {
        Some(_) => format!("tenant {}", cell(record, "/tenant")),
        None => "the cluster".to_owned(),
    }
}

/// Who must do what next.
pub(super) fn progress(record: &Value) -> String {
    let id = cell(record, "/id");
    let (approved, required) = (number(record, "/approved"), number(record, "/required"));
    let left = required.saturating_sub(approved);
    let people = if left == 1 { "operator" } else { "operators" };
    format!(
        "approval {id} waits for {left} more {people} of {}, other than {}, until {} ({approved} of {required} have \
         approved): `palisade approval approve {id}`",
        whose(record),
        cell(record, "/createdBy"),
        cell(record, "/notAfter"),
    )
}

/// One approval as a page: what it does, to what, and who has approved.
pub(super) fn page(record: &Value) -> String {
    let mut page = String::new();
    let approved = format!("{} of {}", number(record, "/approved"), number(record, "/required"));
    for (label, value) in [
        ("Id", cell(record, "/id")),
        ("State", cell(record, "/state")),
        ("Of", whose(record)),
        ("By", cell(record, "/createdBy")),
        ("Reason", cell(record, "/reason")),
        ("Created", cell(record, "/createdAt")),
        ("Not after", cell(record, "/notAfter")),
        ("Approved", approved),
        ("Digest", cell(record, "/digest")),
    ] {
        page.push_str(&format!("{label:<10} {value}\n"));
    }
    if record.pointer("/ended").is_some_and(|ended| !ended.is_null()) {
        let [at, by, why] =
            ["at", "by", "why"].map(|field| cell(record, &format!("/ended/{field}")));
        page.push_str(&format!("{:<10} {at} by {by}: {why}\n", "Ended"));
    }
    page.push('\n');
    page.push_str(&does(record).render());
    let approvals = record.pointer("/approvals").and_then(Value::as_array);
    if let Some(all) = approvals.filter(|all| !all.is_empty()) {
        page.push('\n');
        page.push_str(&approvers(all).render());
    }
    page
}

fn does(record: &Value) -> Table {
    let mut table = Table::new(&["DOES", "TO", "WITH"]);
    let none = vec![];
    let list = |pointer| record.pointer(pointer).and_then(Value::as_array).unwrap_or(&none);
    let (scope, calls) = (list("/scope"), list("/calls"));
    for (position, one) in scope.iter().take(SCOPE_MAX).enumerate() {
        let with = calls.get(position).map_or("-".to_owned(), |call| cell(call, "/input"));
        table.row(vec![cell(one, "/kind"), cell(one, "/subject"), with]);
    }
    table
}

fn approvers(all: &[Value]) -> Table {
    let mut table = Table::new(&["APPROVED BY", "AT", "COUNTS"]);
    for one in all {
        let counts = match text(one, "/why") {
            None => "yes".to_owned(),
            Some(_) => format!("no: {}", cell(one, "/why")),
        };
        table.row(vec![cell(one, "/principal"), cell(one, "/at"), counts]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record() -> Value {
        json!({
            "id": "ap_1", "tenant": "acme", "state": "held", "size": 2, "approved": 1,
            "required": 2, "createdBy": "user/ada", "createdAt": "2026-01-01T00:00:00.000Z",
            "notAfter": "2026-01-02T00:00:00.000Z", "reason": "old", "digest": "4be1",
            "scope": [{"subject": "workload/web", "kind": "workloads.remove"},
                {"subject": "workload/db", "kind": "workloads.remove"}],
            "calls": [{"method": "workloads.remove", "input": {"workload": "web"}},
                {"method": "workloads.remove", "input": {"workload": "db"}}],
            "approvals": [
                {"principal": "user/bob", "at": "2026-01-01T00:01:00.000Z", "why": null},
                {"principal": "user/eve", "at": "2026-01-01T00:02:00.000Z",
                    "why": "user/eve would not be let in any more"},
            ],
            "ended": null,
        })
    }

    #[test]
    fn approvals_are_a_table_and_one_is_a_page() {
        let now = "2026-01-01T00:05:00Z".parse().unwrap();
        insta::assert_snapshot!(Approvals::table_at(&[record()], true, now).render(), @r"
        ID    TENANT  STATE  APPROVED  WHAT                                      BY        AGE  NOT AFTER                 REASON
        ap_1  acme    held   1/2       workloads.remove workload/web and 1 more  user/ada  5m   2026-01-02T00:00:00.000Z  old
        ");
        insta::assert_snapshot!(page(&record()), @r#"
        Id         ap_1
        State      held
        Of         tenant acme
        By         user/ada
        Reason     old
        Created    2026-01-01T00:00:00.000Z
        Not after  2026-01-02T00:00:00.000Z
        Approved   1 of 2
        Digest     4be1

        DOES              TO            WITH
        workloads.remove  workload/web  {"workload":"web"}
        workloads.remove  workload/db   {"workload":"db"}

        APPROVED BY  AT                        COUNTS
        user/bob     2026-01-01T00:01:00.000Z  yes
        user/eve     2026-01-01T00:02:00.000Z  no: user/eve would not be let in any more
        "#);
        assert_eq!(
            progress(&record()),
            "approval ap_1 waits for 1 more operator of tenant acme, other than user/ada, until \
             2026-01-02T00:00:00.000Z (1 of 2 have approved): `palisade approval approve ap_1`"
        );
    }
}
