//! Patch rows made on the GPU from pixels, bit for bit against the CPU image processor.

use jerboa::kernels::matmul::View;
use jerboa::kernels::patches::{PatchSpec, patches};
use jerboa::vision::{ImageProcessor, PatchOrder, RgbImage};
use jerboa_tests::{bytes, gpu, run};

fn image(width: usize, height: usize, seed: usize) -> RgbImage {
    let rgb = (0..width * height * 3)
        .map(|i| (i * (7 + seed) % 251 + seed) as u8)
        .collect();
    RgbImage::new(width, height, rgb).expect("an image")
}

/// Rows of the GPU, with a row of zeros before each tile if `before` is set, and rows of the CPU.
fn check(processor: &ImageProcessor, order: &PatchOrder, tiles: &[Vec<&RgbImage>], before: usize) {
    let what = format!("{order:?}, {} tiles, {before} before", tiles.len());
    let cols = order.cols();
    let stride = cols.next_multiple_of(4);
    let places: Vec<_> = tiles
        .iter()
        .map(|tile| order.tile_positions(tile[0]))
        .collect();
    let mut expected = Vec::new();
    for (tile, places) in tiles.iter().zip(&places) {
        // Padding of a row is unchanged.
        let rows = [
            vec![0.0f32; before * cols],
            processor.rows(tile, order, places),
        ]
        .concat();
        expected.extend(
            rows.chunks(cols)
                .flat_map(|row| [row, &[-1.0; 4][..stride - cols]].concat()),
        );
    }
    let (starts, size) = order.pixel_offsets(tiles, before, &places);
    let mut pixels = Vec::new();
    for frame in tiles.iter().flatten() {
        pixels.extend(&frame.rgb);
        pixels.resize(pixels.len().next_multiple_of(4), 0xee);
    }
    assert_eq!(pixels.len() as u64, size, "{what}");
    let rows = expected.len() / stride;
    let given = [
        pixels,
        bytes(&starts),
        bytes(processor.pixel_values.as_flattened()),
        bytes(&vec![-1.0f32; rows * stride]),
    ];
    let cut = PatchSpec {
        strides: order.strides(),
        patch: order.patch as u32,
        frames: order.frames as u32,
    };
    let launch = patches(
        cut,
        [0, 1, 2],
        View {
            buffer: 3,
            offset: 0,
            stride: stride as u32,
        },
    );
    let found = &run(gpu(), &launch, rows as u32, &given)[3];
    assert!(*found == bytes(&expected), "{what}");
}

#[test]
fn patches_of_pixels() {
    let config = serde_json::json!({ "image_processor_type": "CLIPImageProcessor" });
    let processor = ImageProcessor::from_config(&config).expect("a processor");
    // Tiles whose bytes are not whole words, and columns after the last patch.
    let wide = image(24, 8, 1);
    let odd = image(15, 9, 2);
    let other = image(24, 8, 3);

    let blocks = PatchOrder {
        patch: 4,
        merge: 2,
        frames: 2,
        color_last: false,
        frames_first: false,
    };
    check(&processor, &blocks, &[vec![&wide], vec![&wide, &other]], 0);
    check(
        &processor,
        &PatchOrder {
            frames_first: true,
            ..blocks
        },
        &[vec![&other, &wide], vec![&wide]],
        0,
    );
    let plain = PatchOrder {
        patch: 5,
        merge: 1,
        frames: 1,
        ..blocks
    };
    check(
        &processor,
        &plain,
        &[vec![&odd], vec![&wide], vec![&odd]],
        1,
    );
    check(
        &processor,
        &PatchOrder {
            patch: 3,
            color_last: true,
            ..plain
        },
        &[vec![&odd], vec![&wide]],
        0,
    );
    // More elements than a workgroup has threads.
    check(
        &processor,
        &PatchOrder { patch: 12, ..plain },
        &[vec![&image(36, 24, 4)]],
        0,
    );
}
