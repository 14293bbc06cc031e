//! `palisade dev`: start, stay, stop in order.

use std::{fs, path::PathBuf, process::Stdio, time::Duration};

use futures::future::{Either, select};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    CONTEXT, StopOptions,
    layout::Layout,
    live::Live,
    lock::{Holder, Lock},
    run_state::RunState,
    start::{Cluster, Plan, prepare, publish_context},
    stop::{Stopped, stop, sweep},
    takeover,
};
use crate::{
    edge,
    output::{self, Exit, Failure, Format, Outcome, Progress, human},
};

const STATUS_EVERY: Duration = Duration::from_secs(1);
const DETACH_POLL: Duration = Duration::from_millis(15);
const DETACH_LIMIT: Duration = Duration::from_secs(150);

/// What `dev` is told.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// Its directory.
    pub layout: Layout,
    /// Start over.
    pub fresh: bool,
    /// Leave instances running at the end.
    pub keep_instances: bool,
    /// Take the context away from another cluster that runs.
    pub replace_context: bool,
    /// Where the other verbs look for contexts.
    pub context_file: PathBuf,
    /// How data is printed.
    pub format: Format,
}

/// Runs the cluster until a signal. `own_session`: nobody looks on; it was detached.
///
/// # Errors
/// It cannot start.
pub async fn supervise(options: UpOptions, own_session: bool) -> Outcome {
    if own_session {
        // It leads no group when it was started by `detach`; if it does, it is detached already.
        let _ = rustix::process::setsid();
    }
    // Signals are listened to before anything is started, so that none of it is left behind.
    let stop = stop_signals()?;
    let pid = std::process::id();
    takeover::check(&options.layout, &options.context_file, options.replace_context).await?;
    if options.fresh && matches!(Lock::holder(&options.layout), Holder::Somebody(_)) {
        self::stop(&options.layout, StopOptions::default()).await?;
    }
    options.layout.claim()?;
    let lock = Lock::acquire(&options.layout)?;
    RunState::Starting { pid }.write(&options.layout);
    let result = run(&options, stop, own_session).await;
    match &result {
        Ok(()) => RunState::Stopped,
        Err(failure) => {
            let (exit, message) = (failure.exit as u8, failure.to_string());
            RunState::Failed { pid, exit, message }
        }
    }
    .write(&options.layout);
    drop(lock);
    result
}

