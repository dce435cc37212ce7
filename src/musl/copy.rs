// SPDX-License-Identifier: Apache-2.0
//! `memcpy` and `memmove` of the static build (decision D30,
//! `docs/decisions/0004-the-static-build.md`).
//!
//! musl's functions begin with `rep movsq`, whose startup takes longer than copying a short text. A
//! protobuf message has hundreds of short texts, so that with musl's functions a chain of plugins
//! takes a third longer. The routine below is written in assembly, because a compiler may turn a
//! copying loop into a call of `memcpy`. Other builds use it only in tests.

#![expect(unsafe_code, reason = "assembly, and calls of it in the tests")]

use std::arch::global_asm;

// System V ABI: rdi = to, rsi = from, rdx = number of bytes; returns `to` in rax. Every x86-64 has
// SSE2. No branch overwrites bytes that it still has to load, so overlapping ranges work, and one
// routine serves as both functions.
global_asm!(
    ".pushsection .text.nri_runc_copy,\"ax\",@progbits",
    ".p2align 5",
    ".type nri_runc_copy,@function",
    "nri_runc_copy:",
    "    mov rax, rdi",
    "    cmp rdx, 16",
    "    ja 30f",
    "    cmp edx, 8",
    "    jae 20f",
    "    cmp edx, 4",
    "    jae 10f",
    "    test edx, edx",
    "    je 9f",
    // 1 to 3: the first, the middle and the last byte, which may be the same.
    "    mov r9, rdx",
    "    shr r9, 1",
    "    movzx ecx, byte ptr [rsi]",
    "    movzx r10d, byte ptr [rsi + r9]",
    "    movzx r8d, byte ptr [rsi + rdx - 1]",
    "    mov byte ptr [rdi], cl",
    "    mov byte ptr [rdi + r9], r10b",
    "    mov byte ptr [rdi + rdx - 1], r8b",
    "9:  ret",
    // 4 to 7, 8 to 16, 17 to 32: two halves that overlap.
    "10: mov ecx, dword ptr [rsi]",
    "    mov r8d, dword ptr [rsi + rdx - 4]",
    "    mov dword ptr [rdi], ecx",
    "    mov dword ptr [rdi + rdx - 4], r8d",
    "    ret",
    "20: mov rcx, qword ptr [rsi]",
    "    mov r8, qword ptr [rsi + rdx - 8]",
    "    mov qword ptr [rdi], rcx",
    "    mov qword ptr [rdi + rdx - 8], r8",
    "    ret",
    "30: cmp rdx, 32",
    "    ja 40f",
    "    movups xmm0, [rsi]",
    "    movups xmm1, [rsi + rdx - 16]",
    "    movups [rdi], xmm0",
    "    movups [rdi + rdx - 16], xmm1",
    "    ret",
    // 33 to 64.
    "40: cmp rdx, 64",
    "    ja 50f",
    "    movups xmm0, [rsi]",
    "    movups xmm1, [rsi + 16]",
    "    movups xmm2, [rsi + rdx - 32]",
    "    movups xmm3, [rsi + rdx - 16]",
    "    movups [rdi], xmm0",
    "    movups [rdi + 16], xmm1",
    "    movups [rdi + rdx - 32], xmm2",
    "    movups [rdi + rdx - 16], xmm3",
    "    ret",
    // Longer. Copies from the end if `to` lies within the source, else from the front.
    "50: mov rcx, rdi",
    "    sub rcx, rsi",
    "    cmp rcx, rdx",
    "    jb 70f",
    // The last 64 bytes are loaded first and stored last.
    "    movups xmm4, [rsi + rdx - 64]",
    "    movups xmm5, [rsi + rdx - 48]",
    "    movups xmm6, [rsi + rdx - 32]",
    "    movups xmm7, [rsi + rdx - 16]",
    "    lea r8, [rdi + rdx - 64]",
    "60: movups xmm0, [rsi]",
    "    movups xmm1, [rsi + 16]",
    "    movups xmm2, [rsi + 32]",
    "    movups xmm3, [rsi + 48]",
    "    add rsi, 64",
    "    movups [rdi], xmm0",
    "    movups [rdi + 16], xmm1",
    "    movups [rdi + 32], xmm2",
    "    movups [rdi + 48], xmm3",
    "    add rdi, 64",
    "    cmp rdi, r8",
    "    jb 60b",
    "    movups [r8], xmm4",
    "    movups [r8 + 16], xmm5",
    "    movups [r8 + 32], xmm6",
    "    movups [r8 + 48], xmm7",
    "    ret",
    // Backwards: the first 64 bytes are loaded first and stored last.
    "70: movups xmm4, [rsi]",
    "    movups xmm5, [rsi + 16]",
    "    movups xmm6, [rsi + 32]",
    "    movups xmm7, [rsi + 48]",
    "    lea r8, [rdi + 64]",
    "    add rsi, rdx",
    "    add rdi, rdx",
    "80: movups xmm0, [rsi - 16]",
    "    movups xmm1, [rsi - 32]",
    "    movups xmm2, [rsi - 48]",
    "    movups xmm3, [rsi - 64]",
    "    sub rsi, 64",
    "    movups [rdi - 16], xmm0",
    "    movups [rdi - 32], xmm1",
    "    movups [rdi - 48], xmm2",
    "    movups [rdi - 64], xmm3",
    "    sub rdi, 64",
    "    cmp rdi, r8",
    "    ja 80b",
    "    movups [rax], xmm4",
    "    movups [rax + 16], xmm5",
    "    movups [rax + 32], xmm6",
    "    movups [rax + 48], xmm7",
    "    ret",
    ".size nri_runc_copy, . - nri_runc_copy",
    ".globl nri_runc_copy",
    ".popsection",
);

#[cfg(target_env = "musl")]
global_asm!(
    ".globl memcpy",
    ".type memcpy,@function",
    ".set memcpy, nri_runc_copy",
    ".globl memmove",
    ".type memmove,@function",
    ".set memmove, nri_runc_copy",
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    // SAFETY: the declaration has the routine's signature, that of memmove.
    unsafe extern "C" {
        fn nri_runc_copy(to: *mut u8, from: *const u8, count: usize) -> *mut u8;
    }

    /// Copies within `bytes` by the routine.
    fn copy_within(bytes: &mut [u8], from: usize, to: usize, count: usize) {
        assert!(from + count <= bytes.len() && to + count <= bytes.len());
        let base = bytes.as_mut_ptr();
        // SAFETY: both ranges lie inside of `bytes`, as asserted.
        let to = unsafe { base.add(to) };
        // SAFETY: as above.
        let from = unsafe { base.add(from) };
        // SAFETY: as above; the ranges may overlap, which the routine permits.
        let back = unsafe { nri_runc_copy(to, from, count) };
        assert_eq!(back, to);
    }

    fn agrees(from: usize, to: usize, count: usize) {
        let size = from.max(to) + count + 3;
        let original: Vec<u8> = (0..size).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
        let (mut ours, mut wanted) = (original.clone(), original);
        copy_within(&mut ours, from, to, count);
        wanted.copy_within(from..from + count, to);
        assert!(ours == wanted, "{count} bytes from {from} to {to}");
    }

    #[test]
    fn short_copies_at_every_distance_are_correct() {
        for count in 0..=200 {
            for (from, to) in (0..=140).flat_map(|distance| [(distance, 0), (0, distance)]) {
                agrees(from, to, count);
            }
        }
    }

    proptest! {
        #[test]
        fn copies_at_any_distance_are_correct(from in 0..9000_usize, to in 0..9000_usize, count in 0..9000_usize) {
            agrees(from, to, count);
        }
    }
}
