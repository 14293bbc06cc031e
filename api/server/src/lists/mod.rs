//! What a list's records are narrowed by and ordered by: `filter` and `sort`.
//!
//! # Invariants
//! - `LIST-1` A filter or an order that names a field which no record of the list can have, or compares one with what it
//!   can never be, is refused and the nearest is named: it never answers an empty list.
//! - `LIST-2` Reading a filter takes memory and time in proportion to its length, whatever it says; its depth is bounded.

mod filter;
mod known;
mod lexer;
mod order;
mod parser;

pub use filter::Filter;
pub use known::Known;
pub use order::Order;

/// Characters of a filter at most, so that one fits into the head of a request, whatever alphabet it is in.
pub const FILTER_CHARS_MAX: usize = 1_000;
/// Characters of an order at most.
pub const ORDER_CHARS_MAX: usize = 100;
/// Parentheses and `not`s within each other at most.
pub const DEPTH_MAX: usize = 32;
/// Fields of an order at most.
pub const ORDER_FIELDS_MAX: usize = 4;
