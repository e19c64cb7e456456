//! The input of targets that read it as steps.

/// Reads the fuzzer's bytes.
pub(crate) struct Steps<'a>(pub(crate) &'a [u8]);

impl<'a> Steps<'a> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Reads a length, and then that many bytes, or fewer at the end of the input.
    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte().unwrap_or(0));
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}
