//! Numbers, hashes, gaps and age.

use std::{sync::Arc, time::Duration};

use super::{World, empty, put, write};
use crate::history::{
    Part,
    book::{Book, More, Range, Retention},
    keys::{self, Numbered},
    reading::Reader,
    rows::Gap,
    scrub::Scrub,
    shelf::{Shelf, ShelfError},
};

fn reader(book: &Book) -> Reader {
    Reader { shelf: book.shelf.clone(), progress: book.progress.clone() }
}

/// A book of a hundred events and audit records.
fn full() -> (World, Book) {
    let mut world = World::new();
    world.tell(100);
    let mut book = empty();
    book.append(&world.more(&book, vec![])).unwrap();
    (world, book)
}

fn scrub(book: &Book) -> Result<(), ShelfError> {
    let mut at = Scrub::begin();
    for _ in 0..1000 {
        if at == Scrub::Done {
            return Ok(());
        }
        at = at.step(&reader(book))?;
    }
    panic!("it never ends");
}

fn drop_key(book: &Book, key: Vec<u8>) {
    book.shelf.write(vec![(key, None)]).unwrap();
}

#[test]
fn what_was_written_is_read_in_pages() {
    let (_, book) = full();
    let mut seqs = vec![];
    let mut from = Some(0);
    while let Some(next) = from {
        let page = reader(&book).audit(next, 7).unwrap();
        assert!(page.items.len() <= 7 && page.gaps.is_empty());
        seqs.extend(page.items.iter().map(|record| record.seq));
        from = page.next;
    }
    assert_eq!(seqs, (1..=100).collect::<Vec<_>>());
    let events = reader(&book).events(95, 100).unwrap();
    assert_eq!(events.items.len(), 6);
    assert_eq!(events.next, None);
    scrub(&book).unwrap();
    Book::open(book.shelf.clone()).unwrap();
}

#[test]
fn a_record_that_is_gone_is_missed_by_whoever_reads_it() {
    for seq in [1, 50, 100] {
        let (_, book) = full();
        drop_key(&book, Numbered::Audit.key(seq));
        assert!(reader(&book).audit(seq, 10).is_err(), "{seq}");
        assert!(scrub(&book).is_err(), "{seq}");
        let is_edge = seq != 50;
        assert_eq!(Book::open(book.shelf.clone()).is_err(), is_edge, "{seq}");
    }
    for seq in [1, 50, 100] {
        let (_, book) = full();
        drop_key(&book, Numbered::Event.key(seq));
        assert!(reader(&book).events(seq, 10).is_err(), "{seq}");
        assert!(scrub(&book).is_err(), "{seq}");
    }
}

#[test]
fn an_altered_record_is_found() {
    let (_, book) = full();
    let key = Numbered::Audit.key(50);
    let other = book.shelf.get(&Numbered::Audit.key(51)).unwrap();
    book.shelf.write(vec![(key.clone(), other)]).unwrap();
    assert!(reader(&book).audit(45, 10).is_err(), "another record's");
    let mut sealed = book.shelf.get(&key).unwrap().unwrap();
    sealed[3] ^= 1;
    book.shelf.write(vec![(key, Some(sealed))]).unwrap();
    let error = reader(&book).audit(45, 10).unwrap_err();
    assert_eq!(error, ShelfError::Broken("audit record 50 is damaged".into()));
}

#[test]
fn what_a_replica_was_not_there_for_is_a_known_gap() {
    let (mut world, mut book) = full();
    world.tell(50);
    let mut more = world.more(&book, vec![]);
    more.audit.drain(..20);
    more.events.drain(..30);
    book.append(&more).unwrap();
    let page = reader(&book).audit(99, 10).unwrap();
    assert_eq!(page.gaps, [Gap::new(Part::Audit, 101, 120)]);
    let seqs: Vec<u64> = page.items.iter().map(|record| record.seq).collect();
    assert_eq!(seqs[..3], [99, 100, 121]);
    let page = reader(&book).events(110, 10).unwrap();
    assert_eq!((page.items[0].0, page.gaps.len()), (131, 1));
    scrub(&book).unwrap();
    let again = Book::open(book.shelf.clone()).unwrap();
    assert_eq!(again.progress.gaps.len(), 2);
}

#[test]
fn a_record_of_another_chain_is_refused() {
    let (_, mut book) = full();
    let mut other = World::new();
    other.apply(vec![write(vec![])], false);
    other.tell(101);
    let more = other.more(&book, vec![]);
    assert!(matches!(book.append(&more), Err(ShelfError::Broken(_))));
    assert_eq!(book.progress.audit_last, 100, "nothing of it counts");
    Book::open(book.shelf.clone()).unwrap();
}

#[test]
fn age_removes_what_is_old_in_steps() {
    let (mut world, mut book) = full();
    let retention = Retention {
        audit: Duration::from_secs(20),
        events: Duration::from_secs(10),
        versions: Duration::from_secs(5),
    };
    let key = |n: u64| format!("k{n}");
    let mut ranges: Vec<Range> = vec![];
    for n in 0..40_u64 {
        ranges.extend(world.apply(vec![write(vec![put("t", &key(n % 4), "v")])], true));
    }
    world.tell(1);
    for range in ranges {
        book.append(&world.more(&book, vec![range])).unwrap();
    }
    let now = world.wall_ms;
    let mut steps = 0;
    while book.trim(now, &retention).unwrap() {
        steps += 1;
        assert!(steps < 100);
    }
    let progress = &book.progress;
    assert_eq!((progress.audit_first, progress.audit_last), (101, 101), "the last one stays");
    assert_eq!((progress.event_first, progress.event_last), (101, 101));
    assert!(progress.sheet_first > 30 && progress.versions_from > 100, "{progress:?}");
    let left = book.shelf.scan(b"v", b"w", 1000).unwrap();
    assert!(left.len() < 8, "{} versions", left.len());
    scrub(&book).unwrap();
    Book::open(book.shelf.clone()).unwrap();
    let unknown = reader(&book).unknown_at(progress.versions_from - 1, &world.view());
    assert!(unknown.is_some());
}

#[test]
fn a_version_that_is_gone_is_found() {
    let mut world = World::new();
    let mut book = empty();
    for n in 0..20 {
        let range = world.apply(vec![write(vec![put("t", "k", &n.to_string())])], true);
        book.append(&More { ranges: range.into_iter().collect(), ..More::default() }).unwrap();
    }
    scrub(&book).unwrap();
    drop_key(&book, keys::version("t", b"k", 9));
    assert!(scrub(&book).is_err());
    drop_key(&book, Numbered::Sheet.key(5));
    assert!(scrub(&book).is_err());
}

#[test]
fn progress_that_is_gone_is_damage_and_not_a_new_book() {
    let (_, book) = full();
    drop_key(&book, keys::PROGRESS.to_vec());
    assert!(Book::open(book.shelf.clone()).is_err());
    let shelf: Arc<dyn Shelf> = Arc::new(crate::history::shelf::MemShelf::default());
    assert!(Book::open(shelf).is_ok());
}
