//! The size of the kernel's pages, for what works with one size only.

use crate::error::{Error, Result};

/// Bytes of a page where the kernel is built for the usual size.
pub const USUAL: usize = 4096;

/// Refuses a kernel whose pages are of another size.
///
/// # Errors
/// They are.
pub fn usual() -> Result<()> {
    must_be_usual(rustix::param::page_size())
}

fn must_be_usual(page: usize) -> Result<()> {
    if page == USUAL {
        return Ok(());
    }
    let text = format!("pages of this kernel have {page} bytes instead of {USUAL}");
    Err(Error::failure(text).hint(format!("use a kernel with pages of {USUAL} bytes")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn larger_pages_are_refused_with_what_to_do() {
        assert!(must_be_usual(4096).is_ok());
        let refused = must_be_usual(16384).unwrap_err();
        assert_eq!(refused.text(), "pages of this kernel have 16384 bytes instead of 4096");
        assert_eq!(refused.remedy(), Some("use a kernel with pages of 4096 bytes"));
    }
}
