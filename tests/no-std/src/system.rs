//! Replacements for std and the C library: a start, an end, memory, and the functions that compilers call for memory.
//! Linux only; x86-64 and AArch64.
use core::{
    alloc::{GlobalAlloc, Layout},
    arch::{asm, global_asm},
    cell::UnsafeCell,
    panic::PanicInfo,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

// The kernel enters with the stack aligned to 16 bytes, and a call expects to have pushed a return address since.
#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "call {start}", start = sym start);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, xzr", "bl {start}", start = sym start);

extern "C" fn start() -> ! {
    exit(if crate::run().is_some() { 0 } else { 1 })
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(101)
}

/// The compiler's `alloc` is built to unwind and refers to this symbol; nothing here ever unwinds.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

fn exit(status: u64) -> ! {
    // SAFETY: exit_group takes a number, touches no memory of ours and does not return.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("syscall", in("rax") 231, in("rdi") status, options(noreturn, nostack));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("svc 0", in("x8") 94, in("x0") status, options(noreturn, nostack));
    }
}

/// Memory that is allocated once and never freed, because the program is short.
struct Arena {
    bytes: UnsafeCell<[u8; SIZE]>,
    used: AtomicUsize,
}

const SIZE: usize = 4 << 20;

// SAFETY: the bytes are only reached through `alloc`, which gives each of them out once, by an atomic counter.
unsafe impl Sync for Arena {}

// SAFETY: blocks lie inside `bytes`, are aligned as asked, and do not overlap, since `used` only grows.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.bytes.get().cast::<u8>();
        let place = |used: usize| {
            let address = (start as usize).checked_add(used)?.checked_next_multiple_of(layout.align())?;
            let offset = address - start as usize;
            Some((offset, offset.checked_add(layout.size()).filter(|&end| end <= SIZE)?))
        };
        match self.used.fetch_update(Relaxed, Relaxed, |used| place(used).map(|(_, end)| end)) {
            // SAFETY: `place` found the block inside the arena.
            Ok(used) => place(used).map_or(core::ptr::null_mut(), |(offset, _)| unsafe { start.add(offset) }),
            Err(_) => core::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ARENA: Arena = Arena { bytes: UnsafeCell::new([0; SIZE]), used: AtomicUsize::new(0) };

// The compiler turns plain loops over bytes into calls of these very functions: volatile accesses prevent that.

/// # Safety
/// As in C: `n` bytes at each, which do not overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    for i in 0..n {
        // SAFETY: `i` is within the `n` bytes the caller vouches for.
        unsafe { to.add(i).write_volatile(from.add(i).read()) };
    }
    to
}

/// # Safety
/// As in C: `n` bytes at each, which may overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    let copy = |i: usize| {
        // SAFETY: `i` is within the `n` bytes the caller vouches for.
        unsafe { to.add(i).write_volatile(from.add(i).read()) };
    };
    if to.cast_const() < from {
        (0..n).for_each(copy);
    } else {
        (0..n).rev().for_each(copy);
    }
    to
}

/// # Safety
/// As in C: `n` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, n: usize) -> *mut u8 {
    for i in 0..n {
        // SAFETY: `i` is within the `n` bytes the caller vouches for.
        unsafe { to.add(i).write_volatile(byte as u8) };
    }
    to
}

/// # Safety
/// As in C: `n` bytes at each.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    for i in 0..n {
        // SAFETY: `i` is within the `n` bytes the caller vouches for.
        let (a, b) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// # Safety
/// As in C: `n` bytes at each.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: the caller guarantees the same.
    unsafe { memcmp(a, b, n) }
}
