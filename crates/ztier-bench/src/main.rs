//! Workloads, rivals and reports.
fn main() {}
