// SPDX-License-Identifier: Apache-2.0
//! The memory allocator of the program: dlmalloc behind one lock, and for the daemon's loop a list of the small blocks
//! that it freed. It imports nothing.
//!
//! A request with its responses is hundreds of short texts and lists, which are allocated and freed at once. dlmalloc's
//! own lock, a pthread mutex, and its search cost a third of the processor time of a request that ten plugins answer; a
//! kept block costs neither. Any thread may free a block. A thread never keeps more than 128 KiB.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::Dlmalloc;

/// Replaces the C library's allocator; musl's requests and returns a few pages at a time: a third of a
/// wrapper's system calls, and a fifth of the daemon's work.
pub struct Allocator(Mutex<Dlmalloc>);

/// Bytes of the smallest kept block: the room in dlmalloc's smallest chunk.
const SMALLEST: usize = 24;
/// Bytes between one size of blocks and the next, and their greatest alignment.
const STEP: usize = 16;
/// The number of sizes; longer blocks are not kept.
const SIZES: usize = 16;
/// Bytes of blocks of one size that a thread keeps.
const KEPT_OF_A_SIZE: usize = 8 << 10;

/// The blocks that one thread keeps, by their size.
struct KeptBlocks {
    /// The first block; each holds a pointer to the next one.
    first: [Cell<*mut u8>; SIZES],
    /// The number of blocks for which there is room; 0 for a thread that keeps none.
    room: [Cell<usize>; SIZES],
}

thread_local! {
    static KEPT: KeptBlocks = const { KeptBlocks::new() };
}

/// Returns the number of the size of the blocks that serve this request; `None` if such blocks are not kept.
#[inline]
fn size_of(layout: Layout) -> Option<usize> {
    let size = layout.size().saturating_sub(SMALLEST).div_ceil(STEP);
    (size < SIZES && layout.align() <= STEP).then_some(size)
}

/// Returns the bytes of a block of this size.
const fn bytes_of(size: usize) -> usize {
    SMALLEST + size * STEP
}

impl KeptBlocks {
    const fn new() -> Self {
        Self {
            first: [const { Cell::new(ptr::null_mut()) }; SIZES],
            room: [const { Cell::new(0) }; SIZES],
        }
    }

    /// Returns a kept block; null if there is none.
    #[inline]
    #[expect(unsafe_code, reason = "an allocator")]
    fn take(&self, size: usize) -> *mut u8 {
        let block = self.first[size].get();
        if !block.is_null() {
            // SAFETY: `keep` wrote the pointer into this block, which nobody has used since.
            self.first[size].set(unsafe { block.cast::<*mut u8>().read() });
            self.room[size].set(self.room[size].get() + 1);
        }
        block
    }

    /// Keeps a block that its owner frees; `false` if there is no room.
    ///
    /// # Safety
    /// The block has at least [`bytes_of`] this size, was allocated by dlmalloc, and nobody uses it.
    #[inline]
    #[expect(unsafe_code, reason = "an allocator")]
    unsafe fn keep(&self, block: *mut u8, size: usize) -> bool {
        let Some(room) = self.room[size].get().checked_sub(1) else { return false };
        self.room[size].set(room);
        // SAFETY: the caller promises that the block is free; it is aligned to and longer than a pointer.
        unsafe { block.cast::<*mut u8>().write(self.first[size].get()) };
        self.first[size].set(block);
        true
    }
}

impl Allocator {
    /// Returns an allocator that has no memory yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Dlmalloc::new()))
    }

    /// From now on, this thread keeps small blocks that it frees and allocates them again, at most 128 KiB. A thread
    /// that ends loses the blocks that it keeps, so only a process's last thread should call this.
    pub fn keep_blocks_of_this_thread() {
        KEPT.with(|kept| {
            for (size, room) in kept.room.iter().enumerate() {
                if room.get() == 0 && kept.first[size].get().is_null() {
                    room.set(KEPT_OF_A_SIZE / bytes_of(size));
                }
            }
        });
    }

    /// A panic within dlmalloc aborts the process, so a poisoned lock is never seen.
    #[inline]
    fn heap(&self) -> MutexGuard<'_, Dlmalloc> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(unsafe_code, reason = "an allocator")]
// SAFETY: a block comes from dlmalloc, or is one of dlmalloc's that its owner freed and that is long enough; dlmalloc's
// calls without a layout accept the blocks of all its calls. Locking a mutex does not allocate on Linux. Not inlined,
// so that link-time optimization does not copy them to each allocation.
unsafe impl GlobalAlloc for Allocator {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(size) = size_of(layout) else {
            // SAFETY: the alignment of a layout is a power of two.
            return unsafe { self.heap().c_memalign(layout.align(), layout.size()) };
        };
        let block = KEPT.with(|kept| kept.take(size));
        if !block.is_null() {
            return block;
        }
        // SAFETY: any number of bytes may be requested.
        unsafe { self.heap().c_malloc(bytes_of(size)) }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `alloc` gave a block of this size for this layout, and its owner frees it now.
        if size_of(layout).is_none_or(|size| !KEPT.with(|kept| unsafe { kept.keep(block, size) })) {
            // SAFETY: the block is dlmalloc's.
            unsafe { self.heap().c_free(block) };
        }
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if size_of(layout).is_none() {
            // SAFETY: as in `alloc`. The kernel's pages are not written twice.
            return unsafe { self.heap().calloc(layout.size(), layout.align()) };
        }
        // SAFETY: the caller's promises are the same.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: the block has the bytes of the layout.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline(never)]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let new = Layout::from_size_align(new_size, layout.align()).ok().and_then(size_of);
        if new.is_some() && new == size_of(layout) {
            return block;
        }
        let new_size = new.map_or(new_size, bytes_of);
        // SAFETY: the block is dlmalloc's, with this alignment and at least this size.
        unsafe { self.heap().realloc(block, layout.size(), layout.align(), new_size) }
    }
}

