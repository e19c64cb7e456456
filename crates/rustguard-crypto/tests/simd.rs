//! The batch kernels against both other backends.
#![cfg(all(feature = "portable", feature = "simd", target_arch = "x86_64"))]

use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_crypto::backend::simd::{Key, Path};
use rustguard_crypto::backend::{Aead, portable};

#[test]
fn every_length() {
    let key = [0x42; 32];
    let oracle = portable::Key::new(&key);
    for path in Path::ALL {
        let Some(simd) = Key::with_path(&key, path) else { continue };
        for len in 0..=2048 {
            let stride = len + TAG_LEN;
            let frames: Vec<Frame> = (0..17).map(|i| Frame { offset: i * stride, len, counter: i as u64 + 0xffff_fffe }).collect();
            let plain: Vec<u8> = (0..17 * stride).map(|i| (i * 7 + len) as u8).collect();
            let (mut here, mut there) = (plain.clone(), plain.clone());
            simd.seal_run(&mut here, &frames);
            oracle.seal_run(&mut there, &frames);
            assert!(here == there, "{path} {len}");
            let mut opened = [false; 17];
            simd.open_run(&mut here, &frames, &mut opened);
            assert_eq!(opened, [true; 17]);
            for f in &frames {
                assert!(here[f.offset..][..f.len] == plain[f.offset..][..f.len], "{path} {len}");
            }
        }
    }
}
