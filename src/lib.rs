//! Palisade as a library.