impl Default for Allocator {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Allocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Allocator")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static ALLOCATOR: Allocator = Allocator::new();

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    /// The byte with which a block of this size is filled.
    fn filler(size: usize) -> u8 {
        u8::try_from(size % 251).unwrap()
    }

    /// Allocates blocks of these sizes, fills each, compares all, and returns them.
    #[expect(unsafe_code, reason = "calls of the allocator")]
    fn filled(sizes: &[usize]) -> Vec<*mut u8> {
        let fill = |size: &usize| {
            // SAFETY: no size is 0.
            let block = unsafe { ALLOCATOR.alloc(layout(*size)) };
            // SAFETY: the block has this size.
            unsafe { block.write_bytes(filler(*size), *size) };
            block
        };
        let blocks: Vec<*mut u8> = sizes.iter().map(fill).collect();
        for (block, size) in blocks.iter().zip(sizes) {
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(*block, *size) };
            assert!(bytes.iter().all(|byte| *byte == filler(*size)), "{size}");
        }
        blocks
    }

    #[expect(unsafe_code, reason = "calls of the allocator")]
    fn free(blocks: &[*mut u8], sizes: &[usize]) {
        for (block, size) in blocks.iter().zip(sizes) {
            // SAFETY: `filled` allocated it with this layout.
            unsafe { ALLOCATOR.dealloc(*block, layout(*size)) };
        }
    }

    #[test]
    fn a_thread_that_keeps_blocks_gets_them_again() {
        std::thread::spawn(|| {
            Allocator::keep_blocks_of_this_thread();
            let sizes: Vec<usize> = (1..400).collect();
            let blocks = filled(&sizes);
            free(&blocks, &sizes);
            let again = filled(&[20, 20]);
            assert!(again.iter().all(|block| blocks.contains(block)));
            free(&again, &[20, 20]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn no_more_bytes_are_kept_than_the_limit() {
        std::thread::spawn(|| {
            Allocator::keep_blocks_of_this_thread();
            let sizes = vec![100; 1000];
            free(&filled(&sizes), &sizes);
            let of_a_hundred = size_of(layout(100)).unwrap();
            let kept = |kept: &KeptBlocks| {
                let mut count = 0;
                while !kept.take(of_a_hundred).is_null() {
                    count += 1;
                }
                count
            };
            assert_eq!(KEPT.with(kept), KEPT_OF_A_SIZE / bytes_of(of_a_hundred));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn other_threads_keep_nothing() {
        std::thread::spawn(|| {
            let sizes = [24; 10];
            free(&filled(&sizes), &sizes);
            assert!(KEPT.with(|kept| kept.take(0)).is_null());
        })
        .join()
        .unwrap();
    }

    #[test]
    #[expect(unsafe_code, reason = "calls of the allocator")]
    fn a_resized_block_has_its_bytes_and_can_be_freed() {
        std::thread::spawn(|| {
            Allocator::keep_blocks_of_this_thread();
            for (old, new) in [(1, 24), (24, 25), (20, 300), (300, 20), (300, 5000), (5000, 264)] {
                let block = filled(&[old])[0];
                // SAFETY: `filled` allocated it with this layout.
                let block = unsafe { ALLOCATOR.realloc(block, layout(old), new) };
                // SAFETY: the block has both sizes' minimum.
                let bytes = unsafe { std::slice::from_raw_parts(block, old.min(new)) };
                assert!(bytes.iter().all(|byte| *byte == filler(old)), "{old} to {new}");
                free(&[block], &[new]);
                free(&filled(&[new]), &[new]);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    #[expect(unsafe_code, reason = "calls of the allocator")]
    fn zeroed_and_aligned_blocks_are_so_after_reuse() {
        std::thread::spawn(|| {
            Allocator::keep_blocks_of_this_thread();
            free(&filled(&[64, 64]), &[64, 64]);
            // SAFETY: no size is 0.
            let zeroed = unsafe { ALLOCATOR.alloc_zeroed(layout(64)) };
            // SAFETY: the block has this size.
            assert_eq!(unsafe { std::slice::from_raw_parts(zeroed, 64) }, [0; 64]);
            free(&[zeroed], &[64]);
            let wide = Layout::from_size_align(64, 64).unwrap();
            // SAFETY: as above.
            let block = unsafe { ALLOCATOR.alloc(wide) };
            assert_eq!(block.addr() % 64, 0);
            // SAFETY: it was allocated with this layout.
            unsafe { ALLOCATOR.dealloc(block, wide) };
        })
        .join()
        .unwrap();
    }
}
