//! The workloads module.
