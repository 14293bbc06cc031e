//! Shard ownership, the reconciler loop and placement.