type StopSignal = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn stop_signals() -> Outcome<StopSignal> {
    let listen =
        |kind| signal(kind).map_err(|error| Failure::caused("cannot listen to signals", &error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    Ok(Box::pin(async move {
        let (interrupt, terminate) = (Box::pin(interrupt.recv()), Box::pin(terminate.recv()));
        select(select(interrupt, terminate), Box::pin(hangup.recv())).await;
    }))
}

async fn run(options: &UpOptions, mut stop: StopSignal, own_session: bool) -> Outcome {
    let began = edge::now();
    let layout = &options.layout;
    let mut progress = Progress::new();
    clean(options, &progress).await?;
    let plan = prepare(layout)?;
    check_room(&plan)?;
    publish_context(&plan.context, &options.context_file)?;
    let (context, is_new) = (plan.context.clone(), plan.is_new);
    let start = Box::pin(start(plan, options.keep_instances, &mut progress));
    let left = StopOptions { keep_instances: options.keep_instances };
    let mut cluster = match select(start, &mut stop).await {
        Either::Left((Ok(cluster), _)) => cluster,
        Either::Left((Err(failure), _)) => {
            sweep(layout, left).await?;
            return Err(failure);
        }
        // Dropping a start closes its children's pipes; what does not end by itself is made to.
        Either::Right(((), start)) => {
            drop(start);
            sweep(layout, left).await?;
            return Err(Failure::new(Exit::Error, "stopped while it was starting"));
        }
    };
    let took = began.elapsed();
    let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    progress.end();
    let late = std::mem::take(&mut cluster.late);
    if !own_session {
        announce(options, &context.addrs, is_new, milliseconds, &late)?;
    }
    RunState::Ready { pid: std::process::id(), milliseconds, late }.write(layout);
    let live = Live::new(&context)?;
    let mut progress = Progress::new();
    watch(&mut cluster, &live, &mut progress, &mut stop).await;
    let keep = options.keep_instances || fs::remove_file(layout.keep_instances()).is_ok();
    let stopped = cluster.stop(keep, &mut |text| progress.update(text)).await?;
    progress.end();
    farewell(&layout.command(""), keep, stopped);
    Ok(())
}

/// Takes away what an earlier supervisor left, and with --fresh all that it made.
async fn clean(options: &UpOptions, progress: &Progress) -> Outcome {
    let layout = &options.layout;
    let _ = fs::remove_file(layout.keep_instances());
    if options.fresh {
        sweep(layout, StopOptions::default()).await?;
        layout.wipe()?;
        return Ok(());
    }
    // Instances stay: their agents adopt them again.
    if let Stopped::Orphans(count) = sweep(layout, StopOptions { keep_instances: true }).await? {
        let processes = human::count(count, "process", "processes");
        progress.line(&format!("stopped {processes} that an earlier `palisade dev` left behind"));
    }
    Ok(())
}

/// What the replicas of a new cluster write before the first command, besides what their logs keep free.
const ROOM_BYTES: u64 = 64 << 20;

/// Refuses to begin where the replicas would refuse every write.
fn check_room(plan: &Plan) -> Outcome {
    let sizes = palisade_raft::LogSizes::default();
    let needed = sizes.reserve_bytes + ROOM_BYTES;
    let root = plan.layout.root();
    // A file system that does not say counts as having room.
    let free = palisade_raft::disk::Files::free_bytes(&palisade_raft::disk::StdFiles, root)
        .unwrap_or(u64::MAX);
    if !plan.is_new || free >= needed {
        return Ok(());
    }
    let (free, needed, kept) = (free >> 20, needed >> 20, sizes.reserve_bytes >> 20);
    let what = format!(
        "the disk under {} has {free} MiB free, and a new cluster needs {needed} MiB, of which {kept} MiB stay free",
        root.display()
    );
    Err(Failure::new(Exit::Unavailable, what)
        .hint("free some space, or choose another directory with --dir"))
}

async fn start(plan: Plan, keep: bool, progress: &mut Progress) -> Outcome<Cluster> {
    Cluster::start(plan, keep, |text| progress.update(text)).await
}

/// Shows what goes on until it is told to stop.
async fn watch(cluster: &mut Cluster, live: &Live, progress: &mut Progress, stop: &mut StopSignal) {
    loop {
        let tick = Box::pin(async {
            edge::sleep(STATUS_EVERY).await;
            live.line().await
        });
        let ended = Box::pin(cluster.ended.recv());
        match select(&mut *stop, select(tick, ended)).await {
            Either::Left(_) => return,
            Either::Right((Either::Left((line, _)), _)) => progress.update(&line),
            Either::Right((Either::Right((Some(ended), _)), _)) => {
                progress
                    .line(&format!("{} ended ({}); it is started again", ended.name, ended.how));
            }
            Either::Right((Either::Right((None, _)), _)) => {}
        }
    }
}

fn announce(
    options: &UpOptions,
    addrs: &[String],
    is_new: bool,
    milliseconds: u64,
    late: &[String],
) -> Outcome {
    for line in late {
        output::say(line);
    }
    let layout = &options.layout;
    let dir = options.layout.root().display().to_string();
    if matches!(options.format, Format::Json | Format::Yaml) {
        let value = json!({
            "dir": dir, "context": CONTEXT, "contextFile": options.context_file.display().to_string(),
            "addrs": addrs, "new": is_new, "milliseconds": milliseconds,
            "nodesReady": late.is_empty(),
        });
        return output::data(output::render_value(options.format, &value)?.as_bytes());
    }
    let word = if is_new { "new cluster" } else { "same cluster as before" };
    let nodes = if late.is_empty() { "two ready nodes" } else { "not all nodes ready" };
    let seconds = format!("{}.{:01}", milliseconds / 1000, milliseconds % 1000 / 100);
    output::data(
        format!(
            "{word}: three replicas and {nodes} in {seconds} s\n\
             \n\
             \x20 API      {}\n\
             \x20 context  {CONTEXT} in {}\n\
             \x20 files    {dir}\n\
             \n\
             Try in another terminal:\n\
             \x20 palisade node ls\n\
             \x20 palisade workload apply -f examples/hello.yaml\n\
             \x20 {}\n\n",
            addrs.join(" "),
            options.context_file.display(),
            layout.command("kill-leader"),
        )
        .as_bytes(),
    )
}

fn farewell(dev: &str, keep: bool, stopped: usize) {
    output::say(match (keep, stopped) {
        (true, _) => format!("stopped; instances go on, and `{dev}` finds them again"),
        (false, 0) => format!("stopped; `{dev}` resumes the same cluster"),
        (false, count) => format!(
            "stopped, with {}; `{dev}` resumes the same cluster and starts them again",
            human::count(count, "instance", "instances")
        ),
    });
}

/// Starts a supervisor in the background and answers once it is ready.
///
/// # Errors
/// It cannot start.
pub async fn detach(options: UpOptions) -> Outcome {
    let layout = &options.layout;
    takeover::check(layout, &options.context_file, options.replace_context).await?;
    layout.claim()?;
    if !options.fresh {
        // Refused here, where the reason is seen at once.
        drop(Lock::acquire(layout)?);
    }
    let failed = |error: std::io::Error| Failure::caused("cannot start the supervisor", &error);
    let log = fs::File::create(layout.log("supervisor")).map_err(failed)?;
    let mut command = tokio::process::Command::new(super::child::THIS_PROGRAM);
    command.arg0("palisade").args(["dev", "up", "--supervise", "--dir"]).arg(layout.root());
    command.arg("--context-file").arg(&options.context_file);
    if options.fresh {
        command.arg("--fresh");
    }
    if options.keep_instances {
        command.arg("--keep-instances");
    }
    if options.replace_context {
        command.arg("--replace-context");
    }
    command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
    let is_new = options.fresh || layout.record()?.is_none();
    let mut child = command.spawn().map_err(failed)?;
    let pid = child.id().unwrap_or(0);
    let mut progress = Progress::new();
    progress.update("starting three replicas and two agents");
    let began = edge::now();
    while began.elapsed() < DETACH_LIMIT {
        match RunState::read(layout) {
            Some(RunState::Ready { pid: ready, late, .. }) if ready == pid => {
                progress.end();
                let addrs = super::start::prepared_addrs(layout)?;
                let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                announce(&options, &addrs, is_new, took, &late)?;
                let end = layout.command("stop");
                output::say(format!("process {pid} keeps it running; `{end}` ends it"));
                return Ok(());
            }
            Some(RunState::Failed { pid: failed, exit, message }) if failed == pid => {
                progress.end();
                return Err(said(exit, &message));
            }
            _ => {}
        }
        if let Ok(Some(status)) = child.try_wait() {
            progress.end();
            let mut failure =
                Failure::new(Exit::Error, format!("the supervisor ended early ({status})"));
            for line in super::child::log_tail(layout, "supervisor") {
                failure = failure.note(format!("| {line}"));
            }
            return Err(failure);
        }
        edge::sleep(DETACH_POLL).await;
    }
    // Nobody waits for it any more, so it is not left behind.
    stop(layout, StopOptions { keep_instances: options.keep_instances }).await?;
    Err(Failure::new(
        Exit::TimedOut,
        format!("the cluster is not ready after {} s", DETACH_LIMIT.as_secs()),
    )
    .hint(format!("see {}", layout.log("supervisor").display())))
}

/// A failure as the supervisor told it.
fn said(exit: u8, message: &str) -> Failure {
    let known = [
        Exit::Error,
        Exit::Usage,
        Exit::NotFound,
        Exit::Conflict,
        Exit::Denied,
        Exit::Unavailable,
        Exit::TimedOut,
        Exit::NoRoom,
    ];
    let exit = known.into_iter().find(|one| *one as u8 == exit).unwrap_or(Exit::Error);
    Failure::new(exit, message.strip_prefix("error: ").unwrap_or(message))
}
