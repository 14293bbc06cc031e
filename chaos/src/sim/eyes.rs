//! What is seen of every replica while it runs: each applied entry, each leader, the hash of its state.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use palisade_raft::trace;
use palisade_state::{Fence, View, WatchEvent};

use super::{
    leases::Leases,
    nodes::{Nodes, lock, now},
    pace::Pace,
    past::Past,
};

/// States are compared at each index that this divides. What differs once stays different, so that not each has to be.
pub(crate) const EVERY: u64 = 64;
/// The newest events are part of a state; more than are published between two comparisons.
const EVENTS: u64 = 256;

/// A claim that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Breach {
    /// Which check says so.
    pub(crate) check: &'static str,
    /// What is wrong.
    pub(crate) message: String,
}

#[derive(Default)]
struct Seen {
    /// Who led in each term, and who said so.
    leaders: BTreeMap<u64, (u64, u64)>,
    /// The term of each applied entry, and who applied it first.
    terms: BTreeMap<u64, (u64, u64)>,
    /// The state at each index at which one was compared.
    states: BTreeMap<u64, (u64, u64)>,
    compared: u64,
    pace: Pace,
    breaches: Vec<Breach>,
}

/// See the module.
pub(crate) struct Eyes {
    nodes: Arc<Nodes>,
    seen: Mutex<Seen>,
    pub(crate) leases: Leases,
    pub(crate) past: Past,
}

/// A hash of everything that a view shows. It is made without the product's own encoding, which may be what is wrong.
fn digest(view: &View) -> u64 {
    let mut hash = Digest::default();
    hash.say(&(view.revision(), view.applied(), view.clock(), view.format(), view.formation()));
    for (table, _) in view.tables() {
        hash.add(table.as_bytes());
        for (key, record) in view.rows(table, b"", None) {
            hash.add(key.as_slice());
            let stamp = record.stamp();
            hash.words([stamp.created_rev, stamp.modified_rev, stamp.version]);
            hash.add(record.value());
        }
    }
    for (name, lease) in view.leases() {
        hash.add(name.as_bytes());
        hash.add(lease.owner.as_bytes());
        let Fence { epoch, term, index } = lease.fence;
        hash.words([lease.incarnation, epoch, term, index]);
        hash.say(&(lease.role, &lease.handoff));
    }
    view.sessions().for_each(|session| hash.say(&session));
    view.all_work().for_each(|work| hash.say(&work));
    view.replicas().for_each(|replica| hash.say(&replica));
    // What is older was compared when it was new.
    let newest = view.last_event().saturating_sub(EVENTS);
    for (sequence, event) in view.events(newest) {
        hash.words([sequence, event.revision, u64::from(event.n), event.at_ms]);
        for part in [&event.kind, &event.tenant, &event.subject] {
            hash.add(part.as_bytes());
        }
        hash.add(&event.data);
    }
    hash.say(&(view.first_event(), view.last_event(), view.first_audit(), view.last_audit()));
    hash.say(&(view.audit_head(), view.idempotency_keys()));
    hash.0
}

/// Nobody chooses what it is given: it must be quick, and tell states apart that differ by accident.
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn words<const N: usize>(&mut self, words: [u64; N]) {
        words.into_iter().for_each(|word| self.word(word));
    }

    fn add(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (whole, rest) = bytes.as_chunks::<8>();
        whole.iter().for_each(|chunk| self.word(u64::from_le_bytes(*chunk)));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            self.word(u64::from_le_bytes(last));
        }
    }

    fn say(&mut self, value: &impl std::fmt::Debug) {
        // It cannot fail: what it is written to does not.
        let _ = std::fmt::write(self, format_args!("{value:?};"));
    }
}

impl std::fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

impl Eyes {
    pub(crate) fn new(nodes: Arc<Nodes>) -> Arc<Self> {
        Arc::new(Self {
            nodes,
            seen: Mutex::default(),
            leases: Leases::default(),
            past: Past::default(),
        })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    pub(crate) fn breach(&self, check: &'static str, message: String) {
        self.nodes.tell(|| format!("{check}: {message}"));
        let mut seen = self.seen();
        if seen.breaches.len() < 20 {
            seen.breaches.push(Breach { check, message });
        }
    }

    pub(crate) fn breaches(&self) -> Vec<Breach> {
        self.seen().breaches.clone()
    }

    /// How many terms had a leader, how many entries were applied, how many states compared.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let seen = self.seen();
        let applied = seen.terms.last_key_value().map_or(0, |(index, _)| *index);
        (seen.leaders.len() as u64, applied, seen.compared)
    }

    /// A replica tells of itself.
    pub(crate) fn saw(&self, node: u64, event: &[u64]) {
        let mut words = vec![4, node];
        words.extend_from_slice(event);
        self.nodes.note(&words);
        match *event {
            [trace::APPLIED, index, term, now_ms] => {
                self.applied(node, (index, term, now_ms));
                let first = *self.seen().terms.entry(index).or_insert((term, node));
                if first.0 != term {
                    let other = first.1;
                    let first = first.0;
                    self.breach(
                        "S1",
                        format!(
                            "entry {index} is of term {term} on replica {node} and of term {first} on replica {other}"
                        ),
                    );
                }
            }
            [trace::LEADER, term, leader] if leader != 0 => {
                self.nodes.tell(|| format!("replica {node} follows {leader} in term {term}"));
                self.seen().pace.leads(term, now());
                let (known, by) = *self.seen().leaders.entry(term).or_insert((leader, node));
                if known != leader {
                    self.breach(
                        "M1",
                        format!(
                            "term {term} has two leaders: {known}, says replica {by}, and {leader}, says replica {node}"
                        ),
                    );
                }
            }
            _ => {}
        }
    }

    fn applied(&self, node: u64, entry: (u64, u64, u64)) {
        let breach = self.seen().pace.applied(node, entry, now());
        if let Some(breach) = breach {
            self.breach(breach.check, breach.message);
        }
    }

    /// The term of the entry at an index, if it was seen.
    pub(crate) fn term_at(&self, index: u64) -> Option<u64> {
        self.seen().terms.get(&index).map(|(term, _)| *term)
    }

    /// Looks at what changed on a replica.
    pub(crate) fn changed(&self, node: u64, view: &View, event: &WatchEvent) {
        self.past.saw(view);
        let breaches = match event {
            WatchEvent::Changed(changes) if !changes.everything => {
                let names = changes.leases.iter().map(AsRef::as_ref);
                self.leases.look_at(node, view, names)
            }
            _ => self.leases.look_at_all(node, view),
        };
        breaches.into_iter().for_each(|breach| self.breach(breach.check, breach.message));
    }

    /// Compares a replica's state with what others had at its index.
    pub(crate) fn compare(&self, node: u64, view: &View) {
        let index = view.applied().index;
        let hash = digest(view);
        for breach in self.leases.look_at_all(node, view) {
            self.breach(breach.check, breach.message);
        }
        let (known, by) = {
            let mut seen = self.seen();
            seen.compared += 1;
            *seen.states.entry(index).or_insert((hash, node))
        };
        if known != hash {
            self.breach(
                "S1",
                format!("replicas {by} and {node} differ at index {index} of their states"),
            );
        }
    }
}
