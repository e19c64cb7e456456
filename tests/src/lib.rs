//! Helpers shared by the workspace-level suites.
