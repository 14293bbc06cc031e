//! One bad module for each rule, with the exact words of its refusal.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use palisade_state::Table;
use schemars::JsonSchema;
use serde::Deserialize;

use super::*;
use crate::{
    Check, Nothing, ReconcileContext, ShardBy,
    module::{Catalog, CommandKind, Extension, Migration, Periodic, Run},
};

struct Work {
    name: &'static str,
    every_ms: u64,
}

impl Reconciler for Work {
    fn name(&self) -> &'static str {
        self.name
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::None
    }

    fn periodic(&self) -> Vec<Periodic> {
        let every = Duration::from_millis(self.every_ms);
        vec![
            Periodic { key: "slow".into(), every: Duration::from_secs(60) },
            Periodic { key: "sweep".into(), every },
        ]
    }

    fn run<'a>(&'a self, _: &'a ReconcileContext, _: &'a str) -> BoxFuture<'a, Result<Run>> {
        std::future::ready(Ok(Run::Done)).boxed()
    }
}

/// A module that is what it is told to be.
#[derive(Clone, Default)]
struct Fake {
    name: &'static str,
    plugin: Option<&'static str>,
    requires: &'static [&'static str],
    tables: Vec<&'static str>,
    migrations: Vec<&'static str>,
    extensions: Vec<(&'static str, &'static str, &'static str)>,
    kinds: Vec<(&'static str, &'static str, u64)>,
    reconcilers: Vec<(&'static str, u64)>,
    actions: Vec<&'static str>,
    types: Vec<&'static str>,
    methods: Vec<Method>,
}

impl Module for Fake {
    fn name(&self) -> &'static str {
        self.name
    }

    fn plugin(&self) -> Option<&'static str> {
        self.plugin
    }

    fn requires(&self) -> &[&'static str] {
        self.requires
    }

    fn tables(&self) -> Vec<Declared> {
        let declared = |name: &&'static str| Table::<String, u64>::new(name, &[]).declared();
        self.tables.iter().map(declared).collect()
    }

    fn migrations(&self) -> Vec<Migration> {
        let migration = |name: &&'static str| Migration { name, run: Arc::new(|_| Ok(())) };
        self.migrations.iter().map(migration).collect()
    }

    fn extensions(&self) -> Vec<Extension> {
        let extension = |(kind, id, version)| Extension { kind, id, version };
        self.extensions.iter().copied().map(extension).collect()
    }

    fn command_kinds(&self) -> Vec<CommandKind> {
        let kind = |(kind, lane, seconds)| {
            let kind = CommandKind::new::<Nothing>(kind, lane, Duration::from_secs(seconds));
            if lane == "guarded" { kind.roles(&["Keeper of pets"]) } else { kind }
        };
        self.kinds.iter().copied().map(kind).collect()
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        let work = |(name, every_ms)| -> Arc<dyn Reconciler> { Arc::new(Work { name, every_ms }) };
        self.reconcilers.iter().copied().map(work).collect()
    }

    fn catalog(&self) -> Catalog {
        Catalog { actions: self.actions.clone(), resource_types: self.types.clone() }
    }

    fn methods(&self) -> Vec<Method> {
        self.methods.clone()
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "a shape")]
struct One {
    pet: String,
}

impl Check for One {}

const READ: &str = "compute:pets:read";
const PLUGIN_READ: &str = "compute:acme:read";

fn on(group: &str, name: &str, action: &str) -> Method {
    Method::query(group, name, action, |_, _, _: One| Ok(String::new()))
}

fn list() -> Method {
    Method::query("pets", "list", READ, |_, _, _: Nothing| Ok(String::new()))
}

/// A module `pets` with one action, to which a test adds what is wrong.
fn pets() -> Fake {
    Fake { name: "pets", actions: vec![READ], ..Fake::default() }
}

/// A plugin `acme` of a module `acme-pets`.
fn acme() -> Fake {
    Fake { name: "acme-pets", plugin: Some("acme"), actions: vec![PLUGIN_READ], ..Fake::default() }
}

fn other(fake: Fake) -> Fake {
    Fake { name: "other", ..fake }
}

fn registered(modules: Vec<Fake>) -> Result<Registry> {
    Registry::new(modules.into_iter().map(|fake| Arc::new(fake) as Arc<dyn Module>).collect())
}

fn with_method(method: Method) -> Vec<Fake> {
    vec![Fake { methods: vec![method], ..pets() }]
}

