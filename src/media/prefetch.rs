//! Hints to the processor that memory is wanted soon.

/// Has the cache line in which `value` begins fetched. Does nothing but on x86-64.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, shuttle))))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, shuttle)))))]
    let _ = value;
}
