//! The output of commands: text, colours, tables, QR codes and pictures.

pub(crate) mod colour;
pub(crate) mod columns;
pub(crate) mod peers;
pub(crate) mod qr;
pub(crate) mod screen;
pub(crate) mod stock;
pub(crate) mod svg;
pub(crate) mod way;
pub(crate) mod words;
