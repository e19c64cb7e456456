//! What commands print and draw.

pub(crate) mod qr;
pub(crate) mod screen;
pub(crate) mod stock;
pub(crate) mod svg;
pub(crate) mod words;
