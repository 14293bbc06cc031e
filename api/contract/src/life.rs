//! Starting and stopping the modules of a process.
//!
//! # Invariants
//! - `MOD-1` Whatever started is stopped once, in reverse order: when a later module does not
//!   start, and when the process ends however far it came.

use std::sync::Arc;

use crate::{
    context::Context,
    error::{Error, Result},
    module::Module,
    registry::Registry,
};

/// Modules that have started, in order. To be stopped when nothing uses them any more: worker loops
/// and the API end first.
#[must_use = "what has started is to be stopped"]
pub struct Running {
    modules: Vec<Arc<dyn Module>>,
}

impl Running {
    /// Starts all modules in registration order. When one fails, those that had started are stopped
    /// in reverse; it itself is to leave nothing behind.
    ///
    /// # Errors
    /// The whole error of the module that did not start, with its name before the sentence.
    pub async fn start(registry: &Registry, cx: &Context) -> Result<Self> {
        let mut started = Self { modules: vec![] };
        for module in registry.modules() {
            if let Err(error) = module.start(cx).await {
                started.stop().await;
                let detail = format!("module {} did not start: {}", module.name(), error.detail);
                return Err(Error { detail, ..error });
            }
            started.modules.push(module.clone());
        }
        Ok(started)
    }

    /// Stops all that started, in reverse. One that does not stop cleanly is logged and keeps none
    /// of the others from it.
    pub async fn stop(self) {
        for module in self.modules.iter().rev() {
            if let Err(error) = module.stop().await {
                let cause = error.source.as_deref().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(module = module.name(), %error, cause, "a module did not stop cleanly");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::{executor::block_on, future::BoxFuture};
    use palisade_state::{memory::MemoryStore, step::StepRuntime};

    use super::*;
    use crate::Code;

    /// Writes down what is asked of it.
    struct Recording {
        name: &'static str,
        log: Arc<Mutex<Vec<String>>>,
        starts: bool,
        stops: bool,
    }

    fn refused(what: &str) -> Error {
        Error::new(Code::NoSpace, what).hint("make room").caused_by("the disk is full")
    }

    impl Module for Recording {
        fn name(&self) -> &'static str {
            self.name
        }

        fn start<'a>(&'a self, _: &'a Context) -> BoxFuture<'a, Result<()>> {
            self.log.lock().unwrap().push(format!("start {}", self.name));
            let ended = if self.starts { Ok(()) } else { Err(refused("no room for its files")) };
            Box::pin(std::future::ready(ended))
        }

        fn stop(&self) -> BoxFuture<'_, Result<()>> {
            self.log.lock().unwrap().push(format!("stop {}", self.name));
            let ended = if self.stops { Ok(()) } else { Err(refused("it does not let go")) };
            Box::pin(std::future::ready(ended))
        }
    }

    type Log = Arc<Mutex<Vec<String>>>;

    /// Modules `a`, `b`, `c`; these do not start, and these do not stop.
    fn rig(lame: &[&str], stuck: &[&str]) -> (Registry, Context, Log) {
        let log = Log::default();
        let module = |name: &'static str| -> Arc<dyn Module> {
            let (starts, stops) = (!lame.contains(&name), !stuck.contains(&name));
            Arc::new(Recording { name, log: log.clone(), starts, stops })
        };
        let registry = Registry::new(["a", "b", "c"].map(module).to_vec()).unwrap();
        let store = Arc::new(MemoryStore::default());
        (registry, Context::new(StepRuntime::new(1), store), log)
    }

    fn told(log: &Log) -> Vec<String> {
        log.lock().unwrap().clone()
    }

    #[test]
    fn modules_start_in_order_and_stop_in_reverse() {
        let (registry, cx, log) = rig(&[], &[]);
        let running = block_on(Running::start(&registry, &cx)).unwrap();
        assert_eq!(told(&log), ["start a", "start b", "start c"]);
        block_on(running.stop());
        assert_eq!(told(&log)[3..], ["stop c", "stop b", "stop a"], "MOD-1");
    }

    #[test]
    fn a_start_that_fails_stops_what_had_started_and_is_told_whole() {
        let (registry, cx, log) = rig(&["c"], &[]);
        let error = block_on(Running::start(&registry, &cx)).err().unwrap();
        assert_eq!(told(&log), ["start a", "start b", "start c", "stop b", "stop a"], "MOD-1");
        assert_eq!(error.code, Code::NoSpace);
        assert_eq!(error.detail, "module c did not start: no room for its files");
        assert_eq!(error.hint.as_deref(), Some("make room"));
        assert_eq!(error.source.unwrap().to_string(), "the disk is full");
    }

    #[test]
    fn the_first_start_that_fails_stops_nothing() {
        let (registry, cx, log) = rig(&["a"], &[]);
        assert!(block_on(Running::start(&registry, &cx)).is_err());
        assert_eq!(told(&log), ["start a"]);
    }

    #[test]
    fn one_that_does_not_stop_keeps_no_other_from_it() {
        let (registry, cx, log) = rig(&[], &["c", "b"]);
        block_on(block_on(Running::start(&registry, &cx)).unwrap().stop());
        assert_eq!(told(&log)[3..], ["stop c", "stop b", "stop a"]);
        let (registry, cx, log) = rig(&["c"], &["b"]);
        let error = block_on(Running::start(&registry, &cx)).err().unwrap();
        assert!(error.detail.contains("module c did not start"), "the cause, not what came of it");
        assert_eq!(told(&log)[3..], ["stop b", "stop a"]);
    }
}
