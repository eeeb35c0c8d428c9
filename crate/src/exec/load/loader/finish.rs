//! Transcodes a complete unit on the GPU, or on the CPU if no kernel supports the encoding.

use super::super::plan_mismatch;
use super::super::write::WeightRegion;
use super::Loader;
use super::load_unit::{LoadPath, LoadUnit, stored_rows};
use crate::Result;
use crate::device::registry::Variant;
use crate::exec::load_times::Stopwatch;
use crate::exec::step::compile_variants;
use crate::format::{self, Encoding, Float, PartBytes, PartRole, WeightLayout};
use crate::gpu::{Backend, Buffer, BufferUsage, Command, DispatchDesc};
use crate::ir::WeightKind;
use crate::kernels::Launch;
use crate::kernels::transcode::{self, TranscodeTarget};
use crate::plan::{Slot, WeightPlan};
use crate::util::map::SortedSet;

impl Loader<'_> {
    /// Transcodes a unit whose bytes are complete.
    pub(super) async fn finish(&mut self, unit: LoadUnit) -> Result<()> {
        let plan = self
            .plans
            .get(&unit.weight)
            .ok_or_else(|| plan_mismatch(&unit.source.name, "has no plan"))?;
        if matches!(unit.path, LoadPath::Gpu(_)) {
            return self.finish_on_gpu(&unit, plan).await;
        }
        let bytes = unit
            .parts
            .iter()
            .fold(PartBytes::new(), |all, p| all.with(p.role, &p.cpu));
        if plan.kind == WeightKind::Vector {
            let packed =
                format::transcode_to(&unit.source, &bytes, WeightLayout::Dense(Float::F32))?;
            let words = packed.layout.row_words(packed.cols);
            let cols = packed.cols;

            let values: Vec<u32> = (0..packed.rows)
                .flat_map(|r| packed.planes[0][r * words..r * words + cols].to_vec())
                .collect();
            let buffer = self.buffer(Slot::Vector(unit.weight), &unit.source.name)?;
            self.gpu
                .write(buffer, unit.row as u64 * 4, bytemuck::cast_slice(&values));
            return Ok(());
        }
        let packed = format::transcode_to(&unit.source, &bytes, plan.layout)?;
        if packed.column_order.as_deref() != unit.source.column_order.as_deref()
            || packed.layout != plan.layout
        {
            return Err(unit
                .source
                .unsupported("Its column order is not supported. Use a checkpoint without activation reordering."));
        }
        let gpu = self.gpu;
        let buffers = &self.buffers;

        WeightRegion {
            gpu,
            buffers,
            plan,
            weight: unit.weight,
            row: unit.row,
        }
        .write_packed(&packed, &unit.source)
    }

    async fn finish_on_gpu(&mut self, unit: &LoadUnit, plan: &WeightPlan) -> Result<()> {
        let (rows, _) = unit.source.rows_cols();
        let part = |role: PartRole| unit.parts.iter().find(|p| p.role == role)?.gpu.clone();
        let order = match &unit.source.column_order {
            Some(order) => {
                let buffer =
                    self.gpu
                        .buffer("order", order.len() as u64 * 4, BufferUsage::Storage)?;
                self.gpu.write(&buffer, 0, bytemuck::cast_slice(order));
                Some(buffer)
            }
            None => None,
        };
        let held = |role: PartRole| {
            unit.parts
                .iter()
                .find(|p| p.role == role)
                .map(|p| &p.cpu[..])
        };
        let scale = held(PartRole::Scales)
            .and_then(|scales| format::bitnet::row_scale(&unit.source, scales));
        let small = match unit.source.encoding {
            Encoding::Nvfp4 => Some((PartRole::QuantMap, format::mxfp4::half_scales(&held))),
            Encoding::Bnb8 => held(PartRole::Scales)
                .map(|largest| (PartRole::Scales, format::bnb::row_scales(largest))),
            _ => None,
        };
        let small = match small {
            Some((role, values)) => {
                let buffer =
                    self.gpu
                        .buffer("scales", values.len() as u64 * 4, BufferUsage::Storage)?;
                self.gpu.write(&buffer, 0, bytemuck::cast_slice(&values));
                Some((role, buffer))
            }
            None => None,
        };

        let mut launches = Vec::new();
        for (index, run) in plan.shards.iter().enumerate() {
            let range = unit.row.max(run.start)..(unit.row + rows).min(run.end);
            if range.is_empty() {
                continue;
            }
            let first = range.start - unit.row;
            let from = stored_rows(
                &unit.source,
                first,
                range.len(),
                |role: PartRole| match &small {
                    Some((small, buffer)) if *small == role => Some(transcode::BufferOffset {
                        buffer: buffer.clone(),
                        at: 0,
                    }),
                    _ => part(role),
                },
                order.clone(),
                scale.unwrap_or(0.0),
            );
            let from =
                from.ok_or_else(|| plan_mismatch(&unit.source.name, "was not staged on the GPU"))?;
            let to = TranscodeTarget {
                layout: plan.layout,
                cols: plan.cols as u32,
                q: self
                    .buffer(Slot::WeightQ(unit.weight, index), &unit.source.name)?
                    .clone(),
                s: self
                    .buffers
                    .get(&Slot::WeightS(unit.weight, index))
                    .cloned(),
                first_row: (range.start - run.start) as u32,
            };
            let launch = transcode::transcode(&unit.source.name, &from, &to);
            launches.push(launch.ok_or_else(|| {
                let from = unit.source.encoding.name();
                let to = plan.layout;

                plan_mismatch(
                    &unit.source.name,
                    &format!("has no kernel to transcode {from} to {to}"),
                )
            })?);
        }
        for launch in &launches {
            let step = self.step(launch).await?;
            self.batch.0.push(step);
        }
        self.batch.1 += unit.parts.iter().map(|part| part.bytes).sum::<u64>();
        if self.batch.1 < self.staging.shared_bytes() {
            return Ok(());
        }
        self.submit_batch()
    }

    /// Submits the transcodes of the units that are complete; their staging memory is free after it.
    pub(super) fn submit_batch(&mut self) -> Result<()> {
        let (steps, _) = std::mem::take(&mut self.batch);
        if steps.is_empty() {
            return Ok(());
        }
        let program = self.gpu.program("transcode", steps)?;
        self.gpu.submit(&[Command::Run {
            program: &program,
            grids: None,
        }])
    }

    async fn step(&mut self, launch: &Launch<Buffer>) -> Result<DispatchDesc> {
        if !self.pipelines.contains_key(&launch.variant) {
            let mut lap = Stopwatch::start();
            if let Some(compiling) = self.compiling.take() {
                self.pipelines.extend(compiling.await?);
            }
            if !self.pipelines.contains_key(&launch.variant) {
                let wanted = [launch.variant.clone()].into_iter().collect();
                let compiled = compile_variants(self.gpu, &wanted).await?;
                self.pipelines.extend(compiled);
            }
            self.times.compiling_ms += lap.lap();
        }
        let found = self.pipelines.get(&launch.variant);
        let (shader, pipeline) =
            found.ok_or_else(|| plan_mismatch(&launch.label, "has no compiled kernel"))?;
        let resolved = launch.resolve(shader)?;
        Ok(DispatchDesc {
            label: launch.label.clone(),
            pipeline: pipeline.clone(),
            buffers: resolved.buffers,
            params: resolved.params,
            grid: launch.grid.at(1),
        })
    }

    /// Starts to compile the kernels of the units that are still to be loaded. The first complete
    /// unit needs its kernel before the model needs any, so this precedes the model's kernels.
    pub(super) fn start_compiling(&mut self) {
        let wanted: SortedSet<Variant> = self
            .units
            .iter()
            .flatten()
            .filter_map(|unit| match &unit.path {
                LoadPath::Gpu(variant) => Some(variant.clone()),
                _ => None,
            })
            .collect();
        if !wanted.is_empty() {
            self.compiling = Some(Box::pin(compile_variants(self.gpu, &wanted)));
        }
    }
}