type Bad = (Vec<Fake>, &'static str);

fn bad_names() -> Vec<Bad> {
    vec![
        (
            vec![Fake { name: "Pets", ..pets() }],
            r#"module "Pets": its name does not match ^[a-z][a-z0-9-]{0,63}$"#,
        ),
        (
            vec![Fake { name: "a\u{202e}b", ..pets() }],
            r#"module "a\u{202e}b": its name does not match ^[a-z][a-z0-9-]{0,63}$"#,
        ),
        (vec![pets(), pets()], "module pets: is registered twice"),
        (
            vec![Fake { requires: &["zoo"], ..pets() }],
            "module pets: requires module zoo, which is not registered",
        ),
        (
            vec![Fake { plugin: Some("Acme"), ..acme() }],
            r#"module acme-pets: its plugin id "Acme" does not match ^[a-z][a-z0-9-]{0,63}$"#,
        ),
        (
            vec![acme(), Fake { actions: vec![], ..other(acme()) }],
            "module other: plugin id acme is module acme-pets's already",
        ),
        (
            vec![Fake { plugin: Some("pets"), actions: vec![], ..acme() }, pets()],
            "module acme-pets: its plugin id pets is the area of actions of module pets: choose another id",
        ),
    ]
}

fn bad_tables() -> Vec<Bad> {
    let table = |name| vec![Fake { tables: vec![name], ..pets() }];
    let of_plugin = |name| vec![Fake { tables: vec![name], ..acme() }];
    let migrations = |names: &[&'static str]| vec![Fake { migrations: names.to_vec(), ..pets() }];
    vec![
        (
            table("kernel.cursors"),
            r#"module pets: table "kernel.cursors" does not match ^[a-z][a-z0-9_-]{0,95}$"#,
        ),
        (
            table("pets#name"),
            r#"module pets: table "pets#name" does not match ^[a-z][a-z0-9_-]{0,95}$"#,
        ),
        (table("migrations"), "module pets: table migrations is kept for the runtime"),
        (
            table("plg_acme_pets"),
            "module pets: table plg_acme_pets: plg_… are the tables of plugins",
        ),
        (
            of_plugin("pets"),
            "module acme-pets: table pets is not named plg_acme_…, as a plugin's are",
        ),
        (
            of_plugin("plg_acme_"),
            "module acme-pets: table plg_acme_ is not named plg_acme_…, as a plugin's are",
        ),
        (
            of_plugin("plg_acmex_pets"),
            "module acme-pets: table plg_acmex_pets is not named plg_acme_…, as a plugin's are",
        ),
        (
            vec![Fake { tables: vec!["a", "a"], ..pets() }],
            "module pets: table a is registered twice",
        ),
        (
            vec![
                Fake { tables: vec!["a"], ..pets() },
                Fake { tables: vec!["a"], actions: vec![], ..other(pets()) },
            ],
            "module other: table a is module pets's already",
        ),
        (
            migrations(&["zoo/0001_a"]),
            r#"module pets: migration "zoo/0001_a" is not named pets/<nnnn>_<slug>"#,
        ),
        (
            migrations(&["pets/1_a"]),
            r#"module pets: migration "pets/1_a" is not named pets/<nnnn>_<slug>"#,
        ),
        (
            migrations(&["pets/0001_-a"]),
            r#"module pets: migration "pets/0001_-a" is not named pets/<nnnn>_<slug>"#,
        ),
        (
            migrations(&["pets/0000_a"]),
            "module pets: migration pets/0000_a does not come behind 0000",
        ),
        (
            migrations(&["pets/0002_a", "pets/0002_b"]),
            "module pets: migration pets/0002_b does not come behind 0002",
        ),
    ]
}

fn bad_sinks() -> Vec<Bad> {
    let sink = Fake { extensions: vec![("audit-sink", "x", "1")], ..pets() };
    vec![(vec![sink], "module pets: extension audit-sink:x@1 has no code, or more than one")]
}

fn bad_kinds() -> Vec<Bad> {
    let extension =
        |kind, id, version| vec![Fake { extensions: vec![(kind, id, version)], ..pets() }];
    let command = |kind, lane, seconds| vec![Fake { kinds: vec![(kind, lane, seconds)], ..pets() }];
    let reconciler = |name| vec![Fake { reconcilers: vec![(name, 1_000)], ..pets() }];
    vec![
        (
            extension("plugin", "x", "1"),
            r#"module pets: extension plugin:x@1: "plugin" is none of the kinds driver, attestor, provider, placement, pool-policy, event-sink, audit-sink"#,
        ),
        (
            extension("driver", "X", "1"),
            r#"module pets: extension "driver:X@1" is not named driver:<id>@<version>"#,
        ),
        (
            extension("driver", "x", ""),
            r#"module pets: extension "driver:x@" is not named driver:<id>@<version>"#,
        ),
        (
            vec![Fake {
                extensions: vec![("driver", "x", "1"), ("driver", "x", "2"), ("driver", "x", "1")],
                ..pets()
            }],
            "module pets: extension driver:x@1 is registered twice",
        ),
        (
            command("Feed", "a", 1),
            r#"module pets: command kind "Feed" does not match ^[a-z][a-z0-9._-]{0,63}$"#,
        ),
        (
            command("feed", "a b", 1),
            r#"module pets: command kind feed: its lane "a b" does not match ^[a-z][a-z0-9-]{0,63}$"#,
        ),
        (command("feed", "a", 0), "module pets: command kind feed: its timeout is 0"),
        (
            command("feed", "guarded", 1),
            r#"module pets: command kind feed: its role "Keeper of pets" does not match ^[a-z][a-z0-9-]{0,63}$"#,
        ),
        (
            vec![
                Fake { kinds: vec![("feed", "a", 1)], ..pets() },
                Fake { kinds: vec![("feed", "b", 1)], actions: vec![], ..other(pets()) },
            ],
            "module other: command kind feed is module pets's already",
        ),
        (
            reconciler("Sweep"),
            r#"module pets: "Sweep" is not a reconciler name: ^[a-z][a-z0-9._-]{0,63}$"#,
        ),
        (
            reconciler("command-sweeper"),
            "module pets: reconciler name command-sweeper is kept for the runtime",
        ),
        (
            reconciler("outbox-dispatch"),
            "module pets: reconciler name outbox-dispatch is kept for the runtime",
        ),
        (
            reconciler("event-subscribers"),
            "module pets: reconciler name event-subscribers is kept for the runtime",
        ),
        (
            vec![Fake { reconcilers: vec![("sweep", 1_000), ("sweep", 1_000)], ..pets() }],
            "module pets: reconciler sweep is registered twice",
        ),
        (
            vec![Fake { reconcilers: vec![("sweep", 999)], ..pets() }],
            r#"module pets: reconciler sweep: periodic key "sweep" comes back in under 1 s"#,
        ),
    ]
}

fn bad_catalogs() -> Vec<Bad> {
    let action = |action| vec![Fake { actions: vec![action], ..pets() }];
    vec![
        (action("pets:read"), r#"module pets: action "pets:read" is not compute:<area>:<verb>"#),
        (
            action("compute:Pets:read"),
            r#"module pets: action "compute:Pets:read" is not compute:<area>:<verb>"#,
        ),
        (
            action("compute:pets:read:all"),
            r#"module pets: action "compute:pets:read:all" is not compute:<area>:<verb>"#,
        ),
        (
            vec![Fake { actions: vec![READ], ..acme() }],
            r#"module acme-pets: action "compute:pets:read" is not compute:acme:<verb>"#,
        ),
        (
            vec![pets(), other(pets())],
            "module other: action compute:pets:read is module pets's already",
        ),
        (
            vec![Fake { types: vec!["Pet"], ..pets() }],
            r#"module pets: resource type "Pet" does not match ^[a-z][a-z0-9-]{0,63}$"#,
        ),
        (
            vec![Fake { types: vec!["pet"], ..pets() }, Fake { types: vec!["pet"], ..acme() }],
            "module acme-pets: resource type pet is module pets's already",
        ),
    ]
}

fn bad_routes() -> Vec<Bad> {
    let at = |path: &str| with_method(on("pets", "get", READ).rest(Verb::Get, path));
    vec![
        (
            with_method(on("pets", "get", "compute:pets:write")),
            "module pets: method pets.get needs action compute:pets:write, which its catalog does not list",
        ),
        (
            vec![Fake { methods: vec![list(), list()], ..pets() }],
            "module pets: method pets.list is registered twice",
        ),
        (
            with_method(list().watched(crate::Watched::Records)),
            "module pets: method pets.list is watched, and is not a query that answers a list",
        ),
        (
            vec![Fake {
                methods: vec![
                    list().rest(Verb::Get, "/pets"),
                    on("pets", "get", READ).rest(Verb::Get, "/pets"),
                ],
                ..pets()
            }],
            "module pets: method pets.get: route GET /pets is that of pets.list",
        ),
        (
            at("pets"),
            r#"module pets: method pets.get: path "pets": it does not begin with a slash"#,
        ),
        (
            at("/pets/"),
            r#"module pets: method pets.get: path "/pets/": "" is neither a word nor a {parameter}"#,
        ),
        (
            at("/pets/{Pet}"),
            r#"module pets: method pets.get: path "/pets/{Pet}": "{Pet}" is neither a word nor a {parameter}"#,
        ),
        (
            at("/pets/x{pet}"),
            r#"module pets: method pets.get: path "/pets/x{pet}": "x{pet}" is neither a word nor a {parameter}"#,
        ),
        (
            at("/pets/{pet}/{pet}"),
            r#"module pets: method pets.get: path "/pets/{pet}/{pet}": the parameter pet is there twice"#,
        ),
        (
            at("/pets/{dog}"),
            "module pets: method pets.get: path /pets/{dog}: its input has no field dog",
        ),
        (
            at("/plugins/acme/x"),
            "module pets: method pets.get: path /plugins/acme/x: /plugins/… are the paths of plugins",
        ),
        (
            at("/plugins"),
            "module pets: method pets.get: path /plugins: /plugins/… are the paths of plugins",
        ),
        (
            with_method(on("1pets", "get", READ)),
            r#"module pets: method 1pets.get: "1pets" is not a method name"#,
        ),
    ]
}

fn bad_methods() -> Vec<Bad> {
    let mut bad = bad_routes();
    let reserved =
        ["then", "catch", "finally", "toJSON", "constructor", "prototype", "__proto__", "plugins"];
    let texts = [
        r#"module pets: method pets.then: "then" is not a method name"#,
        r#"module pets: method pets.catch: "catch" is not a method name"#,
        r#"module pets: method pets.finally: "finally" is not a method name"#,
        r#"module pets: method pets.toJSON: "toJSON" is not a method name"#,
        r#"module pets: method pets.constructor: "constructor" is not a method name"#,
        r#"module pets: method pets.prototype: "prototype" is not a method name"#,
        r#"module pets: method pets.__proto__: "__proto__" is not a method name"#,
        r#"module pets: method pets.plugins: "plugins" is not a method name"#,
    ];
    for (name, text) in reserved.into_iter().zip(texts) {
        bad.push((with_method(on("pets", name, READ)), text));
    }
    bad
}

#[test]
fn each_bad_module_is_refused_in_words_that_name_it_and_the_rule() {
    let all = [bad_names(), bad_tables(), bad_kinds(), bad_sinks(), bad_catalogs(), bad_methods()]
        .concat();
    for (modules, text) in all {
        let Err(refused) = registered(modules) else { panic!("taken, but: {text}") };
        assert_eq!((refused.code, refused.detail.as_str()), (Code::InvalidConfig, text));
    }
}

#[test]
fn good_modules_are_taken_and_keep_their_order() {
    let pets = Fake {
        requires: &["acme-pets"],
        tables: vec!["pets", "pet_food"],
        migrations: vec!["pets/0001_a", "pets/0007_b-c_d"],
        extensions: vec![("driver", "x", "1"), ("driver", "x", "1.2-rc"), ("attestor", "x", "1")],
        kinds: vec![("pets.feed", "food", 1), ("pets.wash", "food", 1)],
        reconcilers: vec![("pets.sweep", 1_000)],
        types: vec!["pet"],
        methods: vec![
            list().rest(Verb::Get, "/pets"),
            on("pets", "get", READ).rest(Verb::Get, "/pets/{pet}"),
            on("pets", "wash", READ).rest(Verb::Post, "/pets/{pet}"),
            on("pets", "plain", READ),
        ],
        ..pets()
    };
    let acme = Fake {
        tables: vec!["plg_acme_pets"],
        methods: vec![
            on("pets", "get", PLUGIN_READ).rest(Verb::Get, "/pets/{pet}"),
            on("pets", "plain", PLUGIN_READ),
        ],
        ..acme()
    };
    let registry = registered(vec![pets, acme]).unwrap();
    let names: Vec<_> = registry.modules().iter().map(|module| module.name()).collect();
    assert_eq!(names, ["pets", "acme-pets"]);
    let paths: Vec<_> = registry.methods().into_iter().map(|(_, binding)| binding.path).collect();
    let wanted = ["/pets", "/pets/{pet}", "/pets/{pet}", "/pets/plain"];
    assert_eq!(paths[..4], wanted);
    assert_eq!(paths[4..], ["/plugins/acme/pets/{pet}", "/plugins/acme/pets/plain"]);
    let tables: Vec<_> = registry.tables().iter().copied().collect();
    assert_eq!(tables, ["migrations", "pet_food", "pets", "plg_acme_pets"]);
}

#[test]
fn a_path_whose_parameter_has_another_name_is_the_same_route() {
    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "a shape")]
    struct Other {
        name: String,
    }
    impl Check for Other {}
    let by_name = Method::query("pets", "find", READ, |_, _, _: Other| Ok(String::new()));
    let methods = vec![
        on("pets", "get", READ).rest(Verb::Get, "/pets/{pet}"),
        by_name.rest(Verb::Get, "/pets/{name}"),
    ];
    let refused = registered(vec![Fake { methods, ..pets() }]).err().unwrap();
    assert_eq!(
        refused.detail,
        "module pets: method pets.find: route GET /pets/{name} is that of pets.get"
    );
}

#[test]
fn an_event_sink_without_code_is_refused() {
    let sink = Fake { extensions: vec![("event-sink", "x", "1")], ..pets() };
    let refused = Registry::new(vec![Arc::new(sink)]).err().unwrap().to_string();
    assert_eq!(refused, "module pets: extension event-sink:x@1 has no code, or more than one");
}
