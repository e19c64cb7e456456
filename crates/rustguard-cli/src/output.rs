//! The output of commands: text, tables, QR codes and pictures.

pub(crate) mod qr;
pub(crate) mod screen;
pub(crate) mod stock;
pub(crate) mod svg;
pub(crate) mod words;
