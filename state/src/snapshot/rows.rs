//! The chunks of tables: nearly all of a snapshot, so they are written without building messages.

use bytes::Bytes;
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint},
};

use super::CHUNK_BYTES;
use crate::{
    key::KeyBytes,
    record::{Record, Stamp},
    state::{State, TableRows},
};

/// Rows of one table.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RowsOf {
    #[prost(string, tag = "1")]
    pub(super) table: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) rows: Vec<Row>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Row {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
    #[prost(uint64, tag = "3")]
    created_rev: u64,
    #[prost(uint64, tag = "4")]
    modified_rev: u64,
    #[prost(uint64, tag = "5")]
    version: u64,
}

/// The tag of the section in its chunk.
pub(super) const SECTION: u32 = 2;

fn number(tag: u32, number: u64, out: &mut Vec<u8>) {
    if number != 0 {
        encode_key(tag, WireType::Varint, out);
        encode_varint(number, out);
    }
}

fn bytes(tag: u32, bytes: &[u8], out: &mut Vec<u8>) {
    if !bytes.is_empty() {
        whole(tag, bytes, out);
    }
}

fn whole(tag: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn row(key: &[u8], record: &Record, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    let Stamp { created_rev, modified_rev, version } = record.stamp();
    scratch.clear();
    bytes(1, key, scratch);
    bytes(2, record.value(), scratch);
    number(3, created_rev, scratch);
    number(4, modified_rev, scratch);
    number(5, version, scratch);
    whole(2, scratch, out);
}

/// Writes the rows of all tables, chunk by chunk.
pub(super) fn encode<E>(
    state: &State,
    sink: &mut impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut scratch, mut rows, mut chunk) = (Vec::new(), Vec::new(), Vec::new());
    for (name, table) in &state.tables {
        rows.clear();
        bytes(1, name.as_bytes(), &mut rows);
        let empty = rows.len();
        let mut left = table.rows.len();
        for (key, record) in &table.rows {
            row(key, record, &mut scratch, &mut rows);
            left -= 1;
            if rows.len() >= CHUNK_BYTES || left == 0 {
                chunk.clear();
                chunk.reserve(rows.len() + 1 + encoded_len_varint(rows.len() as u64));
                whole(SECTION, &rows, &mut chunk);
                sink(&chunk)?;
                rows.truncate(empty);
            }
        }
    }
    Ok(())
}

/// Takes the rows of one chunk.
pub(super) fn load(rows: Vec<Row>, table: &mut TableRows) {
    table.load(rows.into_iter().map(|row| {
        let Row { key, value, created_rev, modified_rev, version } = row;
        let stamp = Stamp { created_rev, modified_rev, version };
        (KeyBytes::from_slice(&key), Record::new(stamp, &value))
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_written_as_the_message_that_is_read() {
        let mut state = State::default();
        let table = state.table_mut(&"t".into());
        table.put(&KeyBytes::new(), b"", 1);
        for revision in [2, 300, 1 << 40] {
            table.put(&KeyBytes::from_slice(b"a"), b"value", revision);
        }
        let expected = RowsOf {
            table: "t".into(),
            rows: table
                .rows
                .iter()
                .map(|(key, record)| {
                    let Stamp { created_rev, modified_rev, version } = record.stamp();
                    let key = Bytes::copy_from_slice(key);
                    let value = Bytes::copy_from_slice(record.value());
                    Row { key, value, created_rev, modified_rev, version }
                })
                .collect(),
        };
        let mut written = Vec::new();
        let sink: Result<(), ()> = encode(&state, &mut |chunk| {
            written.push(chunk.to_vec());
            Ok(())
        });
        sink.unwrap();
        let mut message = Vec::new();
        whole(SECTION, &expected.encode_to_vec(), &mut message);
        assert_eq!(written, [message]);
    }
}
