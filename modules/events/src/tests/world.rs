use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::{
    channel::oneshot,
    executor::block_on,
    future::{BoxFuture, ready},
};
use palisade_contract::{
    CloudEvent, Context, Error, EventSink, MethodContext, Module, Principal, RegisteredSink,
    Registry, Result,
    events::{Post, Posted, Webhooks},
    method::Handler,
    module::Extension,
    secrets::SecretKeys,
    waking::Waker,
};
use palisade_secrets::{
    SecretsModule,
    keyring::{Ask, Files, KeyRing, files_in, id_in},
};
use palisade_state::{Tx, View};
use palisade_testing::{Bench, TestRuntime};
use serde_json::{Value, json};

use crate::{EventsModule, dispatch::Seen};

/// What a receiver got.
#[derive(Clone, Debug)]
pub struct Got {
    pub host: String,
    pub id: String,
    pub timestamp: String,
    pub signature: String,
    pub body: Value,
}

impl Got {
    pub fn subject(&self) -> &str {
        self.body["subject"].as_str().unwrap_or_default()
    }
}

type Answers = Box<dyn Fn(&Got) -> std::result::Result<Posted, String> + Send>;

/// Receivers of all hosts: each event is noted, and answered as the test says.
pub struct Receivers {
    got: Mutex<Vec<Got>>,
    answers: Mutex<Answers>,
    /// Hosts that answer only once they are let, and what waits for it.
    slow: Mutex<BTreeSet<String>>,
    waiting: Mutex<Vec<oneshot::Sender<()>>>,
}

pub fn answer(status: u16) -> std::result::Result<Posted, String> {
    Ok(Posted { status, retry_after: None, excerpt: String::new() })
}

impl Default for Receivers {
    fn default() -> Self {
        Self {
            got: Mutex::default(),
            answers: Mutex::new(Box::new(|_| answer(204))),
            slow: Mutex::default(),
            waiting: Mutex::default(),
        }
    }
}

impl Receivers {
    pub fn answer(
        &self,
        answers: impl Fn(&Got) -> std::result::Result<Posted, String> + Send + 'static,
    ) {
        *self.answers.lock().unwrap() = Box::new(answers);
    }

    /// From now on, what these hosts are sent is answered when [`Receivers::let_answer`] says so.
    pub fn keep_waiting(&self, hosts: impl IntoIterator<Item = String>) {
        *self.slow.lock().unwrap() = hosts.into_iter().collect();
    }

    /// Lets all answer that were kept waiting; how many there were.
    pub fn let_answer(&self) -> usize {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        waiting.into_iter().filter_map(|one| one.send(()).ok()).count()
    }

    /// What came since the last time.
    pub fn take(&self) -> Vec<Got> {
        std::mem::take(&mut *self.got.lock().unwrap())
    }
}

impl Webhooks for Receivers {
    fn refuses(&self, url: &str) -> Option<String> {
        url.contains("127.0.0.1").then(|| "is not public".to_owned())
    }

    fn post(&self, post: Post) -> BoxFuture<'static, std::result::Result<Posted, String>> {
        let header = |name| {
            let found = post.headers.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let url: http::Uri = post.url.parse().unwrap();
        let got = Got {
            host: url.host().unwrap().to_owned(),
            id: header("webhook-id"),
            timestamp: header("webhook-timestamp"),
            signature: header("webhook-signature"),
            body: serde_json::from_slice(&post.body).unwrap(),
        };
        let is_slow = self.slow.lock().unwrap().contains(&got.host);
        let answer = (self.answers.lock().unwrap())(&got);
        self.got.lock().unwrap().push(got);
        if !is_slow {
            return Box::pin(ready(answer));
        }
        let (lets, let_answer) = oneshot::channel();
        self.waiting.lock().unwrap().push(lets);
        Box::pin(async move {
            let_answer.await.map_err(|_| "nobody let it answer".to_owned())?;
            answer
        })
    }
}

