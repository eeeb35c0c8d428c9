//! Compares matmuls of a loaded model with the CPU reference.

use super::Model;
use crate::Result;
use crate::exec::roofline::build_dispatches;
use crate::format::{PackedMatrix, WeightLayout};
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Gpu};
use crate::ir::WeightKind;
use crate::kernels::matmul::{Matmul, View, WeightPlanes};
use crate::plan::Slot;
use crate::reference::dequant::dequant;

/// Rows checked at the beginning and at the end of a weight.
const CHECKED_ROWS: usize = 4;

impl Model {
    /// Multiplies the first weight of each layout by test values, as decoding does, and checks some
    /// rows against the CPU. Returns a description of the difference, or an empty string.
    ///
    /// # Errors
    /// Device errors.
    pub async fn check_matmuls(&self) -> Result<String> {
        let mut seen: Vec<WeightLayout> = Vec::new();
        for (id, plan) in self.weights().iter() {
            if plan.kind != WeightKind::Matrix || plan.is_paged() || seen.contains(&plan.layout) {
                continue;
            }
            seen.push(plan.layout);
            let rows = plan.shards.first().map_or(0, std::ops::Range::len);
            let planes = [Slot::WeightQ(*id, 0), Slot::WeightS(*id, 0)];
            let planes = planes
                .iter()
                .filter_map(|slot| self.runner.weights.get(slot).cloned())
                .collect();
            let fault = check_matmul(&self.gpu, plan.layout, [rows, plan.cols], planes).await?;
            if !fault.is_empty() {
                return Ok(format!(
                    "{} ({}): {fault}",
                    self.graph().weight(*id).parts[0].0,
                    plan.layout
                ));
            }
        }
        Ok(String::new())
    }
}

/// Multiplies a weight of `[rows, cols]` by test values, as decoding does, and checks some rows
/// against the CPU. Returns a description of the first wrong row, or an empty string.
///
/// # Errors
/// Device errors.
async fn check_matmul(
    gpu: &Gpu,
    layout: WeightLayout,
    [rows, cols]: [usize; 2],
    planes: Vec<Buffer>,
) -> Result<String> {
    let x: Vec<f32> = (0..cols)
        .map(|i| (i * 7919 % 61) as f32 / 30.0 - 1.0)
        .collect();
    let make = |size: usize| gpu.buffer("check", 4 * size as u64, BufferUsage::Storage);
    let mut buffers = vec![make(cols)?, make(rows)?];
    buffers.extend(planes);
    gpu.write(&buffers[0], 0, bytemuck::cast_slice(&x));
    // Fill with NaN, so that rows that are not written fail.
    gpu.write(&buffers[1], 0, &vec![0xff; 4 * rows]);
    let [from, to, q, s] = [0, 1, 2, 3].map(Slot::Activation);
    let view = |buffer, cols: usize| View {
        buffer,
        offset: 0,
        stride: cols as u32,
    };
    let weight = WeightPlanes {
        layout,
        rows: rows as u32,
        cols: cols as u32,
        q,
        s: (buffers.len() > 3).then_some(s),
    };
    let launch = Matmul::plain("product", weight, view(from, cols), view(to, rows)).gemv(
        gpu.caps(),
        1,
        from,
    );
    // The packed dot product quantizes x to 8 bits.
    let off = if launch.variant.constant("DOT") == 1 {
        0.1
    } else {
        1e-3
    };
    let program = gpu.program(
        "check",
        build_dispatches(gpu, &[launch], &buffers, 1).await?,
    )?;
    gpu.submit(&[Command::Run {
        program: &program,
        grids: None,
    }])?;
    let found: Vec<f32> =
        bytemuck::pod_collect_to_vec(&gpu.read(&buffers[1], 0, 4 * rows as u64).await?);
    gpu.check().await?;
    // Rows that may share words start together.
    for first in [0, rows.saturating_sub(1) / CHECKED_ROWS * CHECKED_ROWS] {
        let count = CHECKED_ROWS.min(rows - first);
        let mut planes = [Vec::new(), Vec::new()];
        let starts = layout.plane_bytes(first, cols);
        let sizes = layout.plane_bytes(count, cols);

        for (index, buffer) in buffers[2..].iter().enumerate() {
            planes[index] =
                bytemuck::pod_collect_to_vec(&gpu.read(buffer, starts[index], sizes[index]).await?);
        }
        let packed = PackedMatrix {
            layout,
            rows: count,
            cols,
            planes,
            column_order: None,
        };
        for (row, values) in (first..).zip(dequant(&packed).chunks(cols)) {
            let products = values.iter().zip(&x).map(|(w, x)| f64::from(w * x));
            let (wanted, square) =
                products.fold((0.0, 0.0), |(sum, square), p| (sum + p, square + p * p));
            let error = (f64::from(found[row]) - wanted).abs();
            // NaN fails too.
            if error.is_nan() || error > off * square.sqrt() {
                return Ok(format!(
                    "matmul check failed at row {row}: GPU {:.3}, CPU {wanted:.3}",
                    f64::from(found[row])
                ));
            }
        }
    }
    Ok(String::new())
}
