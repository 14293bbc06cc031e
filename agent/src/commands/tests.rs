use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use futures::{channel::oneshot, future::BoxFuture};
use palisade_state::step::StepRuntime;
use serde_json::json;

use super::*;

/// A journal that outlives its agent, and a disk that may refuse.
#[derive(Default)]
struct Disk {
    journal: Mutex<Journal>,
    saves: Mutex<Vec<Journal>>,
    is_full: AtomicBool,
}

impl JournalStore for Arc<Disk> {
    fn load(&self) -> BoxFuture<'static, Result<Journal, JournalError>> {
        let journal = lock(&self.journal).clone();
        Box::pin(async move { Ok(journal) })
    }

    fn save(&self, journal: &Journal) -> BoxFuture<'static, Result<(), JournalError>> {
        let (disk, journal) = (self.clone(), journal.clone());
        Box::pin(async move {
            if disk.is_full.load(Ordering::SeqCst) {
                let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
                return Err(JournalError { path: "commands".into(), source });
            }
            lock(&disk.saves).push(journal.clone());
            *lock(&disk.journal) = journal;
            Ok(())
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was done, and what is under way.
#[derive(Default)]
struct Doings {
    begun: Vec<Value>,
    /// Whether each id was on disk when it was begun.
    recorded: Vec<bool>,
    going: BTreeMap<String, oneshot::Sender<Result<Value, Problem>>>,
}

/// Does what it is told when the test says so.
struct Slow {
    disk: Arc<Disk>,
    doings: Arc<Mutex<Doings>>,
}

impl Executor for Slow {
    fn kind(&self) -> &'static str {
        "slow"
    }

    fn run(&self, payload: Value) -> BoxFuture<'static, Result<Value, Problem>> {
        let name = payload["name"].as_str().unwrap_or_default().to_owned();
        let (sender, end) = oneshot::channel();
        let is_recorded = lock(&self.disk.journal).entries.contains_key(&name);
        let mut doings = lock(&self.doings);
        doings.begun.push(payload);
        doings.recorded.push(is_recorded);
        doings.going.insert(name, sender);
        Box::pin(async move { end.await.unwrap_or_else(|_| Err(Problem::new("DROPPED", ""))) })
    }
}

struct Panics;

impl Executor for Panics {
    fn kind(&self) -> &'static str {
        "panics"
    }

    fn run(&self, _payload: Value) -> BoxFuture<'static, Result<Value, Problem>> {
        Box::pin(async { panic!("a defect") })
    }
}

/// An agent, and what it said.
struct World {
    rt: Arc<StepRuntime>,
    disk: Arc<Disk>,
    doings: Arc<Mutex<Doings>>,
    handle: Handle,
    said: mpsc::Receiver<Up>,
}

fn fence(index: u64) -> Fence {
    Fence { epoch: 1, term: 0, index }
}

fn command(id: &str, index: u64) -> Command {
    Command {
        id: id.to_owned(),
        kind: "slow".to_owned(),
        lane: "lane".to_owned(),
        payload: json!({ "name": id }).to_string().into_bytes(),
        timeout_ms: 10_000,
        retry_safe: false,
        self_terminating: false,
        fence: Some(fence(index).to_wire()),
    }
}

impl World {
    fn new() -> Self {
        Self::on(Arc::default(), Arc::default(), 1)
    }

    fn on(disk: Arc<Disk>, doings: Arc<Mutex<Doings>>, epoch: u64) -> Self {
        let rt = StepRuntime::new(1);
        let mut executors = Executors::default();
        executors.add(Arc::new(Slow { disk: disk.clone(), doings: doings.clone() }));
        executors.add(Arc::new(Panics));
        let shared: Rt = rt.clone();
        let store: Arc<dyn JournalStore> = Arc::new(disk.clone());
        let opened = async move { Commands::open(&shared, store, executors).await.ok() };
        let (commands, handle) = rt.block_on(opened).flatten().unwrap();
        palisade_state::Runtime::spawn(&*rt, "commands", Box::pin(commands.run()));
        let (up, said) = mpsc::channel(64);
        let mut world = Self { rt, disk, doings, handle, said };
        world.does(move |handle| async move { handle.attach(up, epoch).await });
        world
    }

    /// The agent's process ends; another one finds its disk.
    fn restarted(self) -> Self {
        Self::on(self.disk, Arc::default(), 1)
    }