/// A sink that notes what it takes, unless it is told to fail.
#[derive(Default)]
pub struct Notes {
    pub got: Mutex<Vec<CloudEvent>>,
    pub fails: Mutex<bool>,
}

impl EventSink for Notes {
    fn deliver<'a>(&'a self, _: &'a Context, event: &'a CloudEvent) -> BoxFuture<'a, Result<()>> {
        self.got.lock().unwrap().push(event.clone());
        let fails = *self.fails.lock().unwrap();
        Box::pin(ready(if fails { Err(Error::internal("the sink is full")) } else { Ok(()) }))
    }
}

/// A third party's module with a sink.
pub struct Third(pub Arc<Notes>);

impl Module for Third {
    fn name(&self) -> &'static str {
        "third"
    }

    fn extensions(&self) -> Vec<Extension> {
        vec![Extension { kind: "event-sink", id: "notes", version: "1" }]
    }

    fn event_sinks(&self) -> Vec<RegisteredSink> {
        vec![RegisteredSink { id: "notes", version: "1", sink: self.0.clone() }]
    }
}

/// See the module.
pub struct World {
    pub bench: Bench,
    pub module: EventsModule,
    secret_module: SecretsModule,
    pub receivers: Arc<Receivers>,
    pub notes: Arc<Notes>,
    pub clock: Arc<TestRuntime>,
    ring: Arc<KeyRing>,
    /// What other replicas hand out of keys.
    others: Arc<Mutex<Files>>,
    keys: tempfile::TempDir,
}

/// A signing secret of so many equal bytes.
pub fn secret(byte: u8) -> String {
    format!("whsec_{}", STANDARD.encode([byte; 32]))
}

impl World {
    pub fn new() -> Self {
        let (module, secrets) = (EventsModule::default(), SecretsModule::default());
        let mut bench = Bench::new(&[&secrets, &module]);
        let clock = Arc::<TestRuntime>::default();
        bench.context.rt = clock.clone();
        let (keys, notes) = (tempfile::tempdir().unwrap(), Arc::new(Notes::default()));
        let others = Arc::<Mutex<Files>>::default();
        let asked = others.clone();
        let ask: Ask = Arc::new(move || Box::pin(ready(vec![asked.lock().unwrap().clone()])));
        let ring = Arc::new(KeyRing::open(keys.path().to_owned(), ask).unwrap());
        bench.context.ports.secret_keys.fill(ring.clone()).unwrap();
        palisade_secrets::fill(&bench.context).unwrap();
        let receivers = Arc::new(Receivers::default());
        bench.context.ports.webhooks.fill(receivers.clone()).unwrap();
        let known: Vec<Arc<dyn Module>> = vec![
            Arc::new(EventsModule::default()),
            Arc::new(SecretsModule::default()),
            Arc::new(Third(notes.clone())),
        ];
        let registry = Registry::new(known).unwrap();
        module.bind(&registry);
        secrets.bind(&registry);
        let world = Self {
            bench,
            module,
            secret_module: secrets,
            receivers,
            notes,
            clock,
            ring,
            others,
            keys,
        };
        for _ in 0..3 {
            block_on(palisade_secrets::look(&world.bench.context)).unwrap();
            world.bench.settle();
        }
        world
    }

    fn cx(&self) -> MethodContext {
        let principal = Principal {
            name: "token/tk_1".into(),
            roles: vec!["cluster-admin".into()],
            tenant: String::new(),
        };
        MethodContext {
            context: self.bench.context.clone(),
            principal,
            request_id: "req_1".into(),
            dry_run: false,
            if_match: None,
        }
    }

    /// Calls a method, as the envelope does.
    pub fn call(&self, name: &str, input: Value) -> Result<Value> {
        let methods = [self.module.methods(), self.secret_module.methods()].concat();
        let method = methods.iter().find(|method| method.full_name() == name).unwrap();
        (method.validate)(&input)?;
        let cx = self.cx();
        match &method.handler {
            Handler::Query(run) => run(&cx, &self.view(), input),
            Handler::Mutation(run) => {
                let mut answer = Value::Null;
                block_on(self.bench.context.commit(|tx: &mut Tx| {
                    answer = run(&cx, tx, input.clone())?;
                    Ok(())
                }))?;
                Ok(answer)
            }
            _ => panic!("{name}"),
        }
    }

