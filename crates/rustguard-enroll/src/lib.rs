//! Enrolment: how a machine joins a network with one command.
#![forbid(unsafe_code)]