    fn does<F: Future<Output = ()> + Send + 'static>(&mut self, work: impl FnOnce(Handle) -> F) {
        self.rt.block_on(work(self.handle.clone())).unwrap();
        self.rt.settle();
    }

    fn command(&mut self, command: Command) {
        self.does(move |handle| async move { handle.command(command).await });
    }

    fn query(&mut self, id: &str, index: u64) {
        let query = CommandQuery { id: id.to_owned(), fence: Some(fence(index).to_wire()) };
        self.does(move |handle| async move { handle.query(query).await });
    }

    fn take(&mut self, id: &str) {
        let taken = CommandTaken { id: id.to_owned() };
        self.does(move |handle| async move { handle.taken(taken).await });
    }

    fn ends(&self, id: &str, result: Result<Value, Problem>) {
        let sender = lock(&self.doings).going.remove(id).unwrap();
        sender.send(result).unwrap();
        self.rt.settle();
    }

    fn updates(&mut self) -> Vec<CommandUpdate> {
        let mut all = vec![];
        while let Ok(Up { msg: Some(up::Msg::CommandUpdate(update)) }) = self.said.try_recv() {
            all.push(update);
        }
        all
    }

    /// Outcomes and codes that were said since the last look.
    fn said(&mut self) -> Vec<(String, CommandOutcome, String)> {
        let said = self.updates().into_iter();
        said.map(|update| (update.id.clone(), update.outcome(), update.code)).collect()
    }

    fn begun(&self) -> Vec<String> {
        let begun = lock(&self.doings);
        begun.begun.iter().map(|payload| payload["name"].as_str().unwrap().to_owned()).collect()
    }
}

fn says(id: &str, outcome: CommandOutcome, code: &str) -> (String, CommandOutcome, String) {
    (id.to_owned(), outcome, code.to_owned())
}

use CommandOutcome::{
    CommandFailed as Failed, CommandRefused as Refused, CommandRunning as Running,
    CommandSucceeded as Succeeded, CommandUnknown as Unknown,
};