    pub fn done(&self, name: &str, input: Value) -> Value {
        self.call(name, input.clone()).unwrap_or_else(|error| panic!("{name} {input}: {error:?}"))
    }

    pub fn set_secret(&self, name: &str, value: &str) {
        self.done("secrets.set", json!({"secret": name, "value": value}));
    }

    /// This replica loses the keys of secrets; others have them.
    pub fn lose_keys(&self) {
        let files = files_in(self.keys.path()).unwrap();
        for (name, _) in &files {
            self.ring.forget(id_in(name).unwrap()).unwrap();
        }
        *self.others.lock().unwrap() = files;
    }

    /// It gets them from the others again.
    pub fn find_keys(&self) {
        let names = self.others.lock().unwrap().clone();
        let wanted = names.iter().map(|(name, _)| id_in(name).unwrap().to_owned()).collect();
        assert!(block_on(self.ring.fetch(wanted)).unwrap() > 0);
    }

    /// The names of all secrets.
    pub fn secrets(&self) -> Vec<String> {
        let all = self.done("secrets.list", json!({}));
        let names = all.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
    }

    pub fn view(&self) -> View {
        self.bench.view()
    }

    /// Subscribes `https://<name>.test/x` to everything.
    pub fn subscribe(&self, name: &str, more: Value) -> Value {
        let mut input =
            json!({"name": name, "url": format!("https://{name}.test/x"), "secret": secret(1)});
        for (field, value) in more.as_object().unwrap() {
            input[field] = value.clone();
        }
        let made = self.done("subscriptions.create", input);
        self.bench.settle();
        made
    }

    pub fn shown(&self, name: &str) -> Value {
        self.done("subscriptions.get", json!({"subscription": name}))
    }

    pub fn listed(&self, method: &str, name: &str) -> Vec<Value> {
        let list = self.done(method, json!({"subscription": name}));
        list.as_array().unwrap().clone()
    }

    /// Something happens.
    pub fn publish(&self, tenant: &str, kind: &str, subject: &str) {
        self.bench.commit(|tx| {
            tx.publish(kind, tenant, subject.to_owned(), &json!({"about": subject}));
            Ok(())
        });
    }

    /// Wakes whoever asks for what happened, as the watcher does, and lets all that is due run.
    pub fn run(&self) {
        let wanting = Seen::default().wanting(&self.view(), true).unwrap();
        self.bench.commit(|tx| {
            Ok(wanting.iter().try_for_each(|key| tx.enqueue("event-subscribers", key))?)
        });
        self.bench.settle();
    }

    /// Lets time pass in steps, and what comes due in it run.
    pub fn pass(&self, time: Duration, step: Duration) {
        let steps = time.as_millis() / step.as_millis();
        for _ in 0..steps {
            self.bench.advance(u64::try_from(step.as_millis()).unwrap());
            self.bench.settle();
        }
    }

    /// Lets much time pass in which nobody does anything: the leases are given anew afterwards.
    pub fn leap(&self, ms: u64) {
        self.bench.store.advance(ms.saturating_sub(9_000));
        self.bench.advance(9_000);
    }

    /// The events of this module that were published, by their type.
    pub fn told(&self) -> BTreeMap<String, usize> {
        let mut told = BTreeMap::new();
        let view = self.view();
        for (_, event) in
            view.events(0).filter(|(_, event)| event.kind.starts_with("subscription."))
        {
            *told.entry(event.kind.to_string()).or_default() += 1;
        }
        told
    }

    pub fn findings(&self) -> Vec<String> {
        let found = self.module.self_check(&self.bench.context, &self.view()).unwrap();
        found.into_iter().map(|finding| finding.check).collect()
    }
}

/// The subjects of what was got, in order.
pub fn subjects(got: &[Got]) -> Vec<&str> {
    got.iter().map(Got::subject).collect()
}
