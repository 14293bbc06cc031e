//! Reading back beside the writer, held against a model.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// So many entries of the current term.
    Append(u64),
    /// A new term, before which so many of the last entries are void.
    Replace(u64),
    Mark,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..40_u64).prop_map(Op::Append),
        2 => (0..30_u64).prop_map(Op::Replace),
        1 => Just(Op::Mark),
    ]
}

/// A log after these changes, still open, and what it holds.
fn written(ops: &[Op]) -> (MemFiles, Wal, Vec<EntryRecord>) {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    let mut model = (State::default(), Vec::new());
    let (mut term, mut next) = (1, 1);
    for op in ops {
        let records = match op {
            Op::Append(count) => {
                next += count;
                vec![entries(term, next - count..next)]
            }
            Op::Replace(void) => {
                next = next.saturating_sub(*void).max(1);
                term += 1;
                let last: Option<&EntryRecord> =
                    model.1.iter().find(|entry: &&EntryRecord| entry.index + 1 == next);
                vec![Record::TruncateAfter(last.map(EntryRecord::position)), vote(term, 1)]
            }
            Op::Mark => vec![vote(term, 1)],
        };
        records.iter().for_each(|record| fold_onto(&mut model, record));
        write(&mut wal, &records);
    }
    (files, wal, model.1)
}

fn reader(files: &MemFiles) -> LogReader {
    LogReader::new(Arc::new(files.clone()), dir().to_owned(), ME)
}

fn terms(held: &[EntryRecord]) -> Vec<(u64, u64)> {
    let mut terms: Vec<(u64, u64)> = held.iter().map(|entry| (entry.index, entry.term)).collect();
    terms.dedup_by_key(|(_, term)| *term);
    terms
}

proptest! {
    #[test]
    fn every_range_is_read_as_it_was_appended(
        ops in prop::collection::vec(op(), 1..25),
        cuts in prop::collection::vec((0.0..1.0_f64, 0.0..1.0_f64, 0..3000_usize), 1..8),
    ) {
        let (files, _wal, held) = written(&ops);
        let (reader, terms) = (reader(&files), terms(&held));
        for (from, to, bytes) in cuts {
            let place = |share: f64| (share * held.len() as f64) as usize;
            let (from, to) = (place(from.min(to)), place(from.max(to)));
            let wanted = &held[from..to];
            let mut read = vec![];
            while read.len() < wanted.len() {
                let range = (from + read.len() + 1) as u64..to as u64 + 1;
                let some = reader.read(&Wanted { range, terms: terms.clone() }, bytes).unwrap();
                prop_assert!(!some.is_empty());
                read.extend(some);
            }
            prop_assert_eq!(&read[..], wanted);
        }
    }
}

#[test]
fn reading_stops_when_it_is_enough_and_goes_on_there() {
    let (files, mut wal, held) = written(&[Op::Append(39), Op::Append(39), Op::Append(39)]);
    let reader = reader(&files);
    let read = |range, bytes| reader.read(&Wanted { range, terms: terms(&held) }, bytes).unwrap();
    let first = read(1..118, 1000);
    assert!(first.len() < 20, "{}", first.len());
    let after = first.len() as u64 + 1;
    assert_eq!(read(after..118, usize::MAX), held[first.len()..]);
    write(&mut wal, &[entries(1, 118..130)]);
    let (_, all) = fold(&[entries(1, 118..130)]);
    assert_eq!(read(118..130, usize::MAX), all, "what was appended since");
}

#[test]
fn a_damaged_record_is_an_error_with_its_place() {
    let (files, _wal, held) = written(&[Op::Append(39); 8]);
    let path = segment(2);
    let file = files.open(&path).unwrap();
    let bytes = file.read_all().unwrap();
    file.write_all_at(700, &[bytes[700] ^ 1]).unwrap();
    let wanted = Wanted { range: 1..held.len() as u64 + 1, terms: terms(&held) };
    let error = reader(&files).read(&wanted, usize::MAX).unwrap_err();
    assert!(error.to_string().contains("00000002.seg"), "{error}");
}

#[test]
fn what_was_never_there_is_an_error() {
    let (files, _wal, held) = written(&[Op::Append(20)]);
    let wanted = Wanted { range: 15..25, terms: terms(&held) };
    assert!(reader(&files).read(&wanted, usize::MAX).is_err());
}
