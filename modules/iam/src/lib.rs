//! The iam module.
