//! What a release lets callers of REST do, the next one lets them do as well: `tests/golden/surface-*.txt` has what each
//! release took and gave, a line for each thing that a caller may rely on.
//!
//! `PALISADE_GOLDEN=write cargo test -p palisade --lib builder::surface` writes the file of this release when it is missing.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

const RELEASES: [&str; 1] = ["surface-0.1.0.txt"];

/// What there is, and what a caller must send.
#[derive(Default)]
struct Surface {
    there: BTreeSet<String>,
    must: BTreeSet<String>,
}

struct Walk<'a> {
    doc: &'a Value,
    surface: Surface,
    /// Schemas by name that were told, as asked or given.
    told: BTreeSet<(&'a str, bool)>,
}

impl<'a> Walk<'a> {
    fn resolved(&self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(at) => self.doc.pointer(at.trim_start_matches('#')).unwrap(),
            None => schema,
        }
    }

    /// `is_asked`: the caller sends it. What has a name is told once.
    fn schema(&mut self, schema: &'a Value, at: &str, is_asked: bool) {
        if let Some(name) = schema["$ref"].as_str().and_then(|at| at.rsplit('/').next()) {
            self.surface.there.insert(format!("{at} -> {name}"));
            if self.told.insert((name, is_asked)) {
                let at = format!("{} {name} ", if is_asked { "ASKED" } else { "GIVEN" });
                self.schema(self.resolved(schema), &at, is_asked);
            }
            return;
        }
        for kind in ["anyOf", "oneOf", "allOf"] {
            for one in schema[kind].as_array().into_iter().flatten() {
                self.schema(one, at, is_asked);
            }
        }
        match &schema["type"] {
            Value::String(kind) => drop(self.surface.there.insert(format!("{at}: {kind}"))),
            kinds => {
                let kinds = kinds.as_array().into_iter().flatten().filter_map(Value::as_str);
                self.surface.there.extend(kinds.map(|kind| format!("{at}: {kind}")));
            }
        }
        let values = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
        self.surface.there.extend(values.map(|value| format!("{at} = {value}")));
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            self.schema(field, &format!("{at}/{name}"), is_asked);
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let line = format!("{at}/{name}");
            if is_asked {
                self.surface.must.insert(format!("must {line}"));
            } else {
                self.surface.there.insert(format!("always {line}"));
            }
        }
        if schema["items"].is_object() {
            self.schema(&schema["items"], &format!("{at}[]"), is_asked);
        }
        if schema["additionalProperties"].is_object() {
            self.schema(&schema["additionalProperties"], &format!("{at}/*"), is_asked);
        }
    }

    fn operation(&mut self, name: &str, operation: &'a Value) {
        self.surface.there.insert(format!("{name} is {}", operation["operationId"]));
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let parameter = self.resolved(parameter);
            let [place, of] = ["in", "name"].map(|field| parameter[field].as_str().unwrap());
            let at = format!("{name} {place} {of}");
            if parameter["required"] == true {
                self.surface.must.insert(format!("must {at}"));
            }
            self.schema(&parameter["schema"], &at, true);
        }
        for (media, content) in
            self.resolved(&operation["requestBody"])["content"].as_object().into_iter().flatten()
        {
            self.schema(&content["schema"], &format!("{name} takes {media} "), true);
        }
        let answers = operation["responses"].as_object().into_iter().flatten();
        for (status, answer) in answers {
            for (media, content) in
                self.resolved(answer)["content"].as_object().into_iter().flatten()
            {
                self.schema(&content["schema"], &format!("{name} gives {status} {media} "), false);
            }
        }
    }
}

fn surface(doc: &Value) -> Surface {
    let mut walk = Walk { doc, surface: Surface::default(), told: BTreeSet::new() };
    for (path, operations) in doc["paths"].as_object().unwrap() {
        for (verb, operation) in operations.as_object().unwrap() {
            walk.operation(&format!("{} {path}", verb.to_uppercase()), operation);
        }
    }
    walk.surface
}

/// What callers of `before` would miss, or be refused for, now.
fn broken(before: &[&str], now: &Surface) -> Vec<String> {
    let (must, there): (BTreeSet<&str>, BTreeSet<&str>) =
        before.iter().partition(|line| line.starts_with("must "));
    let missing = there.iter().filter(|line| !now.there.contains(**line));
    let known = |line: &str| {
        let operation: Vec<&str> = line.split(' ').skip(1).take(2).collect();
        let begins = format!("{} ", operation.join(" "));
        there.iter().any(|line| line.starts_with(&begins))
    };
    let new_must = now.must.iter().filter(|line| !must.contains(line.as_str()) && known(line));
    missing
        .map(|line| format!("it is gone: {line}"))
        .chain(new_must.map(|line| format!("it was not asked for: {line}")))
        .collect()
}

fn today() -> Surface {
    surface(&serde_json::from_str(include_str!("../../api/server/openapi.json")).unwrap())
}

#[test]
fn callers_of_each_release_are_served_as_before() {
    let now = today();
    for release in RELEASES {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(release);
        if std::env::var_os("PALISADE_GOLDEN").is_some() && !file.exists() {
            let lines = now.there.iter().chain(&now.must);
            fs::write(&file, lines.map(|line| line.clone() + "\n").collect::<String>()).unwrap();
        }
        let before = fs::read_to_string(&file).unwrap();
        let broken = broken(&before.lines().collect::<Vec<_>>(), &now);
        assert!(broken.is_empty(), "{release}: {broken:#?}");
    }
}

#[test]
fn what_callers_would_miss_is_found() {
    let now = today();
    let before: Vec<String> = now.there.iter().chain(&now.must).cloned().collect();
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let with = |change: fn(&mut Value)| {
        let mut doc = serde_json::from_str(include_str!("../../api/server/openapi.json")).unwrap();
        change(&mut doc);
        broken(&before, &surface(&doc))
    };
    assert_eq!(with(|_| ()), Vec::<String>::new());
    let gone = with(|doc| {
        doc["paths"]["/api/compute/workloads"].as_object_mut().unwrap().remove("get");
    });
    assert!(gone.iter().any(|line| line.contains("GET /api/compute/workloads is")), "{gone:?}");
    let renamed = with(|doc| {
        let record = doc["components"]["schemas"]["WorkloadRecord"]["properties"].as_object_mut();
        let record = record.unwrap();
        let count = record.remove("count").unwrap();
        record.insert("instances".to_owned(), count);
    });
    assert_eq!(renamed, ["it is gone: GIVEN WorkloadRecord /count: integer"]);
    let required = with(|doc| {
        let parameters = &mut doc["paths"]["/api/compute/workloads"]["get"]["parameters"];
        parameters[0]["required"] = Value::Bool(true);
    });
    assert_eq!(required, ["it was not asked for: must GET /api/compute/workloads query pool"]);
    let more = with(|doc| {
        let record = &mut doc["components"]["schemas"]["WorkloadRecord"]["properties"];
        record["later"] = serde_json::json!({"type": "string"});
    });
    assert_eq!(more, Vec::<String>::new(), "a field may come");
}