#[test]
fn a_command_is_on_disk_before_it_is_begun_and_its_end_is_said() {
    let mut world = World::new();
    world.command(command("a", 1));
    assert_eq!(lock(&world.doings).recorded, [true], "ACMD-1");
    assert_eq!(world.said(), [says("a", Running, "")]);
    world.ends("a", Ok(json!({ "coats": 2 })));
    let [update] = world.updates().try_into().unwrap();
    assert_eq!((update.outcome(), update.data.as_slice()), (Succeeded, &br#"{"coats":2}"#[..]));
    world.command(command("b", 1));
    world.ends("b", Err(Problem::new("NO_PAINT", "it is dry")));
    assert_eq!(world.said()[1], says("b", Failed, "NO_PAINT"));
}

#[test]
fn a_command_that_comes_again_is_not_done_again() {
    let mut world = World::new();
    world.command(command("a", 1));
    world.command(command("a", 2));
    assert_eq!(world.said(), [says("a", Running, ""), says("a", Running, "")]);
    world.ends("a", Ok(Value::Null));
    world.command(command("a", 3));
    assert_eq!(world.said(), [says("a", Succeeded, ""), says("a", Succeeded, "")]);
    world.take("a");
    world.command(command("a", 4));
    assert_eq!(world.said(), [says("a", Succeeded, "")], "also when its end was taken");
    assert_eq!(world.begun(), ["a"]);
}

#[test]
fn of_a_lane_one_is_done_at_a_time_and_in_order() {
    let mut world = World::new();
    for id in ["a", "b", "c"] {
        world.command(command(id, 1));
    }
    world.command(Command { lane: "other".to_owned(), ..command("d", 1) });
    assert_eq!(world.begun(), ["a", "d"], "ACMD-4");
    world.query("b", 1);
    assert!(world.said().contains(&says("b", Running, "")), "it has it and will do it");
    world.ends("a", Ok(Value::Null));
    assert_eq!(world.begun(), ["a", "d", "b"]);
    world.ends("b", Ok(Value::Null));
    assert_eq!(world.begun(), ["a", "d", "b", "c"]);
}

#[test]
fn an_agent_that_was_ended_in_the_middle_does_not_begin_again_what_may_not_be() {
    let mut world = World::new();
    world.command(command("once", 1));
    world.command(Command { lane: "l2".into(), retry_safe: true, ..command("again", 1) });
    world.command(Command { lane: "l3".into(), self_terminating: true, ..command("ends", 1) });
    let mut world = world.restarted();
    let said = world.said();
    assert_eq!(said, [says("once", Failed, "INTERRUPTED"), says("ends", Succeeded, "")]);
    world.command(command("once", 2));
    world.query("ends", 2);
    assert_eq!(world.said(), [says("once", Failed, "INTERRUPTED"), says("ends", Succeeded, "")]);
    assert_eq!(world.begun(), Vec::<String>::new(), "ACMD-1");
    world.command(Command { retry_safe: true, ..command("again", 2) });
    assert_eq!(world.begun(), ["again"]);
}

#[test]
fn an_end_is_said_at_each_session_until_it_is_taken_also_after_a_restart() {
    let mut world = World::new();
    world.command(command("a", 1));
    world.ends("a", Ok(json!(7)));
    for _ in 0..2 {
        world = world.restarted();
        assert_eq!(world.said(), [says("a", Succeeded, "")], "ACMD-3");
    }
    world.take("a");
    let mut world = world.restarted();
    assert_eq!(world.said(), []);
    assert_eq!(lock(&world.disk.journal).entries["a"].ended.clone().unwrap().data, Value::Null);
}

#[test]
fn a_word_under_a_lower_fence_is_refused() {
    let mut world = World::new();
    world.command(command("a", 5));
    assert_eq!(world.said(), [says("a", Running, "")]);
    world.command(Command { lane: "l2".into(), ..command("b", 4) });
    world.query("a", 4);
    assert_eq!(world.said(), [says("b", Refused, "FENCED"), says("a", Refused, "FENCED")]);
    let mut world = world.restarted();
    world.said();
    world.command(command("b", 4));
    assert_eq!(world.said(), [says("b", Refused, "FENCED")], "ACMD-2 outlives the process");
    assert_eq!(world.begun(), Vec::<String>::new());
    world.command(command("b", 5));
    assert_eq!(world.begun(), ["b"]);
}

#[test]
fn a_word_of_an_earlier_life_of_the_cluster_is_refused() {
    let mut world = World::on(Arc::default(), Arc::default(), 2);
    world.command(command("a", 900));
    assert_eq!(world.said(), [says("a", Refused, "FENCED")]);
    let new = Fence { epoch: 2, term: 0, index: 1 };
    world.command(Command { fence: Some(new.to_wire()), ..command("a", 0) });
    assert_eq!(world.begun(), ["a"]);
}

#[test]
fn what_never_began_never_will_at_the_word_of_an_earlier_session() {
    let mut world = World::new();
    world.query("a", 7);
    assert_eq!(world.said(), [says("a", Unknown, "")]);
    assert_eq!(lock(&world.disk.journal).fence, fence(7), "durable before it is said");
    world.command(command("a", 6));
    assert_eq!(world.said(), [says("a", Refused, "FENCED")]);
    world.command(command("a", 7));
    assert_eq!(world.begun(), ["a"]);
}

#[test]
fn what_cannot_be_recorded_is_not_begun() {
    let mut world = World::new();
    world.disk.is_full.store(true, Ordering::SeqCst);
    world.command(command("a", 1));
    world.query("b", 2);
    assert_eq!(world.said(), [says("a", Failed, "NOT_RECORDED")], "and nothing is said of b");
    world.disk.is_full.store(false, Ordering::SeqCst);
    world.command(command("c", 1));
    assert_eq!(world.begun(), ["c"], "its lane goes on");
}

#[test]
fn after_a_damaged_journal_nothing_is_said_never_to_have_begun() {
    let disk: Arc<Disk> = Arc::default();
    lock(&disk.journal).lost = true;
    let mut world = World::on(disk, Arc::default(), 1);
    world.query("a", 1);
    assert_eq!(world.said(), [says("a", Failed, "JOURNAL_LOST")]);
    world.command(command("b", 1));
    assert_eq!(world.begun(), ["b"], "what is new is done");
}

#[test]
fn whatever_goes_wrong_in_one_keeps_its_lane_for_none() {
    let mut world = World::new();
    world.command(Command { kind: "nobody's".into(), ..command("a", 1) });
    world.command(Command { payload: b"{".to_vec(), ..command("b", 1) });
    world.command(Command { kind: "panics".into(), ..command("c", 1) });
    world.command(command("d", 1));
    assert_eq!(world.begun(), ["d"]);
    world.rt.advance(Duration::from_secs(10));
    let codes: Vec<String> =
        world.said().into_iter().filter(|said| said.1 == Failed).map(|said| said.2).collect();
    assert_eq!(codes, ["UNSUPPORTED", "INVALID_PAYLOAD", "PANICKED", "TIMED_OUT"]);
    world.command(command("e", 1));
    assert_eq!(world.begun(), ["d", "e"]);
}

#[test]
fn a_long_answer_is_not_kept() {
    let mut world = World::new();
    world.command(command("a", 1));
    world.ends("a", Ok(json!("x".repeat(20_000))));
    let update = world.updates().pop().unwrap();
    assert_eq!(update.outcome(), Succeeded);
    assert_eq!(update.data, br#"{"tooLarge":20002}"#);
}
